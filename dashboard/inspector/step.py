"""One step laid open: its requests, its flat batch and its rectangle, and what each of the two computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scheduler.batch import (
    BatchRequest,
    BoolArray,
    FlatBatch,
    PaddedBatch,
    PaddingSide,
    flat_batch,
    padded_batch,
    ragged_mask,
)
from scheduler.config import Layout
from scheduler.plan import IntArray, StepShape

UNKNOWN = "·"
"""Stands for a token that nobody kept."""


@dataclass(frozen=True)
class Counts:
    """What a step computes in each of the two layouts.

    Attributes:
        requests, tokens: scheduled ones; a flat row has `tokens` rows and no others.
        rows, cols: of the rectangle; `rows` counts those that have ended and burn on.
        keys: KV positions of all scheduled requests, the columns of the flat batch's mask.
        width: KV positions of the longest row, what every row of the rectangle reads.
        pairs: (token, key) pairs that attention needs: a token sees its own request up to itself.
    """

    requests: int
    tokens: int
    rows: int
    cols: int
    keys: int
    width: int
    pairs: int

    @property
    def cells(self) -> int:
        """Cells of the rectangle."""
        return self.rows * self.cols

    @property
    def padding(self) -> int:
        """Cells of the rectangle that are no scheduled token."""
        return self.cells - self.tokens

    @property
    def padding_share(self) -> float:
        """Padding as a share of the rectangle."""
        return self.padding / self.cells

    @property
    def flat_mask(self) -> int:
        """Entries of the flat batch's mask."""
        return self.tokens * self.keys

    @property
    def flat_masked_share(self) -> float:
        """Share of the flat batch's mask that is masked out (kernels skip it)."""
        return 1 - self.pairs / self.flat_mask

    @property
    def padded_mask(self) -> int:
        """Entries of the rectangle's mask."""
        return self.cells * self.width

    @property
    def padded_masked_share(self) -> float:
        """Share of the rectangle's mask that serves no scheduled token."""
        return 1 - self.pairs / self.padded_mask


@dataclass(frozen=True)
class StepFacts:
    """A step, from whatever source. All sequences over requests are in row order.

    Attributes:
        title: which step it is.
        requests: the scheduled ones.
        slots: seat of each.
        samples: whether each one's next token is kept (its tokens have caught up).
        block_size: tokens a block.
        num_slots: seats in all.
        words: text of each request's known tokens; None: contents are not known.
        burning: rows that have ended but go on with their batch (rectangle only).
        layout: in which of the two shapes the step ran.
        padding_side: where the rectangle pads.
        graph_rows: rows of graph padding behind the flat row.
        cut: only the first tokens of the only request are here.
        notes: sentences on what could not be shown as it was.
    """

    title: str
    requests: tuple[BatchRequest, ...]
    slots: tuple[int, ...]
    samples: tuple[bool, ...]
    block_size: int
    num_slots: int
    words: tuple[Sequence[str], ...] | None = None
    burning: tuple[BatchRequest, ...] = ()
    layout: Layout = "ragged"
    padding_side: PaddingSide = "left"
    graph_rows: int = 0
    cut: bool = False
    notes: tuple[str, ...] = ()

    @cached_property
    def flat(self) -> FlatBatch:
        """The step as one flat row, from the batch builder; raises InputError where it is impossible."""
        total = int(self.scheduled.sum())
        padded_to = total + self.graph_rows if self.graph_rows else None
        batch = flat_batch(self.requests, self.block_size, max_num_seqs=self.num_slots, padded_to=padded_to)
        return replace(batch, slots=np.array(self.slots, dtype=np.int64))

    @cached_property
    def padded(self) -> PaddedBatch:
        """The step as a rectangle, from the batch builder; rows that burn on come last."""
        rows = (*self.requests, *self.burning)
        batch = padded_batch(rows, self.block_size, padding_side=self.padding_side)
        return replace(batch, num_requests=len(self.requests))

    @property
    def computed(self) -> IntArray:
        """Tokens of each request whose K/V is in the cache before the step, ``(requests,)``."""
        return np.array([request.computed for request in self.requests], dtype=np.int64)

    @property
    def scheduled(self) -> IntArray:
        """Tokens of each request in this step, ``(requests,)``."""
        return np.array([request.scheduled for request in self.requests], dtype=np.int64)

    @cached_property
    def counts(self) -> Counts:
        """What either layout computes; from sums, however large the step."""
        rows = (*self.requests, *self.burning)
        shape = StepShape.of("ragged", self.scheduled.tolist(), self.computed.tolist())
        left = self.padding_side == "left"
        return Counts(
            requests=len(self.requests),
            tokens=shape.computed_tokens,
            rows=len(rows),
            cols=max(row.scheduled for row in rows),
            keys=int((self.computed + self.scheduled).sum()),
            width=max((row.pad if left else 0) + row.computed + row.scheduled for row in rows),
            pairs=shape.decode_context + shape.prefill_pairs,
        )

    def word(self, row: int, position: int) -> str:
        """Text of a request's token."""
        return UNKNOWN if self.words is None else self.words[row][position]

    def ragged_mask(self) -> BoolArray:
        """Which keys each token of the flat row attends to, ``(tokens, keys)``."""
        return ragged_mask(self.flat.query_start_loc, self.flat.seq_lens)

    def first_tokens(self, most: int) -> StepFacts:
        """The step's first requests that have at most `most` tokens together; a first one that has more is cut."""
        ends = np.cumsum(self.scheduled)
        count = int(np.searchsorted(ends, most, side="right"))
        if count == 0:
            return replace(self._with([replace(self.requests[0], scheduled=most)]), cut=True)
        padding = self.graph_rows if count == len(ends) else 0
        return self._with(self.requests[:count], graph_rows=min(padding, most - int(ends[count - 1])))

    def within(self, tokens: int, keys: int) -> StepFacts:
        """The step's first requests that have at most so many keys together (one at least), with at most `tokens`."""
        ends = np.cumsum(self.computed + self.scheduled)
        count = max(1, int(np.searchsorted(ends, keys, side="right")))
        return self._with(self.requests[:count]).first_tokens(tokens)

    def rectangle_within(self, cells: int, cols: int) -> StepFacts:
        """The step with rows cut to `cols` tokens, and so many of its rows (one at least) as `cells` hold."""
        rows = [replace(row, scheduled=min(row.scheduled, cols)) for row in (*self.requests, *self.burning)]
        widest = np.maximum.accumulate([row.scheduled for row in rows])
        count = max(1, int((widest * np.arange(1, len(rows) + 1) <= cells).sum()))
        requests = rows[: min(count, len(self.requests))]
        burning = rows[len(self.requests) : max(count, len(self.requests))]
        return replace(self._with(requests), burning=tuple(burning))

    def _with(self, requests: Sequence[BatchRequest], graph_rows: int = 0) -> StepFacts:
        count = len(requests)
        return replace(
            self,
            requests=tuple(requests),
            slots=self.slots[:count],
            samples=self.samples[:count],
            words=None if self.words is None else self.words[:count],
            graph_rows=graph_rows,
        )
