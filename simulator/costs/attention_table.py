"""Attention of any step from a measured grid: several prefills, mixed steps, decodes of unequal contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.plan import IntArray, StepShape

from .attention_blocks import QUERY_ROWS, block_work, key_tile, schedule_s, splits, whole_tiles
from .attention_grid import AttentionGrid, Cell, cell, mix

Floats = npt.NDArray[np.float64]
KEEP_STEPS = 32
"""Steps for which the schedule of a batch is kept: its contexts have grown by so many keys."""
KEEP_WITHIN = 0.02
"""It is made anew earlier when requests or KV positions have changed by more than this part."""
MODEST = 65_536
"""Keys that the decodes of a grid point read in all: beyond, reads no longer fit the L2 cache of any card we know, and
blocks cost more than the work model says."""


@dataclass(frozen=True)
class Card:
    """What of the card and the model decides how blocks run.

    Attributes:
        sms: streaming multiprocessors.
        heads, kv_heads, head_dim: of the model, on one card.
        longest: keys that the number of splits is decided for: ``max_model_len``, with captured graphs.
        captured: row counts that decode-only steps are padded to, rising.
    """

    sms: int
    heads: int
    kv_heads: int
    head_dim: int
    longest: int
    captured: tuple[int, ...] = ()


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
        self._work = _no_work() if card is None else fit_work(grid, key_tile(card.head_dim))
        self._tile = 1 if card is None else key_tile(card.head_dim)
        prefill, mixed = grid_work(grid, self._tile)
        self._prefill: list[list[float]] = (grid.prefill_s - prefill @ self._work).tolist()
        self._mixed: list[list[list[list[float]]]] = (grid.mixed_s - mixed @ self._work).tolist()
        self._floor = float(min(grid.decode_s.min(), grid.prefill_s.min()))
        self._all_rate, self._one_rate = (0.0, 0.0) if card is None else block_rates(grid, card)
        self.reset()

    def reset(self) -> None:
        """Forget the schedule of the last batch."""
        self._kept = (0, 0, 0)
        self._uneven = 0.0

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
        before = whole_tiles(contexts, self._tile) if known and contexts is not None else read / count - 1
        even = self.even_decode_s(count, before)
        if not known or contexts is None:
            return even
        return max(even, self._uneven_rate(contexts, count, read) * read)

    def even_decode_s(self, count: int, before: float) -> float:
        """Of `count` decodes that each have `before` positions of history, as the grid says."""
        (i, u), (j, v) = cell(count, self._decodes), cell(before, self._context)
        self.beyond = u > 1 or v > 1 or self._filled(self.grid.decode_filled[i : i + 2, j : j + 2], u, v)
        low, high = self._decode[i], self._decode[i + 1]
        return mix(mix(low[j], low[j + 1], v), mix(high[j], high[j + 1], v), u)

    def _uneven_rate(self, contexts: IntArray, count: int, read: int) -> float:
        """Seconds a position that list scheduling takes at least; kept while the batch is much the same."""
        old_count, old_read, left = self._kept
        same = abs(count - old_count) <= KEEP_WITHIN * old_count and abs(read - old_read) <= KEEP_WITHIN * old_read
        if same and left:
            self._kept = (old_count, old_read, left - 1)
        else:
            self._kept = (count, read, KEEP_STEPS)
            self._uneven = self.uneven_s(contexts) / read
        return self._uneven

    def uneven_s(self, contexts: IntArray) -> float:
        """Seconds that decodes reading `contexts` positions take at least: their blocks, one after the other."""
        card = self.card
        if card is None:
            raise LookupError("the blocks of this kernel are not known")
        padded = next((size for size in card.captured if size >= len(contexts)), len(contexts))
        parts = splits(padded * card.kv_heads, card.sms, -(-card.longest // self._tile))
        keys = contexts.astype(np.float64)
        blocks = np.tile(keys, card.kv_heads) if parts == 1 else np.repeat(keys / parts, card.kv_heads * parts)
        return schedule_s(blocks.tolist(), card.sms, self._all_rate, self._one_rate)

    def _mixed_s(self, shape: StepShape, rows: tuple[IntArray, IntArray] | None) -> float:
        """What the work model says of the very blocks, and what the grid says beside it at the like point."""
        tokens, decodes = shape.prefill_tokens, shape.decode_tokens
        mean = shape.prefill_pairs / tokens  # keys a row attends to
        rest = self._rest(tokens, mean, decodes, shape.decode_context / decodes - 1 if decodes else 0.0)
        if self.card is None:
            return max(rest, self._floor)
        if rows is None:
            chunks, befores, contexts = _mean_rows(shape)
        else:
            prefill = rows[0] != 1
            chunks, befores = rows[0][prefill].tolist(), rows[1][prefill].tolist()
            contexts = rows[1][~prefill] + 1
        work = block_work(chunks, befores, contexts, self._tile)
        done = self._work[0] * work.tiles + self._work[1] * work.blocks + self._work[2] * work.empty
        return float(max(rest + done, self._floor))

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
            beyond = beyond or w > 1
            if decodes:
                corner = self.grid.mixed_filled[at, j : j + 2, k : k + 2, m : m + 2]
                beyond = beyond or bool(corner.any() and self._filled(corner.any(axis=0), u, v))
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

    @staticmethod
    def _filled(corner: npt.NDArray[np.bool_], u: float, v: float) -> bool:
        """Whether a point inside a 2 x 2 corner leans on one that was not measured."""
        weight = np.outer((1 - u, u), (1 - v, v))
        return bool((corner & (weight != 0)).any())


def grid_work(grid: AttentionGrid, tile: int) -> tuple[Floats, Floats]:
    """Tiles, blocks and empty blocks, per query head, of every prefill and mixed point: ``(..., 3)``."""
    nobody = np.zeros(0, dtype=np.int64)
    prefill = np.zeros((*grid.prefill_s.shape, 3))
    for i, chunk in enumerate(grid.chunk):
        for j, before in enumerate(grid.before):
            work = block_work([int(chunk)], [int(before)], nobody, tile)
            prefill[i, j] = (work.tiles, work.blocks, work.empty)
    depth = -(-grid.chunk // QUERY_ROWS)
    tiles = -(-(grid.context + 1) // tile)
    mixed = np.repeat(np.repeat(prefill[:, :, None, None], len(grid.decodes), 2), len(grid.context), 3)
    mixed[..., 0] += grid.decodes[:, None] * tiles
    mixed[..., 1] += grid.decodes[:, None]
    mixed[..., 2] += (depth[:, None] - 1)[:, None, :, None] * grid.decodes[:, None]
    return prefill, mixed


def fit_work(grid: AttentionGrid, tile: int) -> Floats:
    """Seconds a tile, a block and an empty block (of all query heads): least relative squares over the mixed points.

    Of no consequence at the grid points, where the difference is added back; it decides how the time of shapes between
    and beside them differs. Never negative.
    """
    _, mixed = grid_work(grid, tile)
    modest = (grid.decodes[:, None] * grid.context <= MODEST) & ~grid.mixed_filled
    times = grid.mixed_s[modest]
    columns = np.column_stack((mixed[modest], np.ones(len(times)))) / times[:, None]
    use = [0, 1, 2, 3]
    while True:
        found = np.linalg.lstsq(columns[:, use], np.ones(len(times)), rcond=None)[0]
        if (found >= 0).all():
            break
        use = [column for column, value in zip(use, found, strict=True) if value >= 0]
    result = np.zeros(4)
    result[use] = found
    return result[:3]


def block_rates(grid: AttentionGrid, card: Card) -> tuple[float, float]:
    """Keys a second, from the slopes at the long end of the grid: of all blocks together, and of one at its fastest.

    All together: most decodes, which are bound by memory. One: a prefill alone, whose blocks follow each other on an SM
    as often as they do not fit at once.
    """
    span = grid.context[-1] - grid.context[-2]
    all_rate = card.kv_heads * grid.decodes[-1] * span / (grid.decode_s[-1, -1] - grid.decode_s[-1, -2])
    rounds = -(-(-(-grid.chunk // QUERY_ROWS) * card.heads) // card.sms)
    longer = grid.prefill_s[:, -1] - grid.prefill_s[:, -2]
    one_rate = (rounds * (grid.before[-1] - grid.before[-2]) / longer).max()
    return float(all_rate), float(one_rate)


def _no_work() -> Floats:
    return np.zeros(3)


def _rows(shape: StepShape) -> tuple[IntArray, IntArray] | None:
    """``(new tokens, history)`` of each request; None where only sums are known, or rows are padding."""
    try:
        new, before = shape.per_request()
    except LookupError:
        return None
    if shape.layout == "padded" or len(new) != shape.num_reqs:
        return None
    return new, before


def _mean_rows(shape: StepShape) -> tuple[Sequence[int], Sequence[int], IntArray]:
    """A step of equal prefills and equal decodes with the same sums."""
    decodes, tokens = shape.decode_tokens, shape.prefill_tokens
    prefills = max(1, shape.num_reqs - decodes)
    chunk = max(1, round(tokens / prefills))
    before = max(0, round(shape.prefill_context / prefills) - chunk)
    context = round(shape.decode_context / decodes) if decodes else 0
    return [chunk] * prefills, [before] * prefills, np.full(decodes, context, dtype=np.int64)


__all__ = ["AttentionTable", "Card", "Cell"]
