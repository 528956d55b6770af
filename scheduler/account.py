"""Turns what a policy scheduled into a plan: who samples, what is padded, and the exact sums of the step."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from .plan import FACTS, IntArray, StepPlan, StepShape
from .request import Request
from .step import Step

if TYPE_CHECKING:
    from .scheduler import Scheduler


TailSums = tuple[int, int, int, int, int, int, int, int, int]
"""Sums over the rows outside the steady prefix: prefill, decode and recomputed tokens, the longest row, decode rows and
the KV positions they read, those of the prefills and their pairs (see StepShape), and rows that sample."""

_NO_ROWS: TailSums = (0, 0, 0, 0, 0, 0, 0, 0, 0)
_SAME = slice(FACTS.index("prefill_context"), FACTS.index("blocks_used"))
_BEFORE_PADDING = slice(FACTS.index("slots_busy"), FACTS.index("computed_tokens"))
_BLOCKS = slice(FACTS.index("blocks_used"), None)


def account(scheduler: Scheduler, step: Step) -> StepPlan:
    """Commit the step: advance its requests and describe it as a plan."""
    seats, pool = scheduler.seats, scheduler.kv.pool
    plan = StepPlan()
    plan.step = number = scheduler.num_steps
    plan.layout = scheduler.layout
    plan.ending = ()
    rows = len(step.rows)
    prefill, decode, again, longest, decode_rows, decode_context, prefill_context, pairs, sampled = (
        _advance_tail(plan, step.rows) if rows else _NO_ROWS
    )
    if step.turnover:
        plan.admitted, plan.preempted = step.admitted, step.preempted
        plan.joined, plan.left = step.joined, step.left
    else:
        plan.quiet = not sampled
    if step.steady_runs:
        decode_context += seats.steady.advance(plan)
        steady = plan.num_steady
        rows += steady
        decode += steady
        decode_rows += steady
        sampled += steady
    plan.empty = not rows
    total = prefill + decode + again
    prefill_rows = total - decode_rows
    plan.shape = plan.real_shape = StepShape(
        "ragged", total, rows, rows, decode_rows, decode_context, prefill_rows, prefill_context, pairs,
        scheduler.per_request, number,
    )  # fmt: skip
    taken, waiting = seats.num_slots - len(seats.free), len(scheduler.waiting)
    cached, blocks = len(pool.cached), pool.usable
    plan.facts = (
        decode_context + prefill_context, 0, decode_context, prefill_context, pairs,
        taken, seats.num_slots, taken - len(seats.held), waiting, step.wait_reason if waiting else 0,
        prefill, decode, again, step.cached_tokens, total, 0, 0, 0, 0,
        rows, sampled, rows, rows, longest or 1, decode_rows, prefill_rows,
        blocks - cached - len(pool.unhashed), cached, blocks,
    )  # fmt: skip
    if scheduler.tracks:
        plan.steady_blocks = step.steady_blocks
        plan.new_blocks = step.new_blocks if step.changed else ()  # else it is the next step's to fill
    if scheduler.pads and rows:
        _pad(plan, scheduler)
    return plan


def same_facts(plan: StepPlan) -> tuple[int, ...]:
    """What stays as it is while the decodes of a plan repeat; for `repeat`."""
    return plan.facts[_SAME]


def repeat(scheduler: Scheduler, step: Step, same: tuple[int, ...]) -> StepPlan | None:
    """The same decodes once more, when nothing has changed since a plan that was nothing but decodes, whose
    `same_facts` are given. None when a policy must be asked, for want of blocks.
    """
    kv, steady = scheduler.kv, scheduler.seats.steady
    pool, needing = kv.pool, steady.needing_block
    plan = StepPlan()
    if scheduler.tracks:
        step.steady_blocks = None
    if needing and kv.paged:
        if len(needing) > len(pool.unhashed):
            return None
        step.grow_steady(needing)
    if kv.caching:
        kv.begin_step()
        step.offer_filled()
    if scheduler.tracks:
        plan.steady_blocks = step.steady_blocks
    plan.step = number = scheduler.num_steps
    plan.layout = scheduler.layout
    plan.tail = plan.ending = plan.finished = ()
    plan.empty, plan.quiet = False, True
    context = steady.advance(plan)
    count = plan.num_steady
    plan.shape = plan.real_shape = StepShape(
        "ragged", count, count, count, count, context, 0, 0, 0, scheduler.per_request, number
    )
    cached, blocks = len(pool.cached), pool.usable
    plan.facts = (context, 0, context, *same, blocks - cached - len(pool.unhashed), cached, blocks)
    return plan


def _advance_tail(plan: StepPlan, rows: dict[Request, int]) -> TailSums:
    """Advance the rows outside the steady prefix; a row that catches up samples a token."""
    prefill = decode = again = longest = decode_rows = decode_context = prefill_context = pairs = 0
    plan.tail = tail = []
    sampling = []
    for request, count in rows.items():
        before = request.stored_computed
        request.stored_computed = after = before + count
        if before >= request.max_computed and after <= request.num_prompt_tokens:
            prefill += count
        else:
            recomputed, prompt = _by_kind(request, before, count)
            again, prefill, decode = again + recomputed, prefill + prompt, decode + count - recomputed - prompt
        if count > longest:
            longest = count
        if count == 1:
            decode_rows += 1
            decode_context += after
        else:
            prefill_context += after
            pairs += count * (before + after + 1) // 2  # the first attends to before + 1 positions, the last to after
        samples = after == request.stored_tokens
        tail.append((request, before, count, samples))
        if samples:
            sampling.append(request)
    if sampling:
        _sample(plan, sampling)
    return prefill, decode, again, longest, decode_rows, decode_context, prefill_context, pairs, len(sampling)


def _by_kind(request: Request, before: int, count: int) -> tuple[int, int]:
    """Of a row's tokens, those computed before are recomputed, ``[0]``; the rest belongs to the prompt, ``[1]``, or to
    the output.
    """
    again = min(max(request.max_computed - before, 0), count)
    return again, min(max(request.num_prompt_tokens - before - again, 0), count - again)


def _sample(plan: StepPlan, sampling: list[Request]) -> None:
    for request in sampling:
        request.stored_tokens += 1
    plan.first_tokens = [r for r in sampling if r.stored_tokens - r.num_prompt_tokens == 1]
    plan.ending = [r for r in sampling if r.stored_tokens == r.last_at]


def _pad(plan: StepPlan, scheduler: Scheduler) -> None:
    """Pad the plan's shape as its layout asks, and count the padding by cause."""
    prompt = finished = graph = positions = 0
    if scheduler.padded:
        prompt, finished, positions = _pad_rectangle(plan, scheduler)
    else:
        graph = _pad_to_graph(plan, scheduler.config.cudagraph_capture_sizes)
    shape, facts = plan.shape, plan.facts
    plan.facts = (
        plan.context_tokens, positions, shape.decode_context, shape.prefill_context, shape.prefill_pairs,
        *facts[_BEFORE_PADDING], shape.computed_tokens, prompt, finished, graph, 0,
        shape.logits_rows, plan.sampled, plan.num_reqs, shape.num_reqs, plan.cols,
        shape.decode_tokens, shape.prefill_tokens, *facts[_BLOCKS],
    )  # fmt: skip


def _pad_to_graph(plan: StepPlan, sizes: tuple[int, ...]) -> int:
    """Pad a flat row to the next captured size; returns the rows added, 0 beyond the largest size."""
    real = plan.real_shape
    index = bisect_left(sizes, real.computed_tokens)
    if index == len(sizes) or sizes[index] == real.computed_tokens:
        return 0
    plan.shape = real.with_rows(sizes[index])
    return sizes[index] - real.computed_tokens


def _pad_rectangle(plan: StepPlan, scheduler: Scheduler) -> tuple[int, int, int]:
    """Make the step rows x longest: every row is computed to the longest and reads the longest context.

    Rows that have ended but burn on with their batch (`static`) are part of the rectangle. Returns the padded rows by
    cause, ``prompt`` and ``finished-row``, and the padded KV positions.
    """
    real, seats, cols = plan.real_shape, scheduler.seats, plan.cols
    widths = [before + count + request.pad for request, before, count, _ in plan.tail]
    widths += [seats.steady.max_width() if plan.num_steady else 0, seats.held_width]
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
    return real.num_reqs * cols - real.computed_tokens, burning * cols, rows * width - plan.context_tokens


def _rectangle_rows(key: tuple[int, int, int]) -> tuple[IntArray, IntArray]:
    rows, cols, width = key
    return np.full(rows, cols, dtype=np.int64), np.full(rows, width - cols, dtype=np.int64)
