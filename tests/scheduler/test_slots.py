"""`slots`: a free seat prefills the queue's front whole and alone; then all seats decode, in the order of the seats."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import WAIT_REASONS, SchedulerConfig

from .harness import Ask, Run


def slots(**settings: Any) -> SchedulerConfig:
    return SchedulerConfig(policy="slots", **settings)


def rows(run: Run) -> list[list[tuple[int, int, int, int]]]:
    """Per step: request, seat, tokens before, tokens scheduled."""
    return [[row[:4] for row in step.rows] for step in run.steps]


def test_each_seat_prefills_alone_and_then_all_decode() -> None:
    run = Run(slots(max_num_seqs=2), [Ask(5, 3), Ask(4, 2), Ask(6, 2)]).finish()
    assert rows(run) == [
        [(0, 0, 0, 5)],
        [(1, 1, 0, 4)],
        [(0, 0, 5, 1), (1, 1, 4, 1)],
        [(2, 1, 0, 6)],
        [(0, 0, 6, 1), (2, 1, 6, 1)],
    ]
    assert [len(step.finished) for step in run.steps] == [0, 0, 1, 0, 2]


def test_the_token_budget_does_not_bind() -> None:
    run = Run(slots(max_num_batched_tokens=2, max_num_seqs=4), [Ask(9, 2), Ask(9, 2), Ask(9, 2)]).finish()
    assert [step.plan.computed_tokens for step in run.steps] == [9, 9, 9, 3]


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
def test_rows_and_blocks_go_by_seat_and_not_by_admission(plain: bool) -> None:
    asks = [Ask(3, 1), Ask(3, 9), Ask(4, 9)]  # request 2 takes seat 0 after request 1 took seat 1
    run = Run(slots(max_num_seqs=2, block_size=3), asks, plain=plain).finish()
    for step in run.steps:
        assert [row.slot for row in step.rows] == sorted(row.slot for row in step.rows)
    both = []
    for step in run.steps:
        got = {int(request.request_id): ids for request, _, ids in step.plan.block_grants()}
        if len(got) == 2:
            both.append((got[2], got[1]))
    assert both == [([5], [6]), ([7], [8])], "seat 0, with request 2, is served first"


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
def test_results_come_in_the_order_of_the_seats(plain: bool) -> None:
    run = Run(slots(max_num_seqs=2), [Ask(3, 1), Ask(3, 3), Ask(3, 2)], plain=plain).finish()
    assert [end.request for end in run.steps[-1].finished] == [2, 1]


def test_blocks_come_back_in_logical_order_and_the_last_goes_out_first() -> None:
    run = Run(slots(max_num_seqs=1, block_size=2, num_blocks=9), [Ask(6, 1), Ask(5, 1)]).finish()
    grants = [[ids for _, _, ids in step.plan.block_grants()] for step in run.steps]
    assert grants == [[[1, 2, 3]], [[3, 2, 1]]]


def test_a_seat_that_empties_during_the_sweep_waits_for_the_next_sweep() -> None:
    run = Run(slots(max_num_seqs=2), [Ask(3, 1), Ask(3, 2), Ask(3, 1)]).finish()
    assert rows(run) == [[(0, 0, 0, 3)], [(1, 1, 0, 3)], [(1, 1, 3, 1)], [(2, 0, 0, 3)]]
    assert [WAIT_REASONS[step.plan.wait_reason] for step in run.steps] == [*["batch-closed"] * 3, "none"]


def test_one_token_answers_keep_sweeping() -> None:
    run = Run(slots(max_num_seqs=2), [Ask(3, 1)] * 5).finish()
    assert [row.slot for step in run.steps for row in step.rows] == [0, 1, 0, 1, 0]


def test_the_head_waits_for_blocks_and_for_seats() -> None:
    blocks = Run(slots(max_num_seqs=2, block_size=4, num_blocks=4), [Ask(8, 3), Ask(8, 1)]).finish()
    assert [WAIT_REASONS[step.plan.wait_reason] for step in blocks.steps][1] == "blocks"
    seats = Run(slots(max_num_seqs=1), [Ask(8, 2), Ask(8, 1)]).finish()
    assert [WAIT_REASONS[step.plan.wait_reason] for step in seats.steps][1] == "seqs"


def test_it_can_end_one_token_before_max_model_len() -> None:
    run = Run(slots(max_model_len=10, model_len_margin=1), [Ask(4, 99)]).finish()
    assert run.ends[0].outputs == 5  # 4 + 5 = 10 - 1
