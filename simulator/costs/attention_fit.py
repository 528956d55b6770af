"""What a grid of attention times tells about the thread blocks that made them: their cost, and how fast they go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError

from .attention_blocks import QUERY_ROWS, block_work
from .attention_grid import AttentionGrid

Floats = npt.NDArray[np.float64]
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
    rise = float(grid.decode_s[-1, -1] - grid.decode_s[-1, -2])
    all_rate = card.kv_heads * grid.decodes[-1] * span / rise if rise else 0.0
    rounds = -(-(-(-grid.chunk // QUERY_ROWS) * card.heads) // card.sms)
    longer = grid.prefill_s[:, -1] - grid.prefill_s[:, -2]
    if not (longer > 0).all() or not np.isfinite(all_rate) or all_rate <= 0:
        raise ConfigError("attention takes no longer with the longest histories of the table; expected it to rise")
    one_rate = (rounds * (grid.before[-1] - grid.before[-2]) / longer).max()
    return float(all_rate), float(one_rate)
