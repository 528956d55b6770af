"""Writing new keys and values into the paged cache."""
# Triton's language is not typed Python, and its compile-time parameters are upper case:
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .tiles import power_of_two, warps


@triton.jit
def _write_kv_kernel(
    k_ptr, v_ptr, keys_ptr, values_ptr, slots_ptr, k_stride, v_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a token: all its KV heads."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot >= 0:
        cols = tl.arange(0, BLOCK)
        inside = cols < SIZE
        tl.store(keys_ptr + slot * SIZE + cols, tl.load(k_ptr + row * k_stride + cols, mask=inside), mask=inside)
        tl.store(values_ptr + slot * SIZE + cols, tl.load(v_ptr + row * v_stride + cols, mask=inside), mask=inside)


def write_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """Write `k` and `v` ``(T, Hkv, D)`` into one layer's cache at the slot mapping ``(T,)``; below 0 writes nowhere.

    A token's heads lie end to end, tokens may be strided. The cache, ``(num_blocks, block_size, Hkv, D)``, is
    contiguous.
    """
    rows, heads, head_dim = k.shape
    size = heads * head_dim
    block = power_of_two(size)
    _write_kv_kernel[(rows,)](
        k, v, keys, values, slot_mapping, k.stride(0), v.stride(0), SIZE=size, BLOCK=block, num_warps=warps(block)
    )
