"""Attention over the paged cache by torch operators: contexts are gathered by block, then scaled-dot-product attention.

What does not change from layer to layer (which blocks, which rows, which masks, where results go) is worked out once
per step, in a plan of parts that each attend in one call:

- requests with one new token, sorted by context and cut into groups of similar length (`group_sizes`); the query heads
  that share a KV head stand as rows of one small product (grouped-query attention packed);
- longer chunks, one request each, with a causal mask;
- or the rectangle of a padded step, whole, with its mask.

The parts gather into the same buffers one after the other, so that what was gathered is still in the CPU's cache when
it is read: with all parts gathered first, attention took a tenth to a fifth longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from scheduler.plan import IntArray

from ..kv_cache import KvCache
from .base import FlatAttention, PaddedAttention, StepInputs
from .scratch import Scratch

GROUP_OVERHEAD = 200
"""What one more group costs, in padding tokens: about 30 µs of calls against 0.16 µs per token (measured at 2 KV heads
of 64 in float32, one thread)."""

GROUP_TOKENS = 2048
"""Most tokens that a group of several requests gathers, padding included."""


@dataclass(slots=True)
class Part:
    """Requests that attend in one call; all tensors are views of buffers that the parts share.

    Attributes:
        blocks: block ids to gather, int64 ``(blocks,)``.
        stored_keys, stored_values: where they are gathered, one row a block, in the cache's dtype.
        wide_keys, wide_values: the same in the compute dtype; None where that is the cache's.
        keys, values: what was gathered, as attention reads it, ``(requests, Hkv, width, D)``.
        q, out: the part's queries and results, ``(requests, heads, queries, D)``.
        mask: added to the scores, broadcast to ``(requests, heads, queries, width)``; None: everything is seen.
        causal: the mask is the plain triangle (a prompt from its beginning).
    """

    blocks: Tensor
    stored_keys: Tensor
    stored_values: Tensor
    wide_keys: Tensor | None
    wide_values: Tensor | None
    keys: Tensor
    values: Tensor
    q: Tensor
    out: Tensor
    mask: Tensor | None
    causal: bool


@dataclass(slots=True)
class AttentionPlan:
    """A step's attention.

    Attributes:
        rows: rows of the step in the order of the parts, int64 ``(rows of requests,)``; None: in the step's own order.
        q, result: queries and results in the order of the parts, ``(rows of requests, Hq, D)``.
        out: results in the step's order, ``(T, Hq * D)``; may be `result` itself.
        parts: what attends together.
    """

    rows: Tensor | None
    q: Tensor
    result: Tensor
    out: Tensor
    parts: list[Part]


def plan_attention(
    inputs: StepInputs, cache: KvCache, num_heads: int, dtype: torch.dtype, scratch: Scratch
) -> AttentionPlan:
    """The plan of a step whose activations have `dtype`."""
    attention = inputs.attention
    planner = _Planner(cache, num_heads, dtype, scratch)
    if isinstance(attention, FlatAttention):
        rows, parts = _flat(planner, attention)
    else:
        rows, parts = np.arange(attention.rows * attention.cols), [_rectangle(planner, attention)]
    return planner.finish(rows, parts, len(inputs.input_ids))


def attend(q: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Attention of `q` ``(T, Hq, D)`` over one layer's cache: ``(T, Hq * D)``, zeros in rows that belong to nobody."""
    keys, values = keys.flatten(1), values.flatten(1)
    if plan.rows is None:
        plan.q.copy_(q[: len(plan.q)])
    else:
        torch.index_select(q, 0, plan.rows, out=plan.q)
    for part in plan.parts:
        _attend_part(part, keys, values, scale)
    if plan.rows is not None:
        plan.out.index_copy_(0, plan.rows, plan.result.flatten(1))
    return plan.out


def _attend_part(part: Part, keys: Tensor, values: Tensor, scale: float) -> None:
    torch.index_select(keys, 0, part.blocks, out=part.stored_keys)
    torch.index_select(values, 0, part.blocks, out=part.stored_values)
    if part.wide_keys is not None and part.wide_values is not None:
        part.wide_keys.copy_(part.stored_keys)
        part.wide_values.copy_(part.stored_values)
    grouped = part.q.shape[1] != part.keys.shape[1]
    part.out.copy_(
        F.scaled_dot_product_attention(
            part.q, part.keys, part.values, part.mask, is_causal=part.causal, scale=scale, enable_gqa=grouped
        )
    )


def group_sizes(blocks: Sequence[int], block_size: int) -> list[int]:
    """Sizes of groups of requests, sorted by their number of blocks, in which padding to the longest stays cheap.

    From the longest down, a group grows while its padding costs less than one more group would (`GROUP_OVERHEAD`) and
    what it gathers stays small (`GROUP_TOKENS`).
    """
    sizes: list[int] = []
    longest = waste = size = 0
    for count in reversed(blocks):
        waste += (longest - count) * block_size
        if size and (waste > GROUP_OVERHEAD or (size + 1) * longest * block_size > GROUP_TOKENS):
            sizes.append(size)
            size = 0
        if not size:
            longest, waste = count, 0
        size += 1
    if size:
        sizes.append(size)
    return sizes[::-1]


class _Planner:
    """Cuts the shared buffers into the views of parts."""

    def __init__(self, cache: KvCache, num_heads: int, dtype: torch.dtype, scratch: Scratch) -> None:
        _, _, self.block_size, self._kv_heads, self._head_dim = cache.keys.shape
        self._heads = num_heads
        self._stored = cache.keys.dtype
        self._scratch = scratch
        self.dtype = dtype
        self.device = cache.keys.device

    def part(
        self, table: npt.NDArray[Any], width: int, queries: int, mask: Tensor | None, *, causal: bool = False
    ) -> tuple[Part, int]:
        """A part of ``len(table)`` requests that read `width` positions of the table's blocks; and its rows.

        Its `q` and `out` are only shapes yet: `finish` cuts them from the step's.
        """
        count, wide = table.shape
        shape = (count * wide, self.block_size * self._kv_heads * self._head_dim)
        stored = [self._scratch.take(f"stored {name}", shape, self._stored, self.device) for name in ("k", "v")]
        same = self._stored == self.dtype
        read = stored if same else [self._scratch.take(n, shape, self.dtype, self.device) for n in ("k", "v")]
        keys, values = (
            buffer.view(count, wide * self.block_size, self._kv_heads, self._head_dim)[:, :width].transpose(1, 2)
            for buffer in read
        )
        wide_keys, wide_values = (None, None) if same else read
        none = stored[0].new_empty(0)
        blocks = to_index(table.reshape(-1), self.device)
        part = Part(blocks, stored[0], stored[1], wide_keys, wide_values, keys, values, none, none, mask, causal)
        return part, count * queries

    def finish(self, rows: IntArray, parts: list[tuple[Part, int]], total: int) -> AttentionPlan:
        """Cut queries and results for the parts; `rows` in their order out of `total` rows of the step."""
        shape = (len(rows), self._heads, self._head_dim)
        q = self._scratch.take("queries", shape, self.dtype, self.device)
        result = self._scratch.take("attended", (total, *shape[1:]), self.dtype, self.device)
        result[len(rows) :] = 0.0
        first = 0
        for part, count in parts:
            part.q = self._heads_first(q[first : first + count], len(part.keys))
            part.out = self._heads_first(result[first : first + count], len(part.keys))
            first += count
        in_order = bool((rows == np.arange(len(rows))).all())
        if in_order:
            return AttentionPlan(None, q, result, result.flatten(1), [part for part, _ in parts])
        out = self._scratch.take("attention", (total, shape[1] * shape[2]), self.dtype, self.device)
        out[len(rows) :] = 0.0
        index = to_index(rows, self.device)
        return AttentionPlan(index, q, result[: len(rows)], out, [part for part, _ in parts])

    def _heads_first(self, rows: Tensor, requests: int) -> Tensor:
        """Rows of a part as attention takes them: ``(requests, heads, queries, D)``.

        With one query a request, the query heads of a KV head stand in the place of queries.
        """
        if len(rows) == requests:
            return rows.view(requests, self._kv_heads, -1, self._head_dim)
        return rows.view(requests, -1, self._heads, self._head_dim).transpose(1, 2)


def _flat(planner: _Planner, attention: FlatAttention) -> tuple[IntArray, list[tuple[Part, int]]]:
    """Rows and parts of a flat row: groups of decodes, then the chunks."""
    host, block_size = attention.host, planner.block_size
    if host is None:
        raise RuntimeError("the torch path plans its attention from the batch's numpy arrays; they were not given")
    lens = host.seq_lens.astype(np.int64)
    starts = host.query_start_loc[: len(lens) + 1].astype(np.int64)
    queries = np.diff(starts)
    blocks = -(-lens // block_size)
    decodes = np.flatnonzero(queries == 1)
    decodes = decodes[np.argsort(blocks[decodes], kind="stable")]
    rows, parts, done = [starts[decodes]], [], 0
    for size in group_sizes(blocks[decodes].tolist(), block_size):
        members = decodes[done : done + size]
        wide = int(blocks[members[-1]])
        mask = _length_mask(lens[members], wide * block_size, planner)
        parts.append(planner.part(host.block_table[members, :wide], wide * block_size, 1, mask))
        done += size
    for request in np.flatnonzero(queries > 1):
        count, length = int(queries[request]), int(lens[request])
        mask = None if count == length else _chunk_mask(count, length, planner)
        table = host.block_table[request : request + 1, : blocks[request]]
        parts.append(planner.part(table, length, count, mask, causal=mask is None))
        rows.append(np.arange(starts[request], starts[request + 1]))
    return np.concatenate(rows), parts


def _rectangle(planner: _Planner, attention: PaddedAttention) -> tuple[Part, int]:
    """The rectangle as one part: every cell computes, padding too."""
    rows, cols, width = attention.rows, attention.cols, attention.width
    table = attention.batch.block_table
    wide = -(-width // planner.block_size)
    blocks = np.zeros((rows, wide), dtype=np.int64)  # null blocks where the table ends before the rectangle does
    held = min(wide, table.shape[1])
    blocks[:, :held] = table[:, :held]
    mask = torch.full((rows, 1, cols, width), -torch.inf, dtype=planner.dtype, device=planner.device)
    return planner.part(blocks, width, cols, mask.masked_fill_(attention.mask.unsqueeze(1), 0.0))


def _length_mask(lens: IntArray, width: int, planner: _Planner) -> Tensor | None:
    """Positions from each length on are not seen, ``(requests, 1, 1, width)``; None when there are none."""
    if (lens == width).all():
        return None
    return _additive(np.arange(width) < lens[:, None], planner)[:, None, None, :]


def _chunk_mask(queries: int, length: int, planner: _Planner) -> Tensor:
    """The last `queries` rows of the causal triangle over `length` positions, ``(1, 1, queries, length)``."""
    last = np.arange(length - queries, length)
    return _additive(np.arange(length) <= last[:, None], planner)[None, None]


def _additive(seen: npt.NDArray[np.bool_], planner: _Planner) -> Tensor:
    """0 where seen, minus infinity elsewhere."""
    zeros = torch.zeros(seen.shape, dtype=planner.dtype, device=planner.device)
    return zeros.masked_fill_(torch.from_numpy(~seen).to(planner.device), -torch.inf)


def to_index(ids: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Indices on the device, int64."""
    return torch.from_numpy(ids.astype(np.int64)).to(device)
