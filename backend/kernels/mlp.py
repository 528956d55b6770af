"""SiLU of the gate times the up projection."""
# Triton's language is not typed Python, and its compile-time parameters are upper case:
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import ROW_BLOCK, warps


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a block of columns of a row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < SIZE
    gate = tl.load(gate_up_ptr + row * (2 * SIZE) + cols, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + row * (2 * SIZE) + SIZE + cols, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    # rounded to the model's type before the product, as two operations of transformers are
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out_ptr + row * SIZE + cols, activated * up, mask=inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of contiguous ``(T, 2 * I)`` rows, gate first: ``(T, I)``."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, triton.cdiv(size, ROW_BLOCK))
    _silu_and_mul_kernel[grid](gate_up, out, SIZE=size, BLOCK=ROW_BLOCK, num_warps=warps(ROW_BLOCK))
    return out
