"""`/metrics`: vLLM's names, and sums that agree with what was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .running import Running, running

VLLM_NAMES = [
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total",
    "vllm:iteration_tokens_total_bucket", "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket", "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket", "vllm:request_queue_time_seconds_bucket",
    "vllm:request_prefill_time_seconds_bucket", "vllm:request_decode_time_seconds_bucket",
    "vllm:request_inference_time_seconds_bucket", "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket", "vllm:cache_config_info",
]  # fmt: skip
"""From vLLM's documentation, "Production Metrics"."""


ON = {"ignore_eos": True}


@pytest.fixture(scope="module")
def counted(tiny_model: Path) -> Iterator[Running]:
    """Three requests of 5 prompt tokens: 7, 1 and 4 output tokens."""
    with running(tiny_model, names=("tiny",)) as one:
        for limit, text in ((7, "Hello"), (1, "World"), (4, "Again")):
            one.openai().completions.create(prompt=text, max_tokens=limit, model="tiny", extra_body=ON)
        yield one


@pytest.mark.parametrize("name", VLLM_NAMES)
def test_a_name_of_vllm_s_is_there_with_its_labels(counted: Running, name: str) -> None:
    with counted.http() as client:
        reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    samples = [s for family in text_string_to_metric_families(reply.text) for s in family.samples if s.name == name]
    assert samples
    assert all(s.labels["model_name"] == "tiny" and s.labels["engine"] == "0" for s in samples)


def test_openmetrics_is_given_when_asked_for(counted: Running) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

    with counted.http() as client:
        reply = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert "vllm:prompt_tokens" in {family.name for family in parse(reply.text)}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("vllm:prompt_tokens_total", {}, 15),
        ("vllm:generation_tokens_total", {}, 12),
        ("vllm:request_success_total", {"finished_reason": "length"}, 3),
        ("vllm:request_success_total", {"finished_reason": "abort"}, 0),
        ("vllm:time_to_first_token_seconds_count", {}, 3),
        ("vllm:inter_token_latency_seconds_count", {}, 9),  # N tokens have N - 1 gaps
        ("vllm:request_time_per_output_token_seconds_count", {}, 2),  # one token has none
        ("vllm:e2e_request_latency_seconds_count", {}, 3),
        ("vllm:request_queue_time_seconds_count", {}, 3),
        ("vllm:request_prompt_tokens_sum", {}, 15),
        ("vllm:request_generation_tokens_sum", {}, 12),
        ("vllm:request_params_max_tokens_sum", {}, 12),
        ("vllm:num_requests_running", {}, 0),
        ("vllm:num_requests_waiting", {}, 0),
        ("vllm:kv_cache_usage_perc", {}, 0),
        ("vllm:iteration_tokens_total_sum", {}, 15 + 12 - 3),  # a request's last output is never computed
        ("batchscope:computed_tokens_total", {}, 24),
        ("batchscope:padding_tokens_total", {}, 0),
        ("batchscope:slots_total", {}, 8),
    ],
)
def test_sums_are_those_of_the_requests(counted: Running, name: str, labels: dict[str, str], expected: float) -> None:
    assert counted.metric(name, **labels) == expected


def test_times_add_up(counted: Running) -> None:
    def total(name: str) -> float:
        return counted.metric(f"vllm:{name}_sum")

    parts = total("request_queue_time_seconds") + total("request_prefill_time_seconds")
    assert parts == pytest.approx(total("time_to_first_token_seconds"), rel=1e-6)
    assert total("request_decode_time_seconds") == pytest.approx(total("inter_token_latency_seconds"), rel=1e-6)
    whole = total("request_inference_time_seconds") + total("request_queue_time_seconds")
    assert whole == pytest.approx(total("e2e_request_latency_seconds"), rel=1e-6)
    steps = counted.metric("batchscope:step_device_seconds_count")
    assert steps == counted.metric("batchscope:steps_total") == counted.engine.stats().steps
    assert counted.metric("batchscope:step_device_seconds_sum") == pytest.approx(
        counted.metric("batchscope:device_seconds_total")
    )


def test_prefix_hits_are_counted_in_tokens(tiny_model: Path) -> None:
    with running(tiny_model, names=("tiny",)) as server:
        for _ in range(2):
            server.openai().completions.create(model="tiny", prompt="x" * 40, max_tokens=1)
        block = server.engine.config.block_size
        assert server.metric("vllm:prefix_cache_queries_total") == 80
        assert server.metric("vllm:prefix_cache_hits_total") == 39 // block * block


def test_padding_is_counted_by_cause(tiny_model: Path) -> None:
    with running(tiny_model, names=("tiny",), policy="static", batch_timeout_s=0.3, max_num_seqs=2) as server:
        ids = [[65] * 10, [66] * 4]
        server.openai().completions.create(model="tiny", prompt=ids, max_tokens=3, extra_body={"ignore_eos": True})
        assert server.metric("batchscope:padding_tokens_total", cause="prompt") == 6
        assert server.metric("batchscope:padding_seconds_total") > 0


def test_watching_a_step_costs_the_engine_little(counted: Running) -> None:
    from backend.outputs import StepEvent
    from backend.server.metrics import EngineMetrics
    from scheduler import Request, Scheduler
    from scheduler.config import SchedulerConfig

    scheduler = Scheduler(SchedulerConfig())
    for index in range(64):
        scheduler.add(Request(index, 10, 20))
    plan = scheduler.schedule(0.0)
    event = StepEvent(plan, 0.0, 0.01, 0.009, 0.001, 0.0, gaps_s=[0.01] * 64)
    metrics = EngineMetrics(counted.engine, "bench")
    best = min(_timed(lambda: metrics.observe(event)) for _ in range(200))
    assert best < 100e-6, f"{best * 1e6:.0f} us"


def _timed(run: object) -> float:
    start = time.perf_counter()
    assert callable(run)
    run()
    return time.perf_counter() - start
