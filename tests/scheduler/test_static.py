"""`static` in closed form: a batch starts together, ends together, and everything it wastes can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import WAIT_REASONS, FinishReason, Request, Scheduler, SchedulerConfig

from .harness import Ask, Run

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=6)


def static(**settings: Any) -> SchedulerConfig:
    return SchedulerConfig(policy="static", batch_timeout_s=0.0, num_blocks=257).replaced(**settings)


def sums(run: Run, *names: str) -> list[tuple[int, ...]]:
    """Some sums of the plan of every step."""
    return [tuple(getattr(step.plan, name) for name in names) for step in run.steps]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(batch=lengths, by_eos=st.booleans())
def test_a_padded_batch_costs_its_rectangle(batch: list[tuple[int, int]], by_eos: bool) -> None:
    asks = [Ask(prompt, 30, stop_at=outputs) if by_eos else Ask(prompt, outputs) for prompt, outputs in batch]
    run = Run(static(), asks).finish()
    rows, longest = len(batch), max(prompt for prompt, _ in batch)
    steps = max(outputs for _, outputs in batch)
    assert len(run.steps) == steps
    prompts = sum(prompt for prompt, _ in batch)
    expected = [(rows, longest, rows * longest, prompts, 0, rows * longest - prompts, 0, rows * longest - prompts)]
    for k in range(1, steps):
        active = [prompt + k for prompt, outputs in batch if outputs > k]
        ended = rows - len(active)
        expected.append((rows, 1, rows, 0, len(active), 0, ended, rows * (longest + k) - sum(active)))
    assert expected == sums(
        run, "rows", "cols", "computed_tokens", "prefill_tokens", "decode_tokens", "padding_prompt",
        "padding_finished", "padding_context",
    )  # fmt: skip
    assert sum(step.plan.computed_tokens for step in run.steps) == rows * longest + rows * (steps - 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(batch=lengths)
def test_a_ragged_batch_computes_no_padding_and_ends_together_all_the_same(batch: list[tuple[int, int]]) -> None:
    run = Run(static(layout="ragged"), [Ask(*lengths) for lengths in batch]).finish()
    steps = max(outputs for _, outputs in batch)
    expected = [sum(prompt for prompt, _ in batch)]
    expected += [sum(outputs > k for _, outputs in batch) for k in range(1, steps)]
    assert [step.plan.computed_tokens for step in run.steps] == expected
    assert [len(step.finished) for step in run.steps] == [0] * (steps - 1) + [len(batch)]
    assert all(step.plan.slots_busy == len(batch) for step in run.steps)


def test_the_rectangle_by_hand() -> None:
    run = Run(static(), [Ask(5, 1), Ask(2, 3), Ask(3, 2)]).finish()
    assert sums(run, "computed_tokens", "padding_prompt", "padding_finished", "context_tokens", "padding_context") == [
        (15, 5, 0, 10, 5),
        (3, 0, 1, 3 + 4, 3 * 6 - 7),
        (3, 0, 2, 4, 3 * 7 - 4),
    ]
    shape = run.steps[0].plan.shape
    assert (shape.num_reqs, shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs) == (3, 15, 15, 3 * 15)
    assert (shape.logits_rows, run.steps[0].plan.real_shape.prefill_pairs) == (3, 15 + 3 + 6)


def test_left_pads_occupy_kv_for_ever_and_right_pads_do_not() -> None:
    asks = [Ask(2, 9), Ask(10, 2)]
    left = sum(step.plan.padding_context for step in Run(static(padding_side="left"), asks).finish().steps)
    right = sum(step.plan.padding_context for step in Run(static(padding_side="right"), asks).finish().steps)
    assert right < left


def fits(asks: list[Ask], block_size: int, usable: int, seats: int) -> list[int]:
    """Sizes of the batches: as many from the front as fit rows x (longest prompt + longest max_tokens) of KV."""
    sizes, start = [], 0
    while start < len(asks):
        size = 1
        while size < seats and start + size < len(asks):
            batch = asks[start : start + size + 1]
            row = -(-(max(ask.prompt for ask in batch) + max(ask.max_tokens for ask in batch)) // block_size)
            if row * len(batch) > usable:
                break
            size += 1
        sizes.append(size)
        start += size
    return sizes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(batch=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=12),
       block_size=st.integers(1, 8), spare=st.integers(0, 60), seats=st.integers(1, 6),
       watermark=st.sampled_from([0.0, 0.3]))  # fmt: skip
def test_batches_are_as_many_as_fit_the_longest_prompt_and_output(
    batch: list[tuple[int, int]], block_size: int, spare: int, seats: int, watermark: float
) -> None:
    asks = [Ask(*lengths) for lengths in batch]
    usable = max(-(-(ask.prompt + ask.max_tokens) // block_size) for ask in asks) + spare
    config = static(block_size=block_size, num_blocks=usable + 1, max_num_seqs=seats, watermark=watermark)
    run = Run(config, asks).finish()
    sizes = [len(step.plan.admitted) for step in run.steps if step.plan.admitted]
    if watermark == 0:
        assert sizes == fits(asks, block_size, usable, seats)
    for step in run.steps:
        if step.plan.admitted:  # whoever was kept out has no part in the batch: not in its rectangle, nor in its pads
            started = [run.asks[row.request].prompt for row in step.rows]
            assert step.plan.cols == max(started)
            assert step.plan.padding_context == len(started) * max(started) - sum(started)


def test_it_says_why_the_head_waits_at_the_start_and_during_a_batch() -> None:
    by_seats = Run(static(max_num_seqs=1), [Ask(3, 2), Ask(3, 2)]).finish()
    by_blocks = Run(static(num_blocks=5, block_size=4), [Ask(3, 5), Ask(12, 4)]).finish()
    reasons = [[WAIT_REASONS[step.plan.wait_reason] for step in run.steps] for run in (by_seats, by_blocks)]
    assert reasons[0] == ["seqs", "batch-closed", "none", "none"]
    assert reasons[1] == ["blocks", *["batch-closed"] * 4, *["none"] * 4]


def test_reserving_max_model_len_lets_in_fewer() -> None:
    config = static(block_size=8, num_blocks=17, max_model_len=64, kv_memory="reserve-max-model-len")
    run = Run(config, [Ask(4, 4)] * 3).finish()
    assert [len(step.plan.admitted) for step in run.steps if step.plan.admitted] == [2, 1]


def scheduler_at(timeout_s: float, seats: int = 8, **settings: Any) -> Scheduler:
    return Scheduler(SchedulerConfig(policy="static", batch_timeout_s=timeout_s, max_num_seqs=seats, **settings))


def test_a_batch_starts_at_the_latest_at_its_timeout() -> None:
    scheduler = scheduler_at(0.05)
    scheduler.add(Request(0, 3, 2), 1.0)
    assert scheduler.schedule(1.0).empty
    assert scheduler.wake_s == 1.05
    scheduler.add(Request(1, 3, 2), 1.03)
    assert scheduler.schedule(1.03).empty
    assert scheduler.wake_s == 1.05
    plan = scheduler.schedule(1.05)
    assert [request.request_id for request in plan.admitted] == [0, 1]
    assert scheduler.wake_s is None


def test_a_full_batch_starts_at_once() -> None:
    scheduler = scheduler_at(9.0, seats=2)
    scheduler.add(Request(0, 3, 2), 1.0)
    assert scheduler.schedule(1.0).empty
    scheduler.add(Request(1, 3, 2), 1.1)
    assert len(scheduler.schedule(1.1).admitted) == 2


def test_urgent_newcomers_do_not_put_the_timeout_off() -> None:
    scheduler = scheduler_at(0.05, scheduling_policy="priority")
    scheduler.add(Request(0, 3, 2, priority=5), 1.0)
    assert scheduler.schedule(1.0).empty
    scheduler.add(Request(1, 3, 2, priority=0), 1.04)
    assert not scheduler.schedule(1.05).empty, "the first of them came 0.05 s ago"


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_results_leave_at_the_end_of_the_batch_or_of_each_request(layout: Any) -> None:
    asks = [Ask(3, 1), Ask(3, 4), Ask(3, 2)]
    batch = Run(static(layout=layout), asks).finish()
    each = Run(static(layout=layout, release="request"), asks).finish()
    assert [[end.request for end in step.finished] for step in batch.steps] == [[], [], [], [0, 1, 2]]
    assert [[end.request for end in step.finished] for step in each.steps] == [[0], [2], [], [1]]
    assert [step.plan.computed_tokens for step in batch.steps] == [step.plan.computed_tokens for step in each.steps]
    assert not batch.scheduler.streams


def test_an_aborted_row_burns_on_and_is_not_delivered() -> None:
    run = Run(static(), [Ask(3, 4), Ask(3, 9, abort=2)]).finish()
    assert sums(run, "rows", "decode_tokens", "padding_finished") == [(2, 0, 0), (2, 2, 0), (2, 1, 1), (2, 1, 1)]
    assert list(run.ends) == [0]
    assert run.requests[1].finish_reason is FinishReason.ABORT
    assert run.requests[1].num_output_tokens == 2


def test_a_held_row_can_be_aborted_until_it_is_delivered() -> None:
    run = Run(static(), [Ask(3, 4), Ask(3, 1, abort=2)]).finish()
    assert list(run.ends) == [0]
    assert run.aborted == {1}


def test_a_row_whose_result_has_left_cannot_be_aborted_any_more() -> None:
    run = Run(static(release="request"), [Ask(3, 4), Ask(3, 1, abort=2)]).finish()
    assert run.requests[1].finish_reason is FinishReason.LENGTH
    assert not run.aborted


def test_the_name_of_a_row_whose_result_has_left_is_free_again() -> None:
    scheduler = Scheduler(static(release="request"))
    scheduler.add(Request("a", 3, 1))
    scheduler.add(Request("b", 3, 4))
    assert [request.request_id for request in scheduler.update(scheduler.schedule())] == ["a"]
    scheduler.add(Request("a", 3, 1))
    assert len(scheduler.waiting) == 1


@pytest.mark.parametrize("release", ["batch", "request"])
def test_the_next_batch_starts_when_the_last_row_is_aborted(release: Any) -> None:
    run = Run(static(max_num_seqs=1, release=release), [Ask(3, 9, abort=2), Ask(3, 1)]).finish()
    assert list(run.ends) == [1]
    assert run.tick == 3


def test_a_batch_whose_rows_all_stop_ends_with_the_last_of_them() -> None:
    run = Run(static(), [Ask(3, 30, stop_at=2), Ask(5, 30, stop_at=4), Ask(5, 30, stop_at=3)]).finish()
    assert len(run.steps) == 4
    assert [end.reason for end in run.steps[-1].finished] == [FinishReason.STOP] * 3
    assert [end.outputs for end in run.steps[-1].finished] == [2, 4, 3]


@pytest.mark.parametrize("by_eos", [False, True])
def test_the_rectangle_keeps_its_rows_under_async_scheduling(by_eos: bool) -> None:
    ends = [1, 5, 3]
    asks = [Ask(3, 9, stop_at=end) if by_eos else Ask(3, end) for end in ends]
    run = Run(static(async_scheduling=True), asks).finish()
    assert [step.plan.rows for step in run.steps] == [3] * (6 if by_eos else 5)
    finished = [sum(end <= k for end in ends) for k in range(6)]
    overrun = [sum(end == k for end in ends) for k in range(6)]
    if by_eos:  # in the step after its EOS a row is not known to have ended
        assert sums(run, "padding_finished", "padding_overrun") == [
            (gone - late, late) for gone, late in zip(finished, overrun, strict=True)
        ]
    else:
        assert sums(run, "padding_finished", "padding_overrun") == [(gone, 0) for gone in finished[:5]]


def test_prefill_ignores_the_token_budget() -> None:
    run = Run(static(max_num_batched_tokens=4), [Ask(30, 2), Ask(20, 2)]).finish()
    assert sums(run, "prefill_tokens", "decode_tokens") == [(50, 0), (0, 2)]
