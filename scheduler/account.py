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


def account(scheduler: Scheduler, step: Step) -> StepPlan:
    """Commit the step: advance its requests and describe it as a plan."""
    seats, pool = scheduler.seats, scheduler.kv.pool
    plan = StepPlan()
    plan.step = number = scheduler.num_steps
    plan.layout = scheduler.layout
    plan.ending = ()
    running = len(seats.steady.members) + len(seats.tail) + len(seats.ending)
    prefill, decode, again, longest, decode_rows, decode_context, prefill_context, pairs, sampled = (
        _advance_tail(plan, step) if step.changed else _NO_ROWS
    )
    plan.quiet = not (sampled or step.turnover)
    requests = len(step.rows)
    if step.steady_runs:
        decode_context += seats.steady.advance(plan)
        steady = plan.num_steady
        requests, sampled = requests + steady, sampled + steady
        decode, decode_rows = decode + steady, decode_rows + steady
        plan.steady_blocks = step.steady_blocks
    plan.empty = not requests
    context, total = decode_context + prefill_context, prefill + decode + again
    computed, rows, prefill_rows = total, requests, total - decode_rows
    plan.shape = plan.real_shape = shape = StepShape(
        "ragged", total, requests, requests, decode_rows, decode_context, prefill_rows, prefill_context, pairs,
        scheduler.per_request, number,
    )  # fmt: skip
    by_prompt = by_finished = by_graph = by_context = 0
    if scheduler.pads and requests:
        by_prompt, by_finished, by_graph, by_context = _pad(plan, scheduler, context, longest or 1)
        shape, rows = plan.shape, plan.shape.num_reqs
        computed, decode_rows, decode_context = shape.computed_tokens, shape.decode_tokens, shape.decode_context
        prefill_rows, prefill_context, pairs = shape.prefill_tokens, shape.prefill_context, shape.prefill_pairs
    waiting, cached, blocks = len(scheduler.waiting), len(pool.cached), pool.usable
    plan.facts = (
        context, by_context, decode_context, prefill_context, pairs,
        seats.num_slots - len(seats.free), seats.num_slots, running, waiting, step.wait_reason if waiting else 0,
        prefill, decode, again, step.cached_tokens, computed, by_prompt, by_finished, by_graph, 0,
        shape.logits_rows, sampled, requests, rows, longest or 1, decode_rows, prefill_rows,
        blocks - cached - len(pool.unhashed), cached, blocks,
    )  # fmt: skip
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
    if needing and kv.paged:
        if len(needing) > len(pool.unhashed):
            return None
        plan.steady_blocks = step.grow_steady(needing)
    if kv.caching:
        kv.begin_step()
        step.offer_filled()
    plan.step = number = scheduler.num_steps
    plan.layout = scheduler.layout
    plan.ending = plan.finished = ()
    plan.empty, plan.quiet = False, True
    context = steady.advance(plan)
    count = plan.num_steady
    plan.shape = plan.real_shape = StepShape(
        "ragged", count, count, count, count, context, 0, 0, 0, scheduler.per_request, number
    )
    cached, blocks = len(pool.cached), pool.usable
    plan.facts = (context, 0, context, *same, blocks - cached - len(pool.unhashed), cached, blocks)
    return plan


def _advance_tail(plan: StepPlan, step: Step) -> TailSums:
    """Advance the rows outside the steady prefix; a row that catches up samples a token."""
    prefill = decode = again = longest = decode_rows = decode_context = prefill_context = pairs = 0
    plan.tail = tail = []
    sampling = []
    for request, count in step.rows.items():
        before = request.stored_computed
        request.stored_computed = after = before + count
        if before >= request.max_computed and after <= request.num_prompt_tokens:
            prefill += count
        else:
            recomputed, prompt = _by_kind(request, before, count)
            again, prefill, decode = again + recomputed, prefill + prompt, decode + count - recomputed - prompt
        if count > longest:
            longest = count
        if count == 1 and before:
            decode_rows += 1
            decode_context += after
        else:
            prefill_context += after
            pairs += count * before + count * (count + 1) // 2
        samples = after == request.stored_tokens
        tail.append((request, before, count, samples))
        if samples:
            sampling.append(request)
    if sampling:
        _sample(plan, sampling)
    if step.turnover:
        plan.admitted, plan.preempted = step.admitted, step.preempted
        plan.joined, plan.left = step.joined, step.left
    if step.new_blocks:
        plan.new_blocks = step.new_blocks
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


def _pad(plan: StepPlan, scheduler: Scheduler, context: int, cols: int) -> tuple[int, int, int, int]:
    """Pad the plan's shape as its layout asks; returns the padded rows by cause, ``prompt``, ``finished-row`` and
    ``graph``, and the padded KV positions.
    """
    if not scheduler.padded:
        return 0, 0, _pad_to_graph(plan, scheduler.config.cudagraph_capture_sizes), 0
    prompt, finished, positions = _pad_rectangle(plan, scheduler, context, cols)
    return prompt, finished, 0, positions


def _pad_to_graph(plan: StepPlan, sizes: tuple[int, ...]) -> int:
    """Pad a flat row to the next captured size; returns the rows added, 0 beyond the largest size."""
    real = plan.real_shape
    index = bisect_left(sizes, real.computed_tokens)
    if index == len(sizes) or sizes[index] == real.computed_tokens or not real.computed_tokens:
        return 0
    plan.shape = real.with_rows(sizes[index])
    return sizes[index] - real.computed_tokens


def _pad_rectangle(plan: StepPlan, scheduler: Scheduler, context: int, cols: int) -> tuple[int, int, int]:
    """Make the step rows x longest: every row is computed to the longest and reads the longest context.

    Rows that have ended but burn on with their batch (`static`) are part of the rectangle. Returns the padded rows by
    cause, ``prompt`` and ``finished-row``, and the padded KV positions.
    """
    real, seats = plan.real_shape, scheduler.seats
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
    return real.num_reqs * cols - real.computed_tokens, burning * cols, rows * width - context


def _rectangle_rows(key: tuple[int, int, int]) -> tuple[IntArray, IntArray]:
    rows, cols, width = key
    return np.full(rows, cols, dtype=np.int64), np.full(rows, width - cols, dtype=np.int64)
