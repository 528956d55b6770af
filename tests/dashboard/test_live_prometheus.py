"""What vLLM's and SGLang's metrics tell, and what they cannot; the texts are written after their documented names."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.prometheus import MetricsFeed, MetricsHistory
from scheduler.errors import InputError
from traces.metric_names import SGLANG, VLLM
from traces.quantiles import quantile_range
from traces.scrape import Counts, Scrape

from .live_servers import serving, until

VLLM_TEXT = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 8.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 10.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 100.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1500.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.25",model_name="m"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
process_resident_memory_bytes 1.0e+09
"""
VLLM_OLD_TEXT = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 1.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 3.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 3.0
"""
SGLANG_TEXT = """
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="q",engine_type="unified",tp_rank="0",pp_rank="0"} 161.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="q",engine_type="unified",tp_rank="0",pp_rank="0"} 2826.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="q",engine_type="unified",tp_rank="0",pp_rank="0"} 0.28
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{model_name="q",engine_type="unified",tp_rank="0",pp_rank="0"} 86.5
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="q"} 8.128902e+06
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="q"} 7.557572e+06
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{model_name="q"} 7.0
# TYPE sglang:e2e_request_latency_seconds histogram
sglang:e2e_request_latency_seconds_bucket{le="0.8",model_name="q"} 1.0
sglang:e2e_request_latency_seconds_bucket{le="1.0",model_name="q"} 4.0
sglang:e2e_request_latency_seconds_bucket{le="+Inf",model_name="q"} 4.0
"""


def scrape(text: str, time_s: float = 0.0) -> Scrape:
    return Scrape.of(text, time_s, "host:1")


def test_vllm_is_understood_and_its_engines_are_added_up() -> None:
    found = scrape(VLLM_TEXT)
    assert (found.dialect, found.model) == (VLLM, "m")
    assert found.values == {
        "running": 12, "waiting": 3, "kv_use": 0.375, "preemptions": 2, "prompt_tokens": 1000,
        "generation_tokens": 500, "iterations": 100, "iteration_tokens": 1500,
    }  # fmt: skip
    assert found.latencies["ttft"].counts.tolist() == [5, 4, 1]
    assert found.latencies["ttft"].bounds.tolist() == [0.1, 0.25, math.inf]


def test_names_of_older_vllm_count_too() -> None:
    found = scrape(VLLM_OLD_TEXT)
    assert found.values == {"running": 1, "kv_use": 0.125}
    assert found.latencies["itl"].counts.tolist() == [3, 0]


def test_sglang_is_understood() -> None:
    found = scrape(SGLANG_TEXT)
    assert (found.dialect, found.model) == (SGLANG, "q")
    assert found.values["running"] == 161
    assert found.values["waiting"] == 2826
    assert found.values["kv_use"] == 0.28
    assert found.values["preemptions"] == 7
    assert found.latencies["e2e"].counts.tolist() == [1, 3, 0]


def test_rates_are_what_was_gained_between_two_looks() -> None:
    later = (
        VLLM_TEXT.replace("} 1000.0", "} 1300.0").replace("} 500.0", "} 560.0").replace("} 1500.0", "} 1860.0")
        .replace('count{engine="0",model_name="m"} 100.0', 'count{engine="0",model_name="m"} 120.0')
        .replace("} 2.0", "} 5.0")
    )  # fmt: skip
    history = MetricsHistory()
    history.add(scrape(VLLM_TEXT, 100.0))
    history.add(scrape(later, 102.0))
    row = {name: column[1] for name, column in history.series().items()}
    assert row["prompt_per_s"] == 150
    assert row["generation_per_s"] == 30
    assert row["iterations_per_s"] == 10
    assert row["tokens_per_iteration"] == 18
    assert row["preemptions"] == 3
    assert math.isnan(history.series()["prompt_per_s"][0])
    assert history.restarts == 0


def test_a_counter_that_goes_down_is_a_restart_and_no_rate() -> None:
    history = MetricsHistory()
    history.add(scrape(VLLM_TEXT, 0.0))
    history.add(scrape(VLLM_TEXT.replace("} 1000.0", "} 10.0"), 1.0))
    assert history.restarts == 1
    assert math.isnan(history.series()["prompt_per_s"][1])
    assert history.buckets() == {}


def test_memory_of_looks_is_bounded() -> None:
    history = MetricsHistory(kept=10)
    for second in range(500):
        history.add(scrape(VLLM_OLD_TEXT, float(second)))
    assert len(history.rows) == 10
    assert len(history.window) <= 62


def test_what_a_server_cannot_tell_is_said() -> None:
    with serving(SGLANG_TEXT) as server, MetricsFeed(server.url, poll_s=0.02) as feed:
        until(lambda: feed.state.kind == "live")
        told = " ".join(feed.cannot_tell())
        assert "slot" in told
        assert "Padding" in told
        assert "how many tokens a step has" in told
        assert "how many requests run" not in told
        assert "output tokens per second" not in told


def test_a_feed_watches_over_a_socket_and_says_when_the_server_is_gone_and_back() -> None:
    with serving(VLLM_TEXT) as server, MetricsFeed(f"{server.url}/metrics", poll_s=0.02) as feed:
        until(lambda: len(feed.snapshot().series["running"]) > 3)
        snapshot = feed.snapshot()
        assert (snapshot.server, snapshot.model, snapshot.state.kind) == ("vLLM", "m", "live")
        assert set(snapshot.series["running"]) == {12.0}
        server.text = None
        until(lambda: feed.state.kind == "gone")
        assert "404" in feed.state.reason
        assert math.isnan(feed.snapshot().series["running"][-1])
        server.text = VLLM_TEXT
        until(lambda: feed.state.kind == "live")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "none of vLLM, SGLang or batchscope"),
        ("<html>hello</html>", "none of vLLM"),
        ("up 1\n", "none of vLLM"),
        ("vllm:num_requests_running{ 3", "no Prometheus text"),
        ('vllm:num_requests_running{a="b"} many', "no Prometheus text"),
    ],
)
def test_metrics_that_are_none_are_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        scrape(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=80), st.sampled_from(["vllm:num_requests_running", "vllm:x_bucket", "sglang:token_usage"]))
def test_no_text_breaks_the_reader(noise: str, name: str) -> None:
    with contextlib.suppress(InputError):  # a sentence, and nothing else
        scrape(f"{name}{noise}\n")


@given(
    st.lists(st.floats(0.001, 50), min_size=1, max_size=60),
    st.lists(st.floats(0.01, 40), min_size=1, max_size=8, unique=True),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_a_percentile_lies_between_the_bounds_given(values: list[float], bounds: list[float], q: float) -> None:
    ends = np.array([*sorted(bounds), math.inf])
    counts = np.array([sum(1 for v in values if v <= end) for end in ends])
    found = quantile_range(Counts(ends, np.diff(counts, prepend=0).astype(float)), q)
    assert found is not None
    exact = float(np.quantile(values, q, method="inverted_cdf"))  # numpy's name for the nearest rank
    assert found.low_s < exact <= found.high_s
    assert found.values == len(values)


def test_a_percentile_is_told_as_a_range() -> None:
    counts = Counts(np.array([0.1, 0.25, math.inf]), np.array([5.0, 4.0, 1.0]))
    words = [found.words() for q in (0.5, 0.9, 0.99) if (found := quantile_range(counts, q))]
    assert words == ["at most 100 ms", "between 100 ms and 250 ms", "more than 250 ms"]
    assert quantile_range(Counts(counts.bounds, np.zeros(3)), 0.5) is None
