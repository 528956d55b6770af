"""Async scheduling: step n+1 is planned before the tokens of n are known, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import FinishReason, Request, RequestStatus, Scheduler, SchedulerConfig

from .harness import Ask, Content, Run

ASYNC = SchedulerConfig(async_scheduling=True)
CONTENTS = pytest.mark.parametrize("content", ["counts", "tokens"])


def sums(run: Run, *names: str) -> list[tuple[int, ...]]:
    return [tuple(getattr(step.plan, name) for name in names) for step in run.steps]


@CONTENTS
def test_an_end_by_eos_costs_one_overrun_row(content: Content) -> None:
    run = Run(ASYNC, [Ask(3, 9, stop_at=2)], content=content).finish()
    names = ("computed_tokens", "prefill_tokens", "decode_tokens", "padding_overrun", "sampled")
    assert sums(run, *names) == [(3, 3, 0, 0, 1), (1, 0, 1, 0, 1), (1, 0, 0, 1, 0)]
    last = run.steps[2].plan
    assert last.dropped == [run.requests[0]]
    assert (last.shape.computed_tokens, last.real_shape.computed_tokens, last.real_shape.num_reqs) == (1, 0, 0)
    assert (last.real_shape.decode_context, last.real_shape.logits_rows) == (0, 0)


@CONTENTS
def test_an_end_by_eos_at_the_first_token_costs_one_too(content: Content) -> None:
    run = Run(ASYNC, [Ask(3, 9, stop_at=1), Ask(2, 3)], content=content).finish()
    assert sums(run, "computed_tokens", "padding_overrun") == [(5, 0), (2, 1), (1, 0)]


@CONTENTS
def test_an_end_by_length_costs_none(content: Content) -> None:
    run = Run(ASYNC, [Ask(3, 2), Ask(3, 4), Ask(3, 1)], content=content).finish()
    assert sums(run, "computed_tokens", "padding_overrun") == [(9, 0), (2, 0), (1, 0), (1, 0)]


@CONTENTS
def test_eos_as_the_last_token_by_length_costs_none(content: Content) -> None:
    run = Run(ASYNC, [Ask(3, 3, stop_at=3)], content=content).finish()
    assert len(run.steps) == 3
    assert run.ends[0].reason is FinishReason.STOP


@CONTENTS
def test_an_overrun_row_that_would_have_been_the_last_by_length_ends_nothing_twice(content: Content) -> None:
    run = Run(ASYNC, [Ask(3, 3, stop_at=2)], content=content).finish()
    assert run.ends[0].outputs == 2
    assert [len(step.finished) for step in run.steps] == [0, 1, 0]


@pytest.mark.parametrize("policy", ["chunked", "slots", "orca", "prefill-first"])
@CONTENTS
def test_outputs_are_the_same_as_without(content: Content, policy: str) -> None:
    asks = [Ask(4 + 3 * index, 5 + index, stop_at=1 + index if index % 2 else None, shared=9) for index in range(9)]
    config = SchedulerConfig(policy=policy, max_num_seqs=3, block_size=4, num_blocks=16, max_num_batched_tokens=32)
    sync = Run(config, asks, content=content, physical=True).finish()
    late = Run(config.replaced(async_scheduling=True), asks, content=content, physical=True).finish()
    assert sync.ends == late.ends
    assert sync.delivered == late.delivered
    overrun = sum(step.plan.padding_overrun for step in late.steps)
    early = sum(end.reason is FinishReason.STOP and end.outputs < asks[i].max_tokens for i, end in late.ends.items())
    if policy in ("chunked", "orca"):
        assert overrun == early
    else:  # a step that only prefills others computes no row for nothing
        assert 0 < overrun <= early


# Preemption while a token is in flight. Blocks of 2, 6 of them: at 6 tokens each, request 1 gives way to request 0.

TIGHT = SchedulerConfig(block_size=2, num_blocks=7, async_scheduling=True, enable_prefix_caching=False)


@CONTENTS
def test_a_token_in_flight_of_a_preempted_request_is_kept(content: Content) -> None:
    run = Run(TIGHT, [Ask(4, 8), Ask(4, 8)], content=content, physical=True)
    while not run.steps or not run.steps[-1].plan.preempted:
        run.step()
    assert [r.request_id for r in run.steps[3].plan.preempted] == [1]
    assert run.requests[1].status is RequestStatus.PREEMPTED
    assert len(run.delivered[1]) == 3, "that of step 2 came in after request 1 was preempted in step 3"
    run.finish()
    assert run.ends[1] == (1, FinishReason.LENGTH, 8)


@CONTENTS
def test_an_eos_in_flight_ends_a_request_that_was_just_preempted(content: Content) -> None:
    run = Run(TIGHT, [Ask(4, 8), Ask(4, 8, stop_at=3)], content=content).finish()
    assert [r.request_id for r in run.steps[3].plan.preempted] == [1]
    assert run.ends[1] == (1, FinishReason.STOP, 3)
    assert [end.request for end in run.steps[2].finished] == [1]
    assert sums(run, "padding_overrun") == [(0,)] * len(run.steps)
    assert sum(row.request == 1 for step in run.steps for row in step.rows) == 3


@CONTENTS
def test_a_request_that_outgrows_the_pool_still_gets_the_token_in_flight(content: Content) -> None:
    config = SchedulerConfig(block_size=4, num_blocks=3, async_scheduling=True)
    run = Run(config, [Ask(6, 30)], content=content).finish()
    assert run.ends[0] == (0, FinishReason.ERROR, 3)
    assert len(run.delivered[0]) == 3


@CONTENTS
def test_a_request_whose_eos_is_in_flight_has_not_outgrown_the_pool(content: Content) -> None:
    config = SchedulerConfig(block_size=4, num_blocks=3, async_scheduling=True)
    run = Run(config, [Ask(6, 30, stop_at=3)], content=content).finish()
    assert run.ends[0] == (0, FinishReason.STOP, 3), "as without async scheduling"


# Aborts


def two_in_flight() -> tuple[Scheduler, Any, Any, Request]:
    scheduler, request = Scheduler(ASYNC), Request("a", 3, 9)
    scheduler.add(request)
    return scheduler, scheduler.schedule(), scheduler.schedule(), request


def test_an_abort_with_one_step_in_flight_takes_effect_at_once() -> None:
    scheduler, request = Scheduler(ASYNC), Request("a", 3, 9)
    scheduler.add(request)
    plan = scheduler.schedule()
    assert scheduler.abort("a")
    scheduler.check_integrity()
    assert plan.dropped == [request]
    assert (request.status, request.num_output_tokens) == (RequestStatus.FINISHED, 0)
    assert not scheduler.update(plan)
    assert not scheduler.has_work


def test_an_abort_with_two_steps_in_flight_takes_effect_with_the_results_of_the_older() -> None:
    scheduler, older, newer, request = two_in_flight()
    assert scheduler.abort("a")
    assert request.unfinished
    assert not scheduler.update(older)
    scheduler.check_integrity()
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.ABORT, 1)
    assert not older.dropped
    assert newer.dropped == [request]
    assert not scheduler.update(newer)
    scheduler.check_integrity()
    assert not scheduler.has_work


def test_a_request_that_the_older_step_ends_is_not_aborted_any_more() -> None:
    scheduler = Scheduler(ASYNC)
    request, other = Request("a", 3, 1), Request("b", 3, 9)
    scheduler.add(request)
    scheduler.add(other)
    older, newer = scheduler.schedule(), scheduler.schedule()
    scheduler.abort("a")
    assert list(scheduler.update(older)) == [request]
    assert request.finish_reason is FinishReason.LENGTH
    scheduler.update(newer)
    assert [r.request_id for r in scheduler.schedule().aborted] == []


def test_an_abort_while_preempted_drops_the_token_in_flight() -> None:
    """Request 0 waits for its last token, request 1 finds no block: it preempts itself in an empty plan."""
    scheduler = Scheduler(SchedulerConfig(block_size=1, num_blocks=11, async_scheduling=True))
    first, second = Request(0, 4, 2), Request(1, 4, 9)
    scheduler.add(first)
    scheduler.add(second)
    older, newer = scheduler.schedule(), scheduler.schedule()
    scheduler.update(older)
    assert scheduler.schedule().empty
    assert second.status is RequestStatus.PREEMPTED
    assert scheduler.abort(1)
    assert second in newer.dropped
    assert second.num_output_tokens == 1
    assert list(scheduler.update(newer)) == [first]
    scheduler.check_integrity()
    assert not scheduler.has_work


def test_a_seat_given_on_while_its_old_row_is_in_flight_keeps_the_new_tokens() -> None:
    config = SchedulerConfig(max_num_seqs=1, async_scheduling=True)
    asks = [Ask(3, 9, stop_at=2), Ask(4, 3), Ask(5, 9, abort=9), Ask(2, 2)]
    run = Run(config, asks, content="tokens").finish()
    for index in (0, 1, 3):
        tokens = run.requests[index].tokens
        assert tokens is not None
        known = asks[index].prompt + run.ends[index].outputs
        assert tokens.tolist() == [asks[index].token(index, at) for at in range(known)]
