"""The fast path (steady prefix, repeated steps) and the plain loop describe the same steps, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler import SchedulerConfig

from .harness import Ask, Content, Run
from .test_laws import POLICIES, cases, law


def assert_twins(**case: Any) -> Run:
    """Run it both ways; returns the fast run."""
    fast, plain = Run(**case).finish(), Run(**case, plain=True).finish()
    for ours, theirs in zip(fast.steps, plain.steps, strict=True):
        assert ours.facts() == theirs.facts()
    assert fast.ends == plain.ends
    assert fast.delivered == plain.delivered
    assert fast.scheduler.kv.pool.num_cached == plain.scheduler.kv.pool.num_cached
    return fast


@law()
def test_fast_and_plain_give_the_same_steps(case: dict[str, Any]) -> None:
    assert_twins(**case)


@law(drawn=cases(long_decodes=True))
def test_fast_and_plain_give_the_same_steps_over_long_decodes(case: dict[str, Any]) -> None:
    assert_twins(**case)


@pytest.mark.long
@pytest.mark.parametrize("long_decodes", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_fast_and_plain_agree_over_thousands_of_runs(policy: str, long_decodes: bool) -> None:
    def agree(case: dict[str, Any]) -> None:
        assert_twins(**case)

    law(drawn=cases((policy,), long_decodes=long_decodes), long=True)(agree)()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("content", ["counts", "script", "tokens"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_run_that_preempts_shares_prefixes_and_aborts_is_the_same(
    policy: str, content: Content, asynchronous: bool
) -> None:
    asks = [
        Ask(
            prompt=4 + 7 * index % 23, max_tokens=30 + 11 * index % 60, priority=index % 4, shared=17 * index % 40,
            stop_at=25 if index % 3 == 0 else None, arrive=3 * index, abort=90 if index % 11 == 5 else None,
        )
        for index in range(40)
    ]  # fmt: skip
    config = SchedulerConfig(
        policy=policy, layout="ragged", max_num_seqs=7, max_num_batched_tokens=24, block_size=4, num_blocks=60,
        scheduling_policy="priority" if content == "tokens" else "fcfs", async_scheduling=asynchronous,
        long_prefill_token_threshold=6,
    )  # fmt: skip
    run = assert_twins(config=config, asks=asks, content=content)
    preempted = sum(len(step.plan.preempted) for step in run.steps)
    assert (preempted > 3) == (policy != "static"), "the run is short of blocks wherever it can be"


def test_a_priority_victim_inside_the_steady_prefix_is_the_same() -> None:
    asks = [Ask(2, 20, priority=9), *[Ask(3, 20, priority=1)] * 3, Ask(30, 2, priority=0, arrive=6)]
    config = SchedulerConfig(
        scheduling_policy="priority", block_size=2, num_blocks=26, max_num_batched_tokens=8, enable_prefix_caching=False
    )
    run = assert_twins(config=config, asks=asks)
    victims = {int(request.request_id) for step in run.steps for request in step.plan.preempted}
    assert 0 in victims


def test_a_budget_below_the_number_of_running_requests_is_the_same() -> None:
    config = SchedulerConfig(policy="orca", max_num_batched_tokens=2, max_num_seqs=8)
    assert_twins(config=config, asks=[Ask(2, 3 + index) for index in range(8)])


def test_requests_that_come_and_go_during_long_decodes_are_the_same() -> None:
    asks = [
        Ask(5, 200),
        replace(Ask(5, 7), arrive=50),
        replace(Ask(5, 200), arrive=60, abort=110),
        Ask(3, 80, arrive=90),
    ]
    for seats in (1, 2, 4):
        assert_twins(config=SchedulerConfig(max_num_seqs=seats, block_size=4, num_blocks=257), asks=asks)
