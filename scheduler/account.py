"""Turns what a policy scheduled into a plan: who samples, what is padded, and the exact sums of the step."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from .plan import IntArray, StepPlan, StepShape
from .request import Request
from .steady import SteadyPrefix
from .step import Step

if TYPE_CHECKING:
    from .scheduler import Scheduler


class Sums:
    """Sums over the rows outside the steady prefix; see StepPlan and StepShape for their meaning."""

    __slots__ = (
        "prefill", "decode", "recomputed", "longest", "context", "width", "decode_rows", "decode_context",
        "prefill_context", "prefill_pairs", "sampled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prefill = self.decode = self.recomputed = self.longest = self.context = self.width = 0
        self.decode_rows = self.decode_context = self.prefill_context = self.prefill_pairs = self.sampled = 0

    def add(self, request: Request, before: int, count: int) -> None:
        """Count one row of `count` tokens after `before` computed ones."""
        after = before + count
        if before >= request.max_computed and after <= request.num_prompt_tokens:
            self.prefill += count
        else:
            self._add_by_kind(request, before, count)
        if count > self.longest:
            self.longest = count
        if after + request.pad > self.width:
            self.width = after + request.pad
        self.context += after
        if count == 1 and before:
            self.decode_rows += 1
            self.decode_context += after
        else:
            self.prefill_context += after
            self.prefill_pairs += count * before + count * (count + 1) // 2

    def _add_by_kind(self, request: Request, before: int, count: int) -> None:
        """Of a row's tokens, those computed before are recomputed; the rest belongs to the prompt or to the output."""
        again = min(max(request.max_computed - before, 0), count)
        prompt = min(max(request.num_prompt_tokens - before - again, 0), count - again)
        self.recomputed += again
        self.prefill += prompt
        self.decode += count - again - prompt


_NO_ROWS = Sums()


def account(scheduler: Scheduler, step: Step) -> StepPlan:
    """Commit the step: advance its requests and describe it as a plan."""
    plan = StepPlan()
    plan.step = scheduler.num_steps
    plan.layout = scheduler.layout
    _note_state(plan, step, scheduler)
    sums = _NO_ROWS
    if step.changed:
        sums = _advance_tail(plan, step)
        _note_changes(plan, step)
    context = _advance_steady(plan, scheduler.seats.steady) if step.steady_runs else 0
    steady = plan.num_steady
    plan.empty = not (steady or plan.tail)
    plan.decode_tokens = sums.decode + steady
    plan.context_tokens = context + sums.context
    plan.sampled = steady + sums.sampled
    plan.shape = plan.real_shape = shape = _real_shape(plan, sums, context, scheduler)
    if scheduler.padded and shape.num_reqs:
        _pad_rectangle(plan, sums, scheduler)
    elif scheduler.config.cudagraph_capture_sizes:
        _pad_to_graph(plan, scheduler.config.cudagraph_capture_sizes)
    plan.computed_tokens, plan.logits_rows = plan.shape.computed_tokens, plan.shape.logits_rows
    return plan


def _note_state(plan: StepPlan, step: Step, scheduler: Scheduler) -> None:
    """What is so once the step is planned, before it runs."""
    seats, pool = scheduler.seats, scheduler.kv.pool
    plan.waiting = waiting = len(scheduler.waiting)
    plan.wait_reason = step.wait_reason if waiting else 0
    plan.slots_busy = seats.num_taken
    plan.running = len(seats.steady.members) + len(seats.tail) + len(seats.ending)
    plan.blocks_total = total = pool.usable
    plan.blocks_cached = cached = len(pool.cached)
    plan.blocks_used = total - cached - len(pool.unhashed)
    plan.steady_blocks = step.steady_blocks


def _note_changes(plan: StepPlan, step: Step) -> None:
    plan.cached_tokens = step.cached_tokens
    plan.admitted, plan.preempted = step.admitted, step.preempted
    plan.joined, plan.left, plan.new_blocks = step.joined, step.left, step.new_blocks


def _advance_steady(plan: StepPlan, steady: SteadyPrefix) -> int:
    """Advance the steady prefix; returns the KV positions that its rows read."""
    plan.clock = steady.clock
    plan.num_steady = len(steady.members)
    ending, eos_ends = steady.tick()
    if ending:
        plan.ending = (*ending, *plan.ending)
    if eos_ends:
        plan.eos_ends = (*eos_ends, *plan.eos_ends)
    return steady.context


def _advance_tail(plan: StepPlan, step: Step) -> Sums:
    """Advance the rows outside the steady prefix; a row that catches up samples a token."""
    sums = Sums()
    plan.tail = tail = []
    sampling = []
    for request, count in step.rows.items():
        before = request.stored_computed
        sums.add(request, before, count)
        request.stored_computed = after = before + count
        samples = after == request.stored_tokens
        tail.append((request, before, count, samples))
        if samples:
            sampling.append(request)
    if sampling:
        _sample(plan, sampling)
        sums.sampled = len(sampling)
    plan.prefill_tokens, plan.recomputed_tokens = sums.prefill, sums.recomputed
    plan.cols = sums.longest or 1
    return sums


def _sample(plan: StepPlan, sampling: list[Request]) -> None:
    plan.first_tokens, plan.ending, plan.eos_ends = first_tokens, ending, eos_ends = [], [], []
    for request in sampling:
        request.stored_tokens = tokens = request.stored_tokens + 1
        outputs = tokens - request.num_prompt_tokens
        if outputs == 1:
            first_tokens.append(request)
        if tokens >= request.end_at:
            ending.append(request)
        if outputs == request.eos_at:
            eos_ends.append(request)


def _real_shape(plan: StepPlan, sums: Sums, context: int, scheduler: Scheduler) -> StepShape:
    steady = plan.num_steady
    total = plan.prefill_tokens + plan.decode_tokens + plan.recomputed_tokens
    plan.rows = requests = steady + len(plan.tail)
    decode_rows = steady + sums.decode_rows
    return StepShape(
        "ragged", total, requests, requests, decode_rows, context + sums.decode_context, total - decode_rows,
        sums.prefill_context, sums.prefill_pairs, scheduler.per_request, plan.step,
    )  # fmt: skip


def _pad_to_graph(plan: StepPlan, sizes: tuple[int, ...]) -> None:
    """Pad a flat row to the next captured size; beyond the largest there is no graph and no padding."""
    real = plan.real_shape
    index = bisect_left(sizes, real.computed_tokens)
    if index == len(sizes) or sizes[index] == real.computed_tokens or not real.computed_tokens:
        return
    plan.padding_graph = sizes[index] - real.computed_tokens
    plan.shape = StepShape(
        "ragged", sizes[index], real.num_reqs, real.logits_rows, real.decode_tokens, real.decode_context,
        real.prefill_tokens, real.prefill_context, real.prefill_pairs, real._arrays, plan.step,
    )  # fmt: skip


def _pad_rectangle(plan: StepPlan, sums: Sums, scheduler: Scheduler) -> None:
    """Make the step rows x longest: every row is computed to the longest and reads the longest context.

    Rows that have ended but burn on with their batch (`static`) are part of the rectangle.
    """
    real, steady, cols = plan.real_shape, scheduler.seats.steady, plan.cols
    burning = len(scheduler.seats.held)
    width = max(sums.width, steady.max_width() if plan.num_steady else 0)
    rows = plan.rows = real.num_reqs + burning
    plan.padding_prompt = real.num_reqs * cols - real.computed_tokens
    plan.padding_finished = burning * cols
    plan.padding_context = rows * width - plan.context_tokens
    if cols == 1:
        work = (rows, rows * width, 0, 0, 0)
    else:
        pairs = cols * width - cols * (cols - 1) // 2
        work = (0, 0, rows * cols, rows * width, rows * pairs)
    plan.shape = StepShape("padded", rows * cols, rows, rows, *work, _rectangle_rows, (rows, cols, width))


def _rectangle_rows(key: tuple[int, int, int]) -> tuple[IntArray, IntArray]:
    rows, cols, width = key
    return np.full(rows, cols, dtype=np.int64), np.full(rows, width - cols, dtype=np.int64)
