"""Ragged paged attention: one kernel for prefill chunks and decodes, and a reduction where contexts are split.

A program takes a tile of query rows of one request and one KV head: tokens x the query heads that share the KV head
(GQA), packed. It walks the request's KV positions a tile at a time (the tile has nothing to do with the block size)
with an online softmax in float32 (FlashAttention-2, arXiv 2307.08691). Small batches over long contexts split each
context among programs and merge the parts by their log-sum-exp (flash-decoding).
"""
# Triton's language is not typed Python, and its compile-time parameters are upper case:
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import INTERPRETED, attention_splits, attention_tiles, power_of_two, processors, target, warps

LOG2_E = 1.4426950408889634
"""log2(e): the kernel's softmax works with powers of two."""


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Who attends to what, on the device; rows from ``query_start_loc[N]`` on belong to no request.

    Attributes:
        query_start_loc: int32 ``(N + 1,)`` at least.
        seq_lens: KV positions of each request, its new ones included, int32 ``(N,)``; 0 for a request without rows.
        block_table: block ids, int32 ``(N, most blocks)``, or of all seats with `slots`.
        max_query_len, max_seq_len: bounds that choose tiles and splits; a captured graph gives those it must hold for.
        slots: row of the block table of each request, int64 ``(N,)``; None: its own number.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_query_len: int
    max_seq_len: int
    slots: Tensor | None = None


@triton.jit
def _request_of(tile, starts_ptr, num_requests, TOKENS: tl.constexpr):
    """The request that tile number `tile` belongs to; `num_requests` for the padding rows.

    Request i's tiles begin at ``starts[i] // TOKENS + i``: at least as many numbers as it needs lie before the next.
    """
    low = 0
    high = num_requests + 1
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _attend(
    q, acc, peak, total, keys_ptr, values_ptr, blocks_ptr, first, end, limit, positions, scale,
    block_stride, token_stride, cols, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Go over KV positions ``[first, end)`` in tiles; masked: up to `limit` and to each row's own position."""
    whole: tl.constexpr = cols.shape[0] == HEAD_DIM
    for start in range(first, end, BLOCK_N):
        places = start + tl.arange(0, BLOCK_N)
        inside = places < limit
        if MASKED:
            blocks = tl.load(blocks_ptr + places // BLOCK_SIZE, mask=inside, other=0)
        else:
            blocks = tl.load(blocks_ptr + places // BLOCK_SIZE)
        tokens = blocks.to(tl.int64) * block_stride + (places % BLOCK_SIZE) * token_stride
        if MASKED or not whole:
            k_mask = (cols < HEAD_DIM)[:, None] & inside[None, :]
            k = tl.load(keys_ptr + tokens[None, :] + cols[:, None], mask=k_mask, other=0.0)
            v_mask = inside[:, None] & (cols < HEAD_DIM)[None, :]
            v = tl.load(values_ptr + tokens[:, None] + cols[None, :], mask=v_mask, other=0.0)
        else:
            k = tl.load(keys_ptr + tokens[None, :] + cols[:, None])
            v = tl.load(values_ptr + tokens[:, None] + cols[None, :])
        if UPCAST:  # the interpreter multiplies the bits of bfloat16
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if MASKED:
            scores = tl.where(places[None, :] <= positions[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        # a row that has seen no key yet: any finite number gives it weights of 0
        safe = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(peak - safe)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc=acc * shrink[:, None], input_precision="ieee")
        peak = higher
    return acc, peak, total


# what changes from step to step must not be compiled for: no code for a count of 1, or one that 16 divides
@triton.jit(
    do_not_specialize=["num_requests", "num_rows", "splits", "table_stride"],
    do_not_specialize_on_alignment=["blocks_ptr", "slots_ptr", "starts_ptr", "seq_lens_ptr"],
)
def _attention_kernel(
    out_ptr, lse_ptr, q_ptr, keys_ptr, values_ptr, blocks_ptr, slots_ptr, starts_ptr, seq_lens_ptr,
    num_requests, num_rows, splits, scale, out_stride, q_stride, table_stride, block_stride, token_stride,
    Q_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, SEATS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """One program a tile of query tokens, KV head and split."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request = _request_of(tile, starts_ptr, num_requests, TOKENS)
    begin = tl.load(starts_ptr + request)
    first = (tile - begin // TOKENS - request) * TOKENS
    real = request < num_requests
    query_len = tl.load(starts_ptr + request + 1, mask=real, other=num_rows) - begin
    if first >= query_len:
        return
    seq_len = tl.load(seq_lens_ptr + request, mask=real, other=0)
    seat = tl.load(slots_ptr + request, mask=real, other=0) if SEATS else request
    context = seq_len - query_len

    packed = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_D)
    token = first + packed // GROUP
    rows = (begin + token).to(tl.int64)
    heads = kv_head * GROUP + packed % GROUP
    row_mask = (packed < TOKENS * GROUP) & (token < query_len)
    mask = row_mask[:, None] & (cols < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + (rows * q_stride + heads * HEAD_DIM)[:, None] + cols[None, :], mask=mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    # keys that some row of the tile sees, the part of them that is this split's, and up to where all rows see all
    seen = tl.minimum(seq_len, context + first + TOKENS)
    share = tl.cdiv(tl.cdiv(seen, BLOCK_N), splits) * BLOCK_N
    low = split * share
    high = tl.minimum(seen, low + share)
    clear = tl.maximum(context + first + 1, 0) // BLOCK_N * BLOCK_N

    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    keys_ptr += kv_head * HEAD_DIM
    values_ptr += kv_head * HEAD_DIM
    blocks_ptr += seat.to(tl.int64) * table_stride
    acc, peak, total = _attend(
        q, acc, peak, total, keys_ptr, values_ptr, blocks_ptr, low, tl.minimum(high, clear), seq_len, context + token,
        scale, block_stride, token_stride, cols, HEAD_DIM, BLOCK_N, BLOCK_SIZE, False, UPCAST,
    )  # fmt: skip
    acc, peak, total = _attend(
        q, acc, peak, total, keys_ptr, values_ptr, blocks_ptr, tl.maximum(low, clear), high, seq_len, context + token,
        scale, block_stride, token_stride, cols, HEAD_DIM, BLOCK_N, BLOCK_SIZE, True, UPCAST,
    )  # fmt: skip

    # nothing seen (padding rows, an idle split): zeros
    total = tl.where(total == 0.0, 1.0, total)
    acc /= total[:, None]
    if SPLIT:
        places = (rows * Q_HEADS + heads) * splits + split
        tl.store(lse_ptr + places, peak + tl.log2(total), mask=row_mask)
        tl.store(out_ptr + places[:, None] * HEAD_DIM + cols[None, :], acc, mask=mask)
    else:
        places = rows * out_stride + heads * HEAD_DIM
        tl.store(out_ptr + places[:, None] + cols[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=["splits"])
def _merge_kernel(
    out_ptr, parts_ptr, lse_ptr, splits, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr
):
    """One program a row and query head: the parts of its context, weighted by their sums."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, BLOCK_S)
    cols = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + row * splits + parts, mask=parts < splits, other=float("-inf"))
    peak = tl.max(lse, axis=0)
    weights = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights, axis=0)
    mask = (parts < splits)[:, None] & (cols < HEAD_DIM)[None, :]
    values = tl.load(parts_ptr + (row * splits + parts)[:, None] * HEAD_DIM + cols[None, :], mask=mask, other=0.0)
    merged = tl.sum(values * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HEAD_DIM + cols, merged, mask=cols < HEAD_DIM)


def attention(
    q: Tensor, keys: Tensor, values: Tensor, batch: RaggedBatch, scale: float, splits: int | None = None
) -> Tensor:
    """Causal attention of a flat row over one layer's cache: ``(T, Hq * D)``, zeros in padding rows.

    Args:
        q: ``(T, Hq, D)``; a token's heads lie end to end, tokens may be strided.
        keys: one layer's, ``(num_blocks, block_size, Hkv, D)``, contiguous, the step's own written already.
        values: likewise.
        batch: who attends to what.
        scale: of the scores, usually ``D ** -0.5``.
        splits: into how many parts contexts are split; default: as many as the device has use for.
    """
    rows, q_heads, head_dim = q.shape
    kv_heads = keys.shape[2]
    group = q_heads // kv_heads
    tiles = attention_tiles(head_dim, q.dtype, group, batch.max_query_len, target())
    tokens = tiles.rows // group
    requests = len(batch.seq_lens)
    programs = rows // tokens + requests + 1  # enough numbers for `_request_of`; some find nothing to do
    if splits is None:
        busy = max(rows // tokens, requests) * kv_heads
        splits = attention_splits(busy, batch.max_seq_len, processors(q.device))
    out = torch.empty((rows, q_heads * head_dim), dtype=q.dtype, device=q.device)
    parts, lse = _workspace(out, q_heads, splits) if splits > 1 else (out, None)
    _attention_kernel[(programs, kv_heads, splits)](
        parts, lse, q, keys, values, batch.block_table, batch.slots, batch.query_start_loc, batch.seq_lens,
        requests, rows, splits, scale * LOG2_E, out.stride(0), q.stride(0), batch.block_table.stride(0),
        keys.stride(0), keys.stride(1), Q_HEADS=q_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_D=max(16, power_of_two(head_dim)), TOKENS=tokens, BLOCK_M=tiles.rows, BLOCK_N=tiles.keys,
        BLOCK_SIZE=keys.shape[1], SPLIT=splits > 1, SEATS=batch.slots is not None, UPCAST=INTERPRETED,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    if lse is not None:
        _merge(out, parts, lse, head_dim, splits)
    return out


def _workspace(out: Tensor, q_heads: int, splits: int) -> tuple[Tensor, Tensor]:
    """Room for the parts of each row and head, float32, and for their log-sum-exps (base 2)."""
    rows, width = out.shape
    parts = torch.empty((rows, splits * width), dtype=torch.float32, device=out.device)
    return parts, torch.empty((rows, q_heads * splits), dtype=torch.float32, device=out.device)


def _merge(out: Tensor, parts: Tensor, lse: Tensor, head_dim: int, splits: int) -> None:
    block_d, block_s = power_of_two(head_dim), power_of_two(splits)
    _merge_kernel[(out.numel() // head_dim,)](
        out, parts, lse, splits, HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_S=block_s,
        num_warps=warps(block_d * block_s),
    )  # fmt: skip
