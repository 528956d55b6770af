"""Turns what a policy scheduled into a plan: who samples, what is padded, and the exact sums of the step."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from .plan import FACTS, IntArray, StepPlan, StepShape
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
_BLOCKS_USED = FACTS.index("blocks_used")


def account(scheduler: Scheduler, step: Step) -> StepPlan:
    """Commit the step: advance its requests and describe it as a plan."""
    seats = scheduler.seats
    plan = StepPlan()
    plan.step = scheduler.num_steps
    plan.layout = scheduler.layout
    running = len(seats.steady.members) + len(seats.tail) + len(seats.ending)
    sums = _NO_ROWS
    if step.changed:
        sums = _advance_tail(plan, step)
        plan.admitted, plan.preempted = step.admitted, step.preempted
        plan.joined, plan.left, plan.new_blocks = step.joined, step.left, step.new_blocks
    steady = context = 0
    if step.steady_runs:
        context = advance_steady(plan, seats.steady)
        steady = plan.num_steady
        plan.steady_blocks = step.steady_blocks
    requests = steady + len(plan.tail)
    plan.empty = not requests
    total = steady + sums.prefill + sums.decode + sums.recomputed
    decodes = steady + sums.decode_rows
    plan.shape = plan.real_shape = shape = StepShape(
        "ragged", total, requests, requests, decodes, context + sums.decode_context, total - decodes,
        sums.prefill_context, sums.prefill_pairs, scheduler.per_request, plan.step,
    )  # fmt: skip
    prompt = finished = graph = context_padding = 0
    rows = requests
    if scheduler.padded and requests:
        prompt, finished, context_padding = _pad_rectangle(plan, sums, context, scheduler)
        rows, shape = plan.shape.num_reqs, plan.shape
    elif scheduler.config.cudagraph_capture_sizes:
        graph = _pad_to_graph(plan, scheduler.config.cudagraph_capture_sizes)
        shape = plan.shape
    pool = scheduler.kv.pool
    waiting, cached, blocks = len(scheduler.waiting), len(pool.cached), pool.usable
    plan.facts = (
        context + sums.context, context_padding, shape.decode_context, shape.prefill_context, shape.prefill_pairs,
        seats.num_taken, seats.num_slots, running, waiting, step.wait_reason if waiting else 0,
        sums.prefill, steady + sums.decode, sums.recomputed, step.cached_tokens, shape.computed_tokens,
        prompt, finished, graph, 0, shape.logits_rows, steady + sums.sampled, requests, rows, sums.longest or 1,
        shape.decode_tokens, shape.prefill_tokens, blocks - cached - len(pool.unhashed), cached, blocks,
    )  # fmt: skip
    return plan


def repeat(scheduler: Scheduler, last: StepPlan, step: Step) -> StepPlan:
    """The same decodes once more, when nothing has changed since the plan `last`, which was nothing but decodes."""
    plan = StepPlan()
    plan.step = scheduler.num_steps
    plan.layout = last.layout
    context = advance_steady(plan, scheduler.seats.steady)
    plan.steady_blocks = step.steady_blocks
    count = plan.num_steady
    plan.shape = plan.real_shape = StepShape(
        "ragged", count, count, count, count, context, 0, 0, 0, scheduler.per_request, plan.step
    )
    pool = scheduler.kv.pool
    used = pool.usable - len(pool.cached) - len(pool.unhashed)
    plan.facts = (context, 0, context, *last.facts[3:_BLOCKS_USED], used, *last.facts[_BLOCKS_USED + 1 :])
    return plan


def advance_steady(plan: StepPlan, steady: SteadyPrefix) -> int:
    """Advance the steady prefix; returns the KV positions that its rows read."""
    plan.clock = steady.clock
    plan.num_steady = len(steady.members)
    ends = steady.tick()
    if ends:
        plan.ending = [*ends.values(), *plan.ending]
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
    return sums


def _sample(plan: StepPlan, sampling: list[Request]) -> None:
    for request in sampling:
        request.stored_tokens += 1
    plan.first_tokens = [r for r in sampling if r.stored_tokens - r.num_prompt_tokens == 1]
    plan.ending = [r for r in sampling if r.stored_tokens == r.last_at]


def _pad_to_graph(plan: StepPlan, sizes: tuple[int, ...]) -> int:
    """Pad a flat row to the next captured size; returns the rows added, 0 beyond the largest size."""
    real = plan.real_shape
    index = bisect_left(sizes, real.computed_tokens)
    if index == len(sizes) or sizes[index] == real.computed_tokens or not real.computed_tokens:
        return 0
    plan.shape = real.with_rows(sizes[index])
    return sizes[index] - real.computed_tokens


def _pad_rectangle(plan: StepPlan, sums: Sums, context: int, scheduler: Scheduler) -> tuple[int, int, int]:
    """Make the step rows x longest: every row is computed to the longest and reads the longest context.

    Rows that have ended but burn on with their batch (`static`) are part of the rectangle. Returns the padded rows by
    cause, ``prompt`` and ``finished-row``, and the padded KV positions.
    """
    real, steady = plan.real_shape, scheduler.seats.steady
    cols = sums.longest or 1
    seats = scheduler.seats
    widths = [sums.width, steady.max_width() if plan.num_steady else 0, seats.held_width]
    burning = len(seats.held)
    if scheduler.policy.holds and seats.ending:  # their last token is in flight
        burning += len(seats.ending)
        widths += [request.stored_tokens + request.pad for request in seats.ending.values()]
    width = max(widths)
    rows = real.num_reqs + burning
    if cols == 1:
        work = (rows, rows * width, 0, 0, 0)
    else:
        pairs = cols * width - cols * (cols - 1) // 2
        work = (0, 0, rows * cols, rows * width, rows * pairs)
    plan.shape = StepShape("padded", rows * cols, rows, rows, *work, _rectangle_rows, (rows, cols, width))
    return real.num_reqs * cols - real.computed_tokens, burning * cols, rows * width - context - sums.context


def _rectangle_rows(key: tuple[int, int, int]) -> tuple[IntArray, IntArray]:
    rows, cols, width = key
    return np.full(rows, cols, dtype=np.int64), np.full(rows, width - cols, dtype=np.int64)
