"""What a step is: the plan that the executor prices or runs, and its shape for cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .config import Layout
    from .request import Request
    from .rows import PlanRows

IntArray = npt.NDArray[np.int64]

WAIT_REASONS = ("none", "seqs", "tokens", "blocks", "batch-closed")
"""Why the head of the queue waits: no slot, no budget, no KV blocks, or the batch takes nobody now."""
PADDING_CAUSES = ("prompt", "finished-row", "graph", "overrun")
"""Causes of padded *rows*; ``context`` padding (KV positions read for nothing) is counted apart from rows."""


class StepShape:
    """The amount of work in a step, as exact integer sums; what a cost model sees.

    A *row* is one token position run through the dense layers. Attention work is given in two parts: decode rows
    (one new token each, a prompt of one token too) and prefill rows.

    Attributes:
        layout: ``padded`` (rows x cols rectangle) or ``ragged`` (one flat row).
        computed_tokens: rows through the dense layers, padding included.
        num_reqs: requests with rows in the step (rows of the rectangle when padded).
        logits_rows: rows through the LM head.
        decode_tokens: decode rows, padded ones included.
        decode_context: sum over decode rows of the KV positions each reads (its own included, padding included).
        prefill_tokens: prefill rows, padded ones included.
        prefill_context: sum over prefilling requests of the KV positions they end with.
        prefill_pairs: sum over prefill rows of the positions each attends to (causal).
    """

    __slots__ = (
        "layout", "computed_tokens", "num_reqs", "logits_rows", "decode_tokens", "decode_context",
        "prefill_tokens", "prefill_context", "prefill_pairs", "_arrays", "_key",
    )  # fmt: skip

    def __init__(
        self,
        layout: Layout,
        computed_tokens: int,
        num_reqs: int,
        logits_rows: int,
        decode_tokens: int,
        decode_context: int,
        prefill_tokens: int = 0,
        prefill_context: int = 0,
        prefill_pairs: int = 0,
        arrays: Callable[[Any], tuple[IntArray, IntArray]] | None = None,
        key: Any = None,
    ) -> None:
        self.layout = layout
        self.computed_tokens = computed_tokens
        self.num_reqs = num_reqs
        self.logits_rows = logits_rows
        self.decode_tokens = decode_tokens
        self.decode_context = decode_context
        self.prefill_tokens = prefill_tokens
        self.prefill_context = prefill_context
        self.prefill_pairs = prefill_pairs
        self._arrays = arrays
        self._key = key

    def per_request(self) -> tuple[IntArray, IntArray]:
        """`(new_tokens, context)`, each ``(requests,)``: tokens scheduled and KV positions before them.

        Built only when asked for; valid until the scheduler's next `schedule` or `update`.
        """
        if self._arrays is None:
            raise LookupError("this step shape was built from sums alone; it has no per-request arrays")
        return self._arrays(self._key)

    def without_decode_row(self, context: int) -> StepShape:
        """The shape less one decode row that reads `context` KV positions (`per_request` keeps all rows)."""
        return StepShape(
            self.layout, self.computed_tokens - 1, self.num_reqs - 1, self.logits_rows - 1, self.decode_tokens - 1,
            self.decode_context - context, self.prefill_tokens, self.prefill_context, self.prefill_pairs,
            self._arrays, self._key,
        )  # fmt: skip

    def with_rows(self, computed_tokens: int) -> StepShape:
        """The same work padded to so many rows that belong to no request."""
        return StepShape(
            self.layout, computed_tokens, self.num_reqs, self.logits_rows, self.decode_tokens, self.decode_context,
            self.prefill_tokens, self.prefill_context, self.prefill_pairs, self._arrays, self._key,
        )  # fmt: skip

    @classmethod
    def of(cls, layout: Layout, new_tokens: list[int], contexts: list[int]) -> StepShape:
        """The shape of a ragged step over requests with `new_tokens` after `contexts` computed ones."""
        pairs = list(zip(new_tokens, contexts, strict=True))
        decode = [(n, c) for n, c in pairs if n == 1]
        prefill = [(n, c) for n, c in pairs if n != 1]
        total = sum(new_tokens)
        rows = (np.array(new_tokens, dtype=np.int64), np.array(contexts, dtype=np.int64))
        return cls(
            layout, total, len(pairs), len(pairs), len(decode), sum(c + 1 for _, c in decode),
            total - len(decode), sum(n + c for n, c in prefill), sum(n * c + n * (n + 1) // 2 for n, c in prefill),
            lambda _: rows,
        )  # fmt: skip


FACTS = (
    "context_tokens", "padding_context", "decode_context", "prefill_context", "prefill_pairs", "slots_busy",
    "slots_total", "running", "waiting", "wait_reason", "prefill_tokens", "decode_tokens", "recomputed_tokens",
    "cached_tokens", "computed_tokens", "padding_prompt", "padding_finished", "padding_graph", "padding_overrun",
    "logits_rows", "sampled", "num_reqs", "rows", "cols", "decode_rows", "prefill_rows", "blocks_used", "blocks_cached",
    "blocks_total",
)  # fmt: skip
"""A step's numbers, in the order in which they are kept and recorded."""


class Fact:
    """One of a plan's numbers: reads it from `StepPlan.facts`, a tuple, which is made and recorded as a whole."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._index = FACTS.index(name)

    def __get__(self, plan: StepPlan, owner: type | None = None) -> int:
        return plan.facts[self._index]


class StepPlan:
    """The decisions of one step, and what became of it (the last fields, filled in by `Scheduler.update`).

    ``prefill_tokens + decode_tokens + recomputed_tokens + sum of padding rows == computed_tokens``.
    A plain class with defaults, so that a step in which nothing changes sets few fields.

    Attributes:
        step: number of the step, from 0; empty plans (nothing to run) do not count.
        facts: the numbers named in `FACTS`; each can be read by its name.
        slots_busy: seats taken, rows that have ended but are held with their batch included (not in `running`).
        num_reqs, rows, cols: requests with rows; rows and columns of the batch as it is laid out (ragged: `cols` is the
            longest row, what a rectangle would have).
        decode_context, prefill_context, prefill_pairs, decode_rows, prefill_rows: as in `shape`.
        wait_reason: index into `WAIT_REASONS`.
        tail: rows listed one by one, in running order: ``(request, num_computed_tokens before, num_scheduled_tokens,
            samples)``. They come after the steady rows.
        num_steady: requests of the steady prefix that take exactly one token (see `Scheduler.rows` for all rows).
        prefill_tokens, decode_tokens, recomputed_tokens: scheduled tokens by kind: prompt tokens for the first time,
            output tokens for the first time, tokens computed before and lost by a preemption.
        cached_tokens: prefix-cache hits of the requests admitted in this step (not computed).
        context_tokens: sum over scheduled requests of the KV positions they hold after the step.
        padding_context: KV positions read (or stored) for padding in a padded rectangle; not rows.
        sampled: rows whose sampled token is kept.
        new_blocks: ``(request, logical index of the first, block ids)``, when the scheduler tracks blocks.
        steady_blocks: the same for steady rows, one block each: ``(requests, logical indices, block ids)``.
        joined, left: requests that entered or left the steady prefix when this step was planned.
        first_tokens: requests whose first output this step samples.
        arrived, aborted: since the plan before.
        ending: requests whose last token this step samples: by length (known when planned), or because a recording says
            that it is their EOS (which no policy knows).
        finished: requests that ended with this step's results, in running order.
        dropped: requests whose sampled token was thrown away because they had already ended (in-flight rows).
        shape: the work as computed, padding included.
        real_shape: the work that the scheduled tokens alone would be.
        empty: nothing runs in this step.
        quiet: nobody was admitted, preempted, joined or left the steady prefix, nobody outside the prefix samples, and
            no row was dropped; a recorder then has little to write. Never wrong when false.
        row_arrays: what `Scheduler.rows` built, if anybody asked.
    """

    step: int
    layout: Layout
    facts: tuple[int, ...]
    clock: int = 0
    num_steady: int = 0
    tail: Sequence[tuple[Request, int, int, bool]] = ()
    admitted: Sequence[Request] = ()
    preempted: Sequence[Request] = ()
    new_blocks: Sequence[tuple[Request, int, list[int]]] = ()
    steady_blocks: tuple[list[Request], list[int], list[int]] | None = None
    joined: Sequence[Request] = ()
    left: Sequence[Request] = ()
    first_tokens: Sequence[Request] = ()
    arrived: Sequence[Request] = ()
    aborted: Sequence[Request] = ()
    ending: Sequence[Request] = ()
    finished: Sequence[Request] = ()
    dropped: Sequence[Request] = ()
    shape: StepShape
    real_shape: StepShape
    row_arrays: PlanRows | None = None
    empty: bool = False
    quiet: bool = False

    context_tokens = Fact()
    padding_context = Fact()
    decode_context = Fact()
    prefill_context = Fact()
    prefill_pairs = Fact()
    slots_busy = Fact()
    slots_total = Fact()
    running = Fact()
    waiting = Fact()
    wait_reason = Fact()
    prefill_tokens = Fact()
    decode_tokens = Fact()
    recomputed_tokens = Fact()
    cached_tokens = Fact()
    computed_tokens = Fact()
    padding_prompt = Fact()
    padding_finished = Fact()
    padding_graph = Fact()
    padding_overrun = Fact()
    logits_rows = Fact()
    sampled = Fact()
    num_reqs = Fact()
    rows = Fact()
    cols = Fact()
    decode_rows = Fact()
    prefill_rows = Fact()
    blocks_used = Fact()
    blocks_cached = Fact()
    blocks_total = Fact()

    def drop(self, request: Request) -> None:
        """The token that the request samples in this step will be thrown away."""
        self.dropped = [*self.dropped, request]
        self.quiet = False

    def amend(self, **changes: int) -> None:
        """Add to some of the numbers: what became known only after the step was planned."""
        facts = list(self.facts)
        for name, change in changes.items():
            facts[FACTS.index(name)] += change
        self.facts = tuple(facts)

    def block_grants(self) -> Iterator[tuple[Request, int, list[int]]]:
        """All new blocks: ``(request, logical index of the first, block ids)``."""
        if self.steady_blocks is not None:
            for request, index, block in zip(*self.steady_blocks, strict=True):
                yield request, index, [block]
        yield from self.new_blocks
