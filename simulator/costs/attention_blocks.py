"""How FlashAttention 2 cuts attention into thread blocks, and how long a list of unequal blocks takes on the SMs.

A block is one tile of query rows of one head; it walks through all keys of its request, tile by tile. From the public
source (https://github.com/Dao-AILab/flash-attention, csrc/flash_attn): with paged KV a query tile has 64 rows, a key
tile 128 keys at a head width of 65 to 128, 256 below, 64 above. In a step of decodes alone the query heads of a KV head
are rows of one tile; beside a prefill every query head has a tile of its own. The grid is as deep as the longest query
of the step, so that shorter requests leave blocks empty. Blocks start in order: all requests of a head, then the next
head; where they are too few to fill the SMs, each is split along the keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

QUERY_ROWS = 64
ENOUGH = 0.8
"""Of the places for blocks: with so many or more, FlashAttention does not split (`num_splits_heuristic`)."""
NEAR_BEST = 0.85
"""Of the best occupancy: it takes the fewest splits that reach so much."""
MOST_SPLITS = 128
ROUNDS = 4
BLOCKS_AN_SM = 2
"""Places an SM that the heuristic counts, whatever fits."""


@dataclass(frozen=True)
class BlockWork:
    """Blocks of a step, per query head: key tiles walked through, blocks that do so, blocks without rows."""

    tiles: int
    blocks: int
    empty: int


def key_tile(head_dim: int) -> int:
    """Keys a tile."""
    if head_dim <= 64:
        return 256
    return 128 if head_dim <= 128 else 64


def block_work(chunks: Sequence[int], befores: Sequence[int], contexts: Ints, tile: int) -> BlockWork:
    """Blocks of a step with prefills.

    Args:
        chunks: rows of each prefill.
        befores: history of each.
        contexts: ``(decodes,)`` keys that each decode row reads.
        tile: keys a tile.
    """
    depths = [-(-chunk // QUERY_ROWS) for chunk in chunks]
    tiles = int((-(-contexts // tile)).sum() + prefill_tiles(chunks, befores, tile).sum())
    blocks = sum(depths) + len(contexts)
    return BlockWork(tiles, blocks, (len(chunks) + len(contexts)) * max(depths, default=1) - blocks)


def prefill_tiles(chunks: Sequence[int], befores: Sequence[int], tile: int) -> Ints:
    """Key tiles that each block of prefills of one query head walks through, in order: up to its last row's own key."""
    ends = [before + np.minimum(np.arange(QUERY_ROWS, chunk + QUERY_ROWS, QUERY_ROWS), chunk)
            for chunk, before in zip(chunks, befores, strict=True)]  # fmt: skip
    return -(-np.concatenate(ends) // tile) if ends else np.zeros(0, dtype=np.int64)


def whole_tiles(contexts: Ints, tile: int) -> float:
    """Mean history at which a request of equal cost would be measured: whole tiles and one key more.

    Profiles measure at multiples of the tile: the new token then opens a tile of its own. A context elsewhere has as
    many tiles as the next such point. Below one tile it is the history itself.
    """
    before = contexts - 1
    started = before % tile
    started[before < tile] = 0
    return float((before - started).sum()) / len(before)


@cache
def splits(blocks: int, sms: int, key_tiles: int) -> int:
    """Parts that FlashAttention cuts each of `blocks` into along its `key_tiles` (`num_splits_heuristic`)."""
    places = BLOCKS_AN_SM * sms
    if blocks >= ENOUGH * places:
        return 1
    most = min(MOST_SPLITS, places, key_tiles)
    eligible = [n for n in range(1, most + 1) if n == 1 or -(-key_tiles // n) != -(-key_tiles // (n - 1))]
    waves = {n: blocks * n / places for n in eligible}
    occupancy = {n: wave / -(-wave // 1) for n, wave in waves.items()}
    best = max(occupancy.values())
    return next(n for n in eligible if occupancy[n] >= NEAR_BEST * best)


def schedule_s(keys: Sequence[float], slots: int, all_rate: float, one_rate: float) -> float:
    """Seconds until the last of some blocks is through.

    They start in order as slots fall free (greedy list scheduling). Those that run share the memory's rate evenly; none
    goes faster than its SM computes.

    Args:
        keys: of each block, in order.
        slots: blocks that run at once.
        all_rate: keys a second of all together.
        one_rate: most keys a second of one.
    """
    ends = list(keys[:slots])
    heapq.heapify(ends)
    for length in keys[slots:]:  # while all slots are busy all go at one pace, so keys are the clock
        heapq.heapreplace(ends, ends[0] + length)
    ordered = np.sort(np.array(ends))
    active = np.arange(len(ordered), 0, -1)
    passed = np.diff(ordered, prepend=0.0)
    return float((passed / np.minimum(one_rate, all_rate / active)).sum())


def tail_s(keys: Sequence[float], copies: int, slots: int, all_rate: float, one_rate: float) -> float:
    """Seconds that `copies` of a list of blocks take longer than if all slots were busy to the end.

    It settles after a few rounds of the slots, so no more than `ROUNDS` are followed.
    """
    blocks = list(keys) * min(copies, -(-ROUNDS * slots // len(keys)))
    pace = min(all_rate, one_rate * slots)
    return schedule_s(blocks, slots, all_rate, one_rate) - sum(blocks) / pace
