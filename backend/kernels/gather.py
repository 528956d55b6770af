"""Rows of a table by index: embeddings, the rows that get logits, the block-table rows of a step's seats."""
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
def _gather_rows_kernel(table_ptr, indices_ptr, out_ptr, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a block of columns of a row."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(indices_ptr + row).to(tl.int64)
    values = tl.load(table_ptr + source * stride + cols, mask=cols < SIZE)
    tl.store(out_ptr + row * SIZE + cols, values, mask=cols < SIZE)


def gather_rows(table: Tensor, indices: Tensor) -> Tensor:
    """``table[indices]``, ``(L, columns)``, of a table with contiguous columns; indices int32 or int64 ``(L,)``."""
    rows, size = len(indices), table.shape[1]
    out = torch.empty((rows, size), dtype=table.dtype, device=table.device)
    grid = (rows, triton.cdiv(size, ROW_BLOCK))
    _gather_rows_kernel[grid](
        table, indices, out, table.stride(0), SIZE=size, BLOCK=ROW_BLOCK, num_warps=warps(ROW_BLOCK)
    )
    return out
