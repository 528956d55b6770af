"""Rotary embedding of queries and keys, in place."""
# Triton's language is not typed Python, and its compile-time parameters are upper case:
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .tiles import power_of_two, warps


@triton.jit
def _rotate(row_ptr, cos, sin, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr):
    """Rotate the first half of each head with its second half."""
    heads = tl.arange(0, BLOCK_H)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (heads < HEADS) & (cols < HALF)
    places = row_ptr + heads * (2 * HALF) + cols
    first = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(places, first * cos - second * sin, mask=inside)
    tl.store(places + HALF, second * cos + first * sin, mask=inside)


@triton.jit
def _rope_kernel(
    q_ptr, k_ptr, positions_ptr, cos_sin_ptr, q_stride, k_stride,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a token: all its query and key heads."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)[None, :]
    angles = cos_sin_ptr + tl.load(positions_ptr + row) * (2 * HALF) + cols
    cos = tl.load(angles, mask=cols < HALF, other=0.0).to(tl.float32)
    sin = tl.load(angles + HALF, mask=cols < HALF, other=0.0).to(tl.float32)
    _rotate(q_ptr + row * q_stride, cos, sin, Q_HEADS, HALF, BLOCK_Q, BLOCK)
    _rotate(k_ptr + row * k_stride, cos, sin, K_HEADS, HALF, BLOCK_K, BLOCK)


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate `q` ``(T, Hq, D)`` and `k` ``(T, Hkv, D)`` in place (GPT-NeoX order, as Llama checkpoints have it).

    Args:
        q: a token's heads lie end to end; tokens may be strided (views into rows of QKV).
        k: likewise.
        positions: of each token, int64 ``(T,)``.
        cos_sin: the angles of all positions, contiguous ``(max positions, D)``: D/2 cosines, then D/2 sines.
    """
    rows, q_heads, size = q.shape
    k_heads, half = k.shape[1], size // 2
    block_q, block_k, block = power_of_two(q_heads), power_of_two(k_heads), power_of_two(half)
    _rope_kernel[(rows,)](
        q, k, positions, cos_sin, q.stride(0), k.stride(0), Q_HEADS=q_heads, K_HEADS=k_heads, HALF=half,
        BLOCK_Q=block_q, BLOCK_K=block_k, BLOCK=block, num_warps=warps(2 * block_q * block),
    )  # fmt: skip
