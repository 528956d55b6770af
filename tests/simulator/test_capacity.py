from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import ConfigError
from simulator.capacity import Capacity, capacity
from traces.trace import Trace

from .cases import even, one_slot


def one_server(n: int = 100, *, slo: str, **more: Any) -> Capacity:
    return capacity(even(n, 1.0), **{"slo": slo, "seeds": 1, **one_slot(), **more})


@pytest.mark.parametrize(("limit_s", "precision"), [(1.5, 0.01), (3.0, 0.02), (10.0, 0.005)])
def test_one_slot_with_even_arrivals_meets_the_closed_form(limit_s: float, precision: float) -> None:
    """D/D/1: at rate r request k waits k (S - 1/r), S = 1 s, so the p99 of n requests is 0.99 (n - 1) (S - 1/r) + S."""
    n = 100
    found = one_server(n, slo=f"e2e_p99={limit_s}", precision=precision)
    exact = 1 / (1 - (limit_s - 1) / (0.99 * (n - 1)))
    assert found.rate_per_s is not None
    assert found.rate_per_s <= exact < found.result["fails_at_per_s"]
    assert found.result["fails_at_per_s"] <= found.rate_per_s * (1 + precision) * 1.00001
    assert found.result["monotone"]


def test_a_queue_that_grows_without_end_counts_as_saturated() -> None:
    """However long a wait is allowed: past some rate more than sqrt(400) requests wait when the last arrives."""
    found = one_server(400, slo="e2e_p99=1000", precision=0.01)
    exact = 1 / (1 - 20 / 400)  # at rate r, 400 (1 - 1/r) of them
    assert found.rate_per_s == pytest.approx(exact, rel=0.02)
    assert "saturated" in str(found)


@pytest.mark.parametrize(("rate", "needed"), [(1.0, 1), (2.5, 3), (4.0, 4), (7.2, 8)])
def test_a_rate_needs_as_many_one_slot_servers_as_it_brings_seconds_of_work(rate: float, needed: int) -> None:
    found = capacity(even(80, 1.0), slo="queue_p99=0.05", rate=rate, router="round-robin", seeds=1, **one_slot())
    assert (found.replicas, found.rate_per_s) == (needed, rate)
    tried = {(trial["replicas"], trial["met"]) for trial in found.result["trials"]}
    assert needed == 1 or (needed - 1, False) in tried


def test_several_replicas_take_several_times_the_rate() -> None:
    found = capacity(even(90, 1.0), slo="e2e_p99=1.2", replicas=3, router="round-robin", seeds=1, **one_slot())
    assert found.rate_per_s == pytest.approx(3.0, rel=0.04)


def test_the_cost_is_gpu_hours_over_tokens() -> None:
    """One request of 10 tokens a second: 3,600 x 10 tokens an hour for 2 GPUs at 3 each."""
    found = one_server(
        1000, slo="e2e_p99=2", rate=1.0, price=3.0, tensor_parallel=2, cost="linear:step_s=0.1", router="round-robin"
    )
    cost = found.result["cost_per_million_output_tokens"]
    assert found.result["gpus"] == 2
    assert cost["mean"] == pytest.approx(
        2 * 3.0 / (3600 * 10) * 1e6, rel=0.002
    )  # the last request's second is idle after
    assert cost["min"] == cost["max"] == cost["mean"]


def test_without_a_price_there_is_no_cost() -> None:
    assert one_server(20, slo="e2e_p99=2", rate=0.5).result["cost_per_million_output_tokens"] is None


def test_every_seed_must_meet_the_limits() -> None:
    found = capacity("default", requests=60, slo="ttft_p99=0.2,tpot_p99=0.03", seeds=4, precision=0.1)
    by_seed = found.result["by_seed"]
    assert [seed["seed"] for seed in by_seed] == [0, 1, 2, 3]
    assert found.rate_per_s is not None
    assert all(seed["passes_at"] >= found.rate_per_s for seed in by_seed)
    fails_at = [seed["fails_at"] for seed in by_seed if seed["fails_at"] is not None]
    assert min(fails_at) == found.result["fails_at_per_s"]
    for trial in found.result["trials"]:
        assert trial["met"] is (trial["seeds_met"] == 4)


def test_the_answer_is_the_same_whatever_the_number_of_processes() -> None:
    asked: dict[str, Any] = {"requests": 40, "slo": "ttft_p99=0.2", "rate": 30.0, "replicas": 2, "seeds": 2}
    one, two = (capacity("default", **asked, jobs=jobs).result for jobs in (1, 2))
    for result in (one, two):
        for run in result["runs"]:
            del run["wall_s"]
    assert one == two


def test_limits_that_an_idle_server_misses_get_a_sentence() -> None:
    found = one_server(30, slo="e2e_p99=0.9")  # a request alone takes 1 s
    assert found.rate_per_s is None
    assert "no rate can be promised" in str(found)
    assert "e2e_p99 1 s > 0.9 s" in str(found)


def test_limits_that_no_rate_misses_get_a_sentence() -> None:
    found = one_server(5, slo="e2e_p99=1000", max_num_seqs=8)
    assert found.rate_per_s is None
    assert "no limit found" in str(found)
    assert "more requests would show the limit" in str(found)


def test_replicas_that_cannot_help_are_not_tried_for_ever() -> None:
    found = one_server(64, slo="e2e_p99=0.9", rate=2.0, router="round-robin")
    assert found.replicas is None
    assert "more replicas would not change that" in str(found)
    assert max(trial["replicas"] for trial in found.result["trials"]) <= 16


def test_the_most_replicas_are_the_users_to_set() -> None:
    found = one_server(64, slo="e2e_p99=1.1", rate=8.0, max_replicas=4, router="round-robin")
    assert found.replicas is None
    assert "4 replicas do not meet it at 8 requests/s" in str(found)


def test_a_number_of_replicas_can_be_checked_against_a_rate() -> None:
    fits = one_server(40, slo="e2e_p99=1.1", rate=2.0, replicas=2, router="round-robin")
    assert (fits.replicas, len(fits.result["trials"])) == (2, 1)
    fails = one_server(40, slo="e2e_p99=1.1", rate=2.0, replicas=1)
    assert fails.replicas is None


def test_a_run_too_short_to_settle_is_noted() -> None:
    found = one_server(12, slo="e2e_p99=4")
    assert any("too short to show a steady state" in note for note in found.result["notes"])


def test_a_batch_that_wants_more_traffic_is_noted_as_not_monotone() -> None:
    """Naive batches of two: at r/s the first of a pair waits 1/r for the second, 5 s at most."""
    pairs = even(40, 1.0, output=1)
    settings = {**one_slot(0.05), "max_num_seqs": 2, "policy": "static", "batch_timeout_s": 5.0}
    found = capacity(pairs, slo="e2e_p99=0.4", seeds=1, **settings)
    assert found.rate_per_s is None
    assert not found.result["monotone"]
    assert found.result["notes"] == ["not monotone: it is met again at 4, 8/s, above a rate that fails"]


def test_traces_of_the_answer_are_kept_when_asked(tmp_path: Path) -> None:
    found = one_server(20, slo="e2e_p99=1.1", rate=2.0, router="round-robin", seeds=2, traces=tmp_path)
    assert found.replicas == 2
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*.trace"))
    assert kept == [f"seed-{seed}/replica-{number}.trace" for seed in (0, 1) for number in (0, 1)]
    assert Trace.open(tmp_path / kept[0]).summary()["requests"] == 10


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"slo": "ttfd_p99=1"}, "did you mean 'ttft_p99'"),
        ({"policy": "static", "slo": "tpot_p99=1"}, "has no tpot"),
        ({"router": "round"}, "unknown router"),
        ({"rate": -1.0}, "rate is -1"),
        ({"replicas": 0}, "replicas is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"precision": 0.0}, "precision is 0"),
        ({"price": 0.0}, "price is 0"),
        ({"max_num_sqs": 1}, "did you mean 'max_num_seqs'"),
    ],
)
def test_mistakes_are_sentences(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        one_server(**{"slo": "e2e_p99=1", **more})


def test_a_workload_that_comes_at_once_has_no_rate() -> None:
    with pytest.raises(ConfigError, match="has no rate to change"):
        capacity(even(5, 0.0), slo="e2e_p99=1", **one_slot())


def test_a_number_of_replicas_that_was_given_meets_it_or_does_not() -> None:
    given = {"rate": 8.0, "seeds": 1, "requests": 60}
    assert "2 GPUs: meet it at 8 requests/s" in str(capacity(slo="e2e_p99=60", replicas=2, **given))
    assert "1 replica does not meet it at 8 requests/s" in str(capacity(slo="e2e_p99=0.1", replicas=1, **given))
