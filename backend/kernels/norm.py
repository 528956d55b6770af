"""RMSNorm: of rows, of rows after adding the residual, and of each head of queries and keys."""
# Triton's language is not typed Python, and its compile-time parameters are upper case:
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import power_of_two, warps


@triton.jit
def _normed(x, weight, eps, SIZE: tl.constexpr):
    """RMSNorm over axis 1 in float32, rounded to the weights' type before the weights, as transformers does it."""
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / SIZE + eps)
    rounded = (x * inverse[:, None]).to(weight.dtype).to(tl.float32)
    return rounded * weight.to(tl.float32)


@triton.jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, x_stride, residual_stride, eps,
    ADD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)[None, :]
    inside = cols < SIZE
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * residual_stride + cols, mask=inside, other=0.0).to(tl.float32)
        total = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * SIZE + cols, total, mask=inside)
        x = total.to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0)
    tl.store(out_ptr + row * SIZE + cols, _normed(x, weight, eps, SIZE), mask=inside)


@triton.jit
def _head_norm_kernel(
    x_ptr, weight_ptr, stride, eps, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a token: all its heads, in place."""
    heads = tl.arange(0, BLOCK_H)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (heads < HEADS) & (cols < SIZE)
    places = x_ptr + tl.program_id(0).to(tl.int64) * stride + heads * SIZE + cols
    x = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < SIZE, other=0.0)
    tl.store(places, _normed(x, weight, eps, SIZE), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` of rows ``(T, H)`` with contiguous columns: a new tensor."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_rows(x, None, weight, eps, out, None)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``(rms_norm(x + residual), x + residual)``, both ``(T, H)`` and new; the sum is rounded before it is normed."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _launch_rows(x, residual, weight, eps, out, total)
    return out, total


def head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of each head of ``(T, heads, D)`` in place; a token's heads lie end to end, tokens may be strided."""
    rows, heads, size = x.shape
    block_h, block = power_of_two(heads), power_of_two(size)
    _head_norm_kernel[(rows,)](
        x, weight, x.stride(0), eps, HEADS=heads, SIZE=size, BLOCK_H=block_h, BLOCK=block,
        num_warps=warps(block_h * block),
    )  # fmt: skip
    return x


def _launch_rows(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor, total: Tensor | None
) -> None:
    rows, size = x.shape
    block = power_of_two(size)
    _rms_norm_kernel[(rows,)](
        x, residual, weight, out, total, x.stride(0), 0 if residual is None else residual.stride(0), eps,
        ADD=residual is not None, SIZE=size, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip
