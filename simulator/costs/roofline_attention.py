"""The roofline of attention, from the sums of a step: decodes alone, prefills, and both in one kernel."""

from __future__ import annotations

import numpy as np

from scheduler.plan import StepShape

from ..hardware import HardwareSheet
from ..models import ModelSheet
from .memo import Memo


class Attention:
    """Attention of all layers, from the sums of a step; all constants are worked out beforehand.

    Thread blocks take one tile of query rows of one head (of one KV head, where the group is packed) through all keys.
    Beside prefills a decode row is such a tile too, mostly empty: this is what makes mixed steps dear. Lengths and
    times of blocks are counted in keys until the end.
    """

    def __init__(self, model: ModelSheet, hardware: HardwareSheet, tp: int, kv_width: float, separate: bool) -> None:
        eff, layers = hardware.efficiency, model.layers
        heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
        kv_s = 2 * kv_heads * model.head_dim * kv_width / (hardware.memory_bandwidth * eff.kv_bandwidth)
        blocks = kv_heads / hardware.sms
        # Seconds an SM takes for one tile of query rows against one key: two products of 2 x head_dim FLOPs a pair.
        key_s = 4 * model.head_dim * eff.query_tile * hardware.sms / (hardware.bf16_flops * eff.attention_compute)
        self.decode = (
            layers * eff.decode_s, layers * eff.decode_tile_s * blocks, layers * eff.decode_block_s * blocks,
            layers * kv_s,
        )  # fmt: skip
        self.tile_tokens = max(1, eff.query_tile * kv_heads // heads) if eff.packs_group else eff.query_tile
        tiles_per_sm = (kv_heads if eff.packs_group else heads) / hardware.sms
        self.at_once = 1.0 / tiles_per_sm
        self.waves = Memo(lambda tiles: waves(tiles * tiles_per_sm))
        # The tile reaches (rows - 1) / 2 beyond its mean row, and keys end evenly anywhere in their last tile.
        half_tile = (eff.key_tile - 1) / 2
        more_keys = half_tile + (self.tile_tokens - 1) / 2
        self.keys = (eff.key_tile, eff.tile_keys, half_tile, more_keys, eff.tail, eff.empty_keys * tiles_per_sm)
        self.seconds = (layers * eff.attention_s, layers * key_s, kv_s / key_s)
        self.separate = separate

    def decode_s(self, rows: int, context: int) -> float:
        """Seconds of a kernel for decode rows alone."""
        floor, tile_s, block_s, position_s = self.decode
        return floor + max(tile_s * rows, block_s * rows + position_s * context) if rows else 0.0

    def mixed_s(self, rows: int, read: int, tokens: int, context: int, pairs: int, requests: int) -> float:
        """Seconds of `tokens` prefill rows of `requests` requests, with `rows` decode rows that read `read` positions.

        One kernel for all, or for the prefills only and another for the decodes. Where all blocks find an SM of their
        own the longest decides; else an SM that gets blocks of both kinds has both to do.
        """
        if requests < 1:
            requests = 1
        key_tile, start, half_tile, more, tail, empty = self.keys
        depth = -(-tokens // (self.tile_tokens * requests))
        tiles = requests * depth
        keys = longest = start - context // (-requests * key_tile) * key_tile
        if tiles > self.at_once:
            mean = pairs / tokens + more
            mean = longest if mean + start > longest else start + (mean if mean > key_tile else key_tile)
            keys = self.waves[tiles] * mean + tail * (longest - mean)
            if keys < longest:
                keys = longest
        beside = 0.0
        if self.separate:
            beside = self.decode_s(rows, read)
        elif rows:
            context += read
            decode = read / rows + half_tile
            decode = start + (decode if decode > key_tile else key_tile)
            if tiles + rows > self.at_once:
                keys += self.waves[rows] * decode + empty * rows * (depth - 1)
            elif decode > keys:
                keys = decode
        start_s, key_s, kv_keys = self.seconds
        least = kv_keys * context  # all KV must be read, too
        return start_s + key_s * (keys if keys > least else least) + beside


def waves(blocks: float) -> float:
    """Waves of `blocks` an SM: one at least, and of more the idle places of the last in the share of one wave of all.

    Blocks of unequal length fill these places the better the more waves there are; only powers of two were measured.
    """
    whole = -(-blocks // 1.0)
    return blocks + (whole - blocks) / whole


def windowed_sums(shape: StepShape, window: int) -> tuple[int, int, int, int, int, int]:
    """``(decodes, context, prefill tokens, context, pairs, prefills)`` with no row attending beyond `window` positions.

    Exact from the per-request arrays where the shape has them; else each request is taken to have the mean context.
    """
    try:
        new, before = shape.per_request()
    except LookupError:
        return _windowed_means(shape, window)
    if shape.layout == "padded" or int(new.sum()) != shape.decode_tokens + shape.prefill_tokens:
        return _windowed_means(shape, window)  # padding rows are in the sums alone
    decode = (new == 1) & (before > 0)
    reach = np.minimum(before[decode] + 1, window)
    n, c = new[~decode], before[~decode]
    full = np.clip(n + c - window, 0, n)  # rows that see a whole window
    rising = n - full
    pairs = full * window + rising * c + rising * (rising + 1) // 2
    held = np.minimum(n + c, window + n)
    return (
        shape.decode_tokens, int(reach.sum()), shape.prefill_tokens, int(held.sum()), int(pairs.sum()), len(n),
    )  # fmt: skip


def _windowed_means(shape: StepShape, window: int) -> tuple[int, int, int, int, int, int]:
    prefills = max(0, shape.num_reqs - shape.decode_tokens)
    return (
        shape.decode_tokens,
        min(shape.decode_context, shape.decode_tokens * window),
        shape.prefill_tokens,
        min(shape.prefill_context, prefills * window + shape.prefill_tokens),
        min(shape.prefill_pairs, shape.prefill_tokens * window),
        prefills,
    )
