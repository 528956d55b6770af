"""How requests end: EOS, stop tokens, lengths, errors and aborts, in every state they can be in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from scheduler import FinishReason, Request, RequestRefused, RequestStatus, Scheduler, SchedulerConfig

from .harness import EOS, STOP, Ask, Content, Run

STOPPED, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def answer(scheduler: Scheduler, *sampled: int) -> Sequence[Request]:
    """Plan a step and give it its tokens; returns who ended."""
    plan = scheduler.schedule()
    scheduler.rows(plan)
    return scheduler.update(plan, list(sampled))


@pytest.mark.parametrize("content", ["counts", "tokens"])
@pytest.mark.parametrize(
    ("ask", "reason", "outputs"),
    [
        (Ask(3, 9, stop_at=4), STOPPED, 4),
        (Ask(3, 9, stop_at=1), STOPPED, 1),
        (Ask(3, 9, stop_at=9), STOPPED, 9),
        (Ask(3, 9, stop_at=10), LENGTH, 9),
        (Ask(3, 9), LENGTH, 9),
        (Ask(3, 1), LENGTH, 1),
        (Ask(3, 9, stop_at=4, ignore_eos=True), LENGTH, 9),
        (Ask(3, 9, stop_at=4, min_tokens=4), STOPPED, 4),
        (Ask(3, 9, stop_at=4, min_tokens=5), LENGTH, 9),
        (Ask(28, 9, stop_at=3), STOPPED, 3),
        (Ask(28, 9, min_tokens=9), LENGTH, 4),
        (Ask(28, 9, stop_at=4, min_tokens=5), LENGTH, 4),
    ],
)
def test_eos_then_length_ends_a_request(content: Content, ask: Ask, reason: FinishReason, outputs: int) -> None:
    run = Run(SchedulerConfig(max_model_len=32), [ask], content=content).finish()
    assert (run.ends[0].reason, run.ends[0].outputs) == (reason, outputs)
    assert len(run.delivered[0]) == outputs, "EOS itself is an output; nothing comes after it"
    assert len(run.steps) == outputs


def test_a_stop_token_ends_its_own_request_only() -> None:
    asks = [Ask(3, 9, stop_at=4, stop_token=True), Ask(3, 9, stop_at=4, stop_token=True, min_tokens=5), Ask(3, 9)]
    run = Run(SchedulerConfig(), asks, content="tokens").finish()
    assert [run.ends[index].reason for index in range(3)] == [STOPPED, LENGTH, LENGTH]
    other = Scheduler(SchedulerConfig(), token_rows=True)
    other.add(Request(0, [7, 8], 3, stop_token_ids=[STOP]))
    other.add(Request(1, [7, 9], 3))
    finished = answer(other, STOP, STOP)
    assert [request.request_id for request in finished] == [0]


def test_a_stop_token_that_is_eos_ends_a_request_that_ignores_eos() -> None:
    scheduler = Scheduler(SchedulerConfig(eos_token_ids=(EOS,)), token_rows=True)
    scheduler.add(Request(0, [7, 8], 3, ignore_eos=True, stop_token_ids=[EOS]))
    assert answer(scheduler, EOS)[0].finish_reason is STOPPED


def test_a_model_may_have_several_eos_tokens() -> None:
    scheduler = Scheduler(SchedulerConfig(eos_token_ids=(EOS, 99)), token_rows=True)
    scheduler.add(Request(0, [7, 8], 3))
    scheduler.add(Request(1, [7, 9], 3))
    finished = answer(scheduler, 99, EOS)
    assert [request.finish_reason for request in finished] == [STOPPED, STOPPED]


def test_requests_that_end_in_one_step_come_in_running_order() -> None:
    run = Run(SchedulerConfig(), [Ask(3, 3), Ask(3, 9, stop_at=3), Ask(3, 3), Ask(3, 2, arrive=1)]).finish()
    assert [end.request for end in run.steps[2].finished] == [0, 1, 2, 3]


def test_outputs_are_kept_in_the_requests_tokens() -> None:
    run = Run(SchedulerConfig(), [Ask(3, 9, stop_at=4)], content="tokens").finish()
    tokens = run.requests[0].tokens
    assert tokens is not None
    assert tokens.tolist() == [100_000, 100_001, 100_002, 100_003, 100_004, 100_005, EOS]


def test_only_a_request_that_outgrew_the_pool_ends_with_an_error() -> None:
    run = Run(SchedulerConfig(block_size=2, num_blocks=7), [Ask(4, 30), Ask(4, 2)]).finish()
    assert run.ends[1] == (1, LENGTH, 2)
    assert run.ends[0] == (0, FinishReason.ERROR, 12 - 4 + 1), "12 places, and one output that has none yet"


# Aborts. A shortage of blocks: request 1 is preempted in the step of tick 3, and waits until request 0 has ended.

TIGHT = SchedulerConfig(block_size=2, num_blocks=7, enable_prefix_caching=False)
PAIR = (Ask(4, 8), Ask(4, 8))


def state_of(run: Run, index: int) -> RequestStatus:
    return run.requests[index].status


@pytest.mark.parametrize(
    ("config", "asks", "tick", "status", "outputs"),
    [
        (SchedulerConfig(max_num_seqs=1), [Ask(3, 9), Ask(3, 9)], 2, RequestStatus.WAITING, 0),
        (SchedulerConfig(max_num_batched_tokens=4), [Ask(2, 9), Ask(30, 9)], 3, RequestStatus.RUNNING, 0),
        (SchedulerConfig(), [Ask(3, 9), Ask(3, 9)], 3, RequestStatus.RUNNING, 3),
        (TIGHT, PAIR, 4, RequestStatus.PREEMPTED, 3),
        (SchedulerConfig(policy="static", batch_timeout_s=0), [Ask(3, 9), Ask(3, 2)], 4, RequestStatus.HELD, 2),
    ],
    ids=["waiting", "prefilling", "decoding", "preempted", "held"],
)
def test_an_abort_ends_a_request_in_any_state(
    config: SchedulerConfig, asks: list[Ask], tick: int, status: RequestStatus, outputs: int
) -> None:
    run = Run(config, [asks[0], Ask(**vars(asks[1]) | {"abort": tick})])
    while run.tick < tick:
        run.step()
    assert state_of(run, 1) is status
    run.finish()
    assert run.aborted == {1}
    assert run.requests[1].finish_reason is FinishReason.ABORT
    assert run.requests[1].num_output_tokens == len(run.delivered[1]) == outputs
    assert list(run.ends) == [0]
    assert run.ends[0].reason is LENGTH
    assert run.scheduler.kv.pool.num_used == 0


def test_an_aborted_request_frees_its_seat_and_blocks_for_the_next_step() -> None:
    run = Run(SchedulerConfig(max_num_seqs=1, block_size=4, num_blocks=4), [Ask(9, 9, abort=2), Ask(9, 1)])
    for _ in range(3):
        run.step()
    assert [(row.request, row.slot, row.scheduled) for row in run.steps[2].rows] == [(1, 0, 9)]


@pytest.mark.parametrize("content", ["counts", "tokens"])
def test_a_token_in_flight_of_an_aborted_request_is_dropped(content: Content) -> None:
    asks = [Ask(3, 9, abort=2, abort_in_flight=True), Ask(3, 9)]
    run = Run(SchedulerConfig(), asks, content=content).finish()
    plan = run.steps[2].plan
    assert plan.dropped == [run.requests[0]]
    assert run.requests[0].num_output_tokens == len(run.delivered[0]) == 2
    assert plan.sampled == 1, "sampled counts the tokens that are kept"
    if content == "tokens":
        assert run.requests[0].tokens is not None
        assert len(run.requests[0].tokens) == 3 + 2


def test_an_abort_while_the_last_token_is_in_flight_wins() -> None:
    run = Run(SchedulerConfig(), [Ask(3, 2, abort=1, abort_in_flight=True)]).finish()
    assert not run.ends
    assert run.requests[0].finish_reason is FinishReason.ABORT


def test_an_abort_is_told_in_the_next_plan() -> None:
    run = Run(SchedulerConfig(), [Ask(3, 9, abort=1), Ask(3, 9, abort=1, abort_in_flight=True), Ask(3, 9)]).finish()
    assert [[int(r.request_id) for r in step.plan.aborted] for step in run.steps][:4] == [[], [0], [1], []]
    assert [[int(r.request_id) for r in step.plan.arrived] for step in run.steps][:2] == [[0, 1, 2], []]


def test_only_an_unfinished_request_can_be_aborted() -> None:
    scheduler = Scheduler(SchedulerConfig())
    assert not scheduler.abort("nobody")
    scheduler.add(Request("a", 3, 1))
    scheduler.update(scheduler.schedule())
    assert not scheduler.abort("a")
    scheduler.add(Request("a", 3, 1))
    assert scheduler.abort("a")
    assert not scheduler.abort("a")


def test_an_id_is_free_again_after_the_end_and_taken_before() -> None:
    scheduler = Scheduler(SchedulerConfig())
    scheduler.add(Request("a", 3, 1))
    with pytest.raises(RequestRefused, match="another unfinished request has this id"):
        scheduler.add(Request("a", 3, 1))
    scheduler.update(scheduler.schedule())
    scheduler.add(Request("a", 3, 1))


def test_a_prompt_may_be_given_by_its_length_alone() -> None:
    assert Request(0, 5, 1).num_prompt_tokens == 5
    assert Request(0, np.int64(5), 1).num_prompt_tokens == 5  # type: ignore[arg-type] # as it comes out of a table


def test_a_request_is_added_once() -> None:
    scheduler, request = Scheduler(SchedulerConfig()), Request(0, 5, 1)
    scheduler.add(request)
    scheduler.update(scheduler.schedule())
    with pytest.raises(RuntimeError, match="added"):
        scheduler.add(request)


def test_a_stop_string_ends_a_request_from_outside() -> None:
    scheduler = Scheduler(SchedulerConfig(), token_rows=True)
    request = Request(0, [7, 8], 9)
    scheduler.add(request)
    answer(scheduler, 50)
    scheduler.finish(request, STOPPED)
    scheduler.check_integrity()
    assert (request.finish_reason, request.num_output_tokens) == (STOPPED, 1)
    assert not scheduler.has_work


# Results


def running(**settings: Any) -> tuple[Scheduler, Any]:
    scheduler = Scheduler(SchedulerConfig(**settings), token_rows=True)
    scheduler.add(Request(0, [7, 8], 9))
    scheduler.add(Request(1, [7, 9], 9))
    answer(scheduler, 50, 51)
    return scheduler, scheduler.schedule()


def test_results_are_taken_once_each_and_in_order() -> None:
    scheduler, plan = running()
    scheduler.update(plan)
    with pytest.raises(RuntimeError, match="order"):
        scheduler.update(plan)


def test_no_second_step_is_planned_before_results_and_no_third_under_async_scheduling() -> None:
    scheduler, _ = running()
    with pytest.raises(RuntimeError, match="in flight"):
        scheduler.schedule()
    scheduler, _ = running(async_scheduling=True)
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="in flight"):
        scheduler.schedule()


def test_one_sampled_token_is_wanted_for_each_row() -> None:
    scheduler, plan = running()
    scheduler.rows(plan)
    with pytest.raises(ValueError, match="2"):
        scheduler.update(plan, [50])


def test_rows_are_asked_for_before_the_next_plan() -> None:
    scheduler, plan = running()
    rows = scheduler.rows(plan)
    scheduler.update(plan, np.array([50, 51], dtype=np.int32))
    scheduler.schedule()
    assert scheduler.rows(plan) is rows
    scheduler, plan = running(async_scheduling=True)
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="before the next"):
        scheduler.rows(plan)


def test_rows_of_a_plan_are_whole_even_after_an_abort() -> None:
    scheduler, plan = running()
    scheduler.update(plan)
    plan = scheduler.schedule()
    scheduler.abort(0)
    rows = scheduler.rows(plan)
    assert len(rows.slots) == len(rows.computed) == len(rows.scheduled) == len(rows.samples) == len(rows.requests) == 2
