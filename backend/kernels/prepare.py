"""A step's index tensors, made on the device from tables that live there: the host sends three numbers a request.

The token table holds every seat's token ids by position, the block table its block ids; a token sampled by the step
before is read where that step wrote it and never visits the host. (vLLM's Model Runner V2 prepares inputs this way.)
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

from scheduler.batch import NO_SLOT, PAD_TOKEN

from .tiles import ROW_BLOCK, warps

SCATTER_BLOCK = 256
_NO_SLOT = tl.constexpr(NO_SLOT)
_PAD_TOKEN = tl.constexpr(PAD_TOKEN)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What `prepare_step` fills in, for N requests and T rows (graph padding included).

    Attributes:
        input_ids: int32 ``(T,)``.
        positions: int64 ``(T,)``.
        slot_mapping: int64 ``(T,)``.
        seq_lens: int32 ``(N,)``.
        logits_indices: last row of each request, int64 ``(N,)``.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    seq_lens: Tensor
    logits_indices: Tensor

    @classmethod
    def empty(cls, rows: int, requests: int, device: torch.device | str) -> StepTensors:
        """Room for a step; a captured graph keeps it and has it filled again for each replay."""

        def integers(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(count, dtype=dtype, device=device)

        narrow = torch.int32
        return cls(
            integers(rows, narrow), integers(rows), integers(rows), integers(requests, narrow), integers(requests)
        )


@triton.jit
def _write_padding(input_ids_ptr, positions_ptr, slot_mapping_ptr, begin, end, BLOCK: tl.constexpr):
    """Rows that belong to no request: the pad token at position 0, written nowhere."""
    for start in range(begin, end, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        tl.store(input_ids_ptr + rows, _PAD_TOKEN, mask=rows < end)
        tl.store(positions_ptr + rows, 0, mask=rows < end)
        tl.store(slot_mapping_ptr + rows, _NO_SLOT, mask=rows < end)


# what changes from step to step must not be compiled for: no code for a count of 1, or for aligned views of one copy
@triton.jit(
    do_not_specialize=["num_requests", "num_rows"],
    do_not_specialize_on_alignment=["slots_ptr", "computed_ptr", "starts_ptr"],
)
def _prepare_kernel(
    slots_ptr, computed_ptr, starts_ptr, tokens_ptr, blocks_ptr, input_ids_ptr, positions_ptr, slot_mapping_ptr,
    seq_lens_ptr, logits_ptr, num_requests, num_rows, tokens_stride, blocks_stride,
    BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a request, and a last one for the padding rows."""
    request = tl.program_id(0)
    begin = tl.load(starts_ptr + request)
    if request == num_requests:
        _write_padding(input_ids_ptr, positions_ptr, slot_mapping_ptr, begin, num_rows, BLOCK)
    else:
        end = tl.load(starts_ptr + request + 1)
        computed = tl.load(computed_ptr + request).to(tl.int64)
        slot = tl.load(slots_ptr + request).to(tl.int64)
        for start in range(begin, end, BLOCK):
            rows = start + tl.arange(0, BLOCK)
            inside = rows < end
            positions = computed + (rows - begin)
            tokens = tl.load(tokens_ptr + slot * tokens_stride + positions, mask=inside)
            blocks = tl.load(blocks_ptr + slot * blocks_stride + positions // BLOCK_SIZE, mask=inside).to(tl.int64)
            tl.store(input_ids_ptr + rows, tokens, mask=inside)
            tl.store(positions_ptr + rows, positions, mask=inside)
            tl.store(slot_mapping_ptr + rows, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, mask=inside)
        # a captured graph runs more requests than there are: the others have no rows and attend over nothing
        tl.store(seq_lens_ptr + request, tl.where(end > begin, computed + (end - begin), 0))
        tl.store(logits_ptr + request, end - 1)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows_ptr", "cols_ptr", "values_ptr"])
def _scatter_kernel(table_ptr, rows_ptr, cols_ptr, values_ptr, stride, count, BLOCK: tl.constexpr):
    """``table[rows, cols] = values`` where the column is not below 0."""
    items = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = items < count
    rows = tl.load(rows_ptr + items, mask=inside, other=0).to(tl.int64)
    cols = tl.load(cols_ptr + items, mask=inside, other=-1).to(tl.int64)
    values = tl.load(values_ptr + items, mask=inside, other=0)
    tl.store(table_ptr + rows * stride + cols, values, mask=inside & (cols >= 0))


def prepare_step(
    slots: Tensor,
    computed: Tensor,
    query_start_loc: Tensor,
    token_table: Tensor,
    block_table: Tensor,
    block_size: int,
    out: StepTensors,
) -> None:
    """Fill `out` for a flat step.

    Args:
        slots: seat of each request, int32 or int64 ``(N,)``; one without rows (in a captured graph) may have any.
        computed: tokens of each computed before, likewise.
        query_start_loc: request i owns rows ``[loc[i], loc[i + 1])``, int32, at least ``N + 1`` entries; rows from
            ``loc[N]`` on are graph padding.
        token_table: token ids by seat and position, int32 ``(slots, max_len)``.
        block_table: block ids by seat, int32 ``(slots, max_blocks)``.
        block_size: tokens a block.
        out: as many rows and requests as the step has.
    """
    requests = len(out.seq_lens)
    _prepare_kernel[(requests + 1,)](
        slots, computed, query_start_loc, token_table, block_table, out.input_ids, out.positions, out.slot_mapping,
        out.seq_lens, out.logits_indices, requests, len(out.input_ids), token_table.stride(0), block_table.stride(0),
        BLOCK_SIZE=block_size, BLOCK=ROW_BLOCK, num_warps=warps(ROW_BLOCK),
    )  # fmt: skip


def append_blocks(block_table: Tensor, slots: Tensor, columns: Tensor, ids: Tensor) -> None:
    """``block_table[slots, columns] = ids``: a plan's new block ids, all that crosses to the device; each ``(K,)``."""
    _scatter(block_table, slots, columns, ids)


def store_tokens(token_table: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """``token_table[slots, positions] = tokens``, each ``(N,)``; a position below 0 drops its token.

    Where the next step finds the tokens that this one sampled. A prompt's chunk that ends in mid-prompt samples a token
    that means nothing: drop it.
    """
    _scatter(token_table, slots, positions, tokens)


def _scatter(table: Tensor, rows: Tensor, cols: Tensor, values: Tensor) -> None:
    if count := len(values):
        _scatter_kernel[(triton.cdiv(count, SCATTER_BLOCK),)](
            table, rows, cols, values, table.stride(0), count, BLOCK=SCATTER_BLOCK, num_warps=1
        )
