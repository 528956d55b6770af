"""Metrics against closed forms, and weighted percentiles against numpy's on the list written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from traces.metrics import spread, step_weights, summarize, weighted_percentiles, weighted_spread

from .plans import run_scheduler, two_requests
from .test_recorder import small_config, some_requests

SECONDS = st.floats(0, 1e6, allow_subnormal=False)


@given(st.lists(st.tuples(SECONDS, st.integers(0, 20)), min_size=1), st.lists(st.floats(0, 100), min_size=1))
def test_weighted_percentiles_are_numpys_on_the_list_written_out(
    pairs: list[tuple[float, int]], percentiles: list[float]
) -> None:
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    if not counts.sum():
        assert weighted_spread(values, counts) is None
        return
    written_out = np.percentile(np.repeat(values, counts), percentiles)
    assert weighted_percentiles(values, counts, percentiles) == written_out.tolist()


@given(st.lists(st.tuples(SECONDS, st.integers(1, 5)), min_size=1))
def test_weighted_spread_is_the_spread_of_the_list_written_out(pairs: list[tuple[float, int]]) -> None:
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    weighted, plain = weighted_spread(values, counts), spread(np.repeat(values, counts))
    assert weighted is not None
    assert plain is not None
    assert weighted.pop("mean") == pytest.approx(plain.pop("mean"))
    assert weighted == plain


def test_two_requests_give_the_metrics_worked_out_by_hand() -> None:
    found = two_requests().summary()
    same = {"requests": 2, "finished": 2, "finish_reasons": {"length": 2}, "steps": 3, "makespan_s": 4.0,
            "requests_per_s": 0.5, "prompt_tokens_per_s": 7 / 4, "output_tokens_per_s": 5 / 4,
            "slot_occupancy": 5 / 8, "padding_fraction": 0.0, "padding_s": 0.0, "preemptions": 0,
            "recomputed_tokens": 0, "cached_tokens": 0, "computed_tokens": 10}  # fmt: skip
    assert {name: found[name] for name in same} == same
    # A: first token at 2 s, end at 4 s; B arrives at 0.5 s: first token at 3 s, end at 4 s
    assert found["ttft_s"] == pytest.approx({"mean": 2.25, "p50": 2.25, "p90": 2.45, "p95": 2.475, "p99": 2.495})
    assert found["queue_s"]["mean"] == 1.25
    assert found["e2e_s"]["mean"] == 3.75
    assert found["tpot_s"] == found["itl_s"] == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0}


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    trace = two_requests()
    assert summarize(trace, {"ttft_s": 2.0})["goodput_requests"] == 1
    assert summarize(trace, {"ttft_s": 3.0, "tpot_s": 1.0})["goodput_per_s"] == 0.5
    assert summarize(trace, {"ttft_s": 3.0, "e2e_s": 3.7})["goodput_requests"] == 1
    assert "goodput_per_s" not in summarize(trace)


@pytest.mark.parametrize(("slo", "sentence"), [({"ttfs_s": 1.0}, "did you mean 'ttft_s'"), ({"ttft_s": 0.0}, "> 0")])
def test_limits_are_checked(slo: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        two_requests().summary(slo)


def test_itl_and_tpot_are_null_where_a_policy_delivers_all_at_once() -> None:
    found = run_scheduler(small_config("static", False), some_requests()).summary()
    assert found["itl_s"] is None
    assert found["tpot_s"] is None
    assert found["ttft_s"] == found["e2e_s"]
    assert 0 < found["padding_fraction"] < 1


@pytest.mark.parametrize("policy", ["chunked", "slots", "orca", "prefill-first"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_n_tokens_give_n_less_one_gaps_and_sums_match_the_requests(policy: str, async_scheduling: bool) -> None:
    requests = some_requests()
    expected = [one.eos_at if one.eos_at and one.eos_at <= one.max_tokens else one.max_tokens for one in requests]
    trace = run_scheduler(small_config(policy, async_scheduling).replaced(num_blocks=14), requests)
    assert trace.requests["output_tokens"].tolist() == expected
    assert trace.gaps["count"].sum() == sum(expected) - len(expected)
    found = trace.summary()
    assert found["preemptions"] == trace.requests["preemptions"].sum()
    assert found["e2e_s"]["mean"] == pytest.approx((trace.requests["finished_s"] - trace.requests["arrival_s"]).mean())


def test_occupancy_does_not_count_time_twice_where_steps_overlap() -> None:
    weights = step_weights(np.array([0.0, 0.5, 2.5]), np.array([1.0, 2.0, 3.0]))
    assert weights.tolist() == [1.0, 1.0, 0.5]
