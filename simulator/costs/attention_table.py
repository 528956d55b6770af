"""Attention of any step from a measured grid: several prefills, mixed steps, decodes of unequal contexts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler.plan import IntArray, StepShape

from .attention_blocks import block_work, key_tile, prefill_tiles, splits, tail_s, whole_tiles
from .attention_fit import Card, block_rates, fit_work, grid_work
from .attention_grid import AttentionGrid, cell, mix

KEEP_STEPS = 32
"""Steps for which the schedule of a batch is kept: its contexts have grown by so many keys."""
KEEP_WITHIN = 0.02
"""It is made anew earlier when requests or KV positions have changed by more than this part."""


class AttentionTable:
    """Seconds of one layer's attention. `beyond` says whether the last step priced lay outside the grid.

    Args:
        grid: what was measured.
        card: the card and the model's heads; None: a kernel that we do not know the blocks of. Then a step costs what
            the grid says of its mean context.
    """

    def __init__(self, grid: AttentionGrid, card: Card | None) -> None:
        self.grid, self.card = grid, card
        self.beyond = False
        self._chunk, self._before = grid.chunk.tolist(), grid.before.tolist()
        self._decodes, self._context = grid.decodes.tolist(), grid.context.tolist()
        self._decode: list[list[float]] = grid.decode_s.tolist()
        self._decode_holes = holes(grid.decode_filled)
        self._mixed_holes = holes(np.asarray(grid.mixed_filled.any(axis=(0, 1))))
        self._work = np.zeros(3) if card is None else fit_work(grid, key_tile(card.head_dim))
        self._tile = 1 if card is None else key_tile(card.head_dim)
        prefill, mixed = grid_work(grid, self._tile)
        self._prefill: list[list[float]] = (grid.prefill_s - prefill @ self._work).tolist()
        self._mixed: list[list[list[list[float]]]] = (grid.mixed_s - mixed @ self._work).tolist()
        self._floor = float(min(grid.decode_s.min(), grid.prefill_s.min()))
        self._all_rate, self._one_rate = (0.0, 0.0) if card is None else block_rates(grid, card)
        self._share = [] if card is None else self._shares(card)
        self.reset()

    def reset(self) -> None:
        """Forget the schedule of the last batch."""
        self._kept = (0, 0, 0)
        self._rate = 0.0

    def seconds(self, shape: StepShape) -> float:
        """Of a step of this shape, one layer."""
        rows = _rows(shape)
        if shape.prefill_tokens:
            return self._mixed_s(shape, rows)
        return self._decode_s(shape, None if rows is None else rows[1] + 1)

    def _decode_s(self, shape: StepShape, contexts: IntArray | None) -> float:
        count, read = shape.decode_tokens, shape.decode_context
        if not count:
            return 0.0
        known = contexts is not None and self.card is not None
        even = self.even_decode_s(count, self.history(contexts if known else None, count, read))
        if not known or contexts is None or count == 1:
            return even
        return max(even, self._uneven_rate(contexts, count, read) * read)

    def history(self, contexts: IntArray | None, count: int, read: int) -> float:
        """History at which `count` decodes that read `read` positions are looked up."""
        return read / count - 1 if contexts is None else whole_tiles(contexts, self._tile)

    def even_decode_s(self, count: int, before: float) -> float:
        """Of `count` decodes that each have `before` positions of history, as the grid says."""
        (i, u), (j, v) = cell(count, self._decodes), cell(before, self._context)
        self.beyond = u > 1 or v > 1 or leans(self._decode_holes, i, u, j, v)
        low, high = self._decode[i], self._decode[i + 1]
        return mix(mix(low[j], low[j + 1], v), mix(high[j], high[j + 1], v), u)

    def _uneven_rate(self, contexts: IntArray, count: int, read: int) -> float:
        """Seconds a position that the batch's blocks take at least; kept while the batch is much the same."""
        old_count, old_read, left = self._kept
        same = abs(count - old_count) <= KEEP_WITHIN * old_count and abs(read - old_read) <= KEEP_WITHIN * old_read
        if same and left:
            self._kept = (old_count, old_read, left - 1)
            return self._rate
        self._kept = (count, read, KEEP_STEPS)
        self._rate = self.uneven_s(contexts) / read
        return self._rate

    def uneven_s(self, contexts: IntArray) -> float:
        """Seconds that decodes reading `contexts` positions take at least: their blocks, one after the other.

        Less where the grid's even batches take less than their blocks should, as KV that lives in the L2 cache does.
        """
        card = self.card
        if card is None:
            raise LookupError("the blocks of this kernel are not known")
        padded = next((size for size in card.captured if size >= len(contexts)), len(contexts))
        (i, u), (j, v) = cell(len(contexts), self._decodes), cell(float(contexts.mean()) - 1, self._context)
        low, high = self._share[i], self._share[i + 1]
        u, v = min(u, 1.0), min(v, 1.0)
        share = mix(mix(low[j], low[j + 1], v), mix(high[j], high[j + 1], v), u)
        return share * self._blocks_s(card, contexts, padded, card.longest)

    def _blocks_s(self, card: Card, contexts: IntArray, padded: int, longest: int) -> float:
        parts = splits(padded * card.kv_heads, card.sms, -(-longest // self._tile))
        keys = contexts.astype(np.float64)
        if parts == 1:
            order, copies = keys.tolist(), card.kv_heads
        else:
            order, copies = np.repeat(keys / parts, card.kv_heads * parts).tolist(), 1
        late_s = tail_s(order, copies, card.sms, self._all_rate, self._one_rate)
        return card.kv_heads * float(keys.sum()) / min(self._all_rate, self._one_rate * card.sms) + late_s

    def _shares(self, card: Card) -> list[list[float]]:
        """Grid point of decodes alone -> the measured part of what its blocks take at least, at most 1."""
        shares = []
        for count, row in zip(self._decodes, self._decode, strict=True):
            even = [np.full(int(count), int(context) + 1) for context in self._context]
            least = [self._blocks_s(card, contexts, len(contexts), int(contexts[0])) for contexts in even]
            shares.append([min(1.0, seconds / bound) for seconds, bound in zip(row, least, strict=True)])
        return shares

    def _mixed_s(self, shape: StepShape, rows: tuple[IntArray, IntArray] | None) -> float:
        """What the work model says of the very blocks, and what the grid says beside it at the like point."""
        tokens, decodes = shape.prefill_tokens, shape.decode_tokens
        mean = shape.prefill_pairs / tokens  # keys a row attends to
        rest = self._rest(tokens, mean, decodes, shape.decode_context / decodes - 1 if decodes else 0.0)
        if self.card is None:
            return max(rest, self._floor)
        chunks, befores, contexts = _requests(shape, rows)
        work = block_work(chunks, befores, contexts, self._tile)
        done = self._work[0] * work.tiles + self._work[1] * work.blocks + self._work[2] * work.empty
        late = self._late_s(self.card, chunks, befores, contexts)
        return float(max(rest + done + late, self._floor))

    def _late_s(self, card: Card, chunks: Sequence[int], befores: Sequence[int], contexts: IntArray) -> float:
        """How much later the last block ends than in the like point of the grid, where all decodes are alike."""
        prefill = prefill_tiles(chunks, befores, self._tile)
        tokens = sum(chunks)
        pairs = sum(c * b + c * (c + 1) // 2 for c, b in zip(chunks, befores, strict=True))
        before = max(0, round(pairs / tokens - (tokens + 1) / 2))
        like = prefill_tiles([tokens], [before], self._tile)
        tiles = -(-contexts // self._tile)
        alike = np.full(len(tiles), tiles.mean() if len(tiles) else 0.0)
        real = np.concatenate((tiles, prefill))
        rate = self._one_rate / self._tile
        late_s, like_s = (
            tail_s(blocks.tolist(), card.heads, card.sms, rate * card.sms, rate)
            for blocks in (real, np.concatenate((alike, like)))
        )
        return late_s - like_s

    def _rest(self, tokens: int, mean: float, decodes: int, before: float) -> float:
        """The grid less the work model, where `tokens` rows attend to `mean` keys each, beside `decodes`."""
        i, t = cell(tokens, self._chunk)
        if decodes:
            k, u = cell(decodes, self._decodes)
            m, v = cell(before, self._context)
        else:
            k = m = 0
            u = v = 0.0
        values, beyond = [], t > 1 or u > 1 or v > 1
        for at in (i, i + 1):
            # The same mean in one chunk: rows of a chunk attend to its history and half of itself. Several short
            # prefills have less than a chunk without any history; there the work model alone tells the difference.
            j, w = cell(mean - (self._chunk[at] + 1) / 2, self._before)
            weight = t if at > i else 1 - t
            beyond = beyond or (w > 1 and weight != 0)
            if decodes:
                beyond = beyond or leans(self._mixed_holes, k, u, m, v)
                near, far = (self._decode_corner(self._mixed[at][b], k, u, m, v) for b in (j, j + 1))
            else:
                near, far = self._prefill[at][j], self._prefill[at][j + 1]
            values.append(mix(near, far, w))
        self.beyond = beyond
        return mix(values[0], values[1], t)

    @staticmethod
    def _decode_corner(table: list[list[float]], k: int, u: float, m: int, v: float) -> float:
        low, high = table[k], table[k + 1]
        return mix(mix(low[m], low[m + 1], v), mix(high[m], high[m + 1], v), u)


def holes(filled: npt.NDArray[np.bool_]) -> frozenset[tuple[int, int]]:
    """Places of a plane that were not measured."""
    return frozenset((int(i), int(j)) for i, j in np.argwhere(filled))


def leans(holes: frozenset[tuple[int, int]], i: int, u: float, j: int, v: float) -> bool:
    """Whether a point, parts `u` and `v` of the way on from place (i, j), is read from one of the holes."""
    if not holes:
        return False
    rows, columns = (i, i + 1) if 0 < u < 1 else (i + (u == 1),), (j, j + 1) if 0 < v < 1 else (j + (v == 1),)
    return any((row, column) in holes for row in rows for column in columns)


def _rows(shape: StepShape) -> tuple[IntArray, IntArray] | None:
    """``(new tokens, history)`` of each request; None where only sums are known, or rows are padding."""
    try:
        new, before = shape.per_request()
    except LookupError:
        return None
    if shape.layout == "padded" or len(new) != shape.num_reqs:
        return None
    return new, before


def _requests(shape: StepShape, rows: tuple[IntArray, IntArray] | None) -> tuple[list[int], list[int], IntArray]:
    """Rows and history of each prefill, and the keys that each decode reads; equal ones where only sums are known."""
    if rows is not None:
        prefill = rows[0] != 1
        return rows[0][prefill].tolist(), rows[1][prefill].tolist(), rows[1][~prefill] + 1
    decodes, tokens = shape.decode_tokens, shape.prefill_tokens
    prefills = max(1, shape.num_reqs - decodes)
    chunk = max(1, round(tokens / prefills))
    before = max(0, round(shape.prefill_context / prefills) - chunk)
    context = round(shape.decode_context / decodes) if decodes else 0
    return [chunk] * prefills, [before] * prefills, np.full(decodes, context, dtype=np.int64)
