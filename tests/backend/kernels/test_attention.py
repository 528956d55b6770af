"""Ragged paged attention against request-by-request attention in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.kernels import reference
from backend.kernels.attention import RaggedBatch, attention
from tests.backend.kernels.cases import DEVICE, assert_close, every_dtype, few, ragged, random

chunks = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=3)


def inputs(
    batch: RaggedBatch, blocks: int, block_size: int, heads: tuple[int, int, int], padding: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """q as a view into rows of QKV, and a cache."""
    q_heads, kv_heads, head_dim = heads
    rows = int(batch.query_start_loc[-1]) + padding
    qkv = random(rows, q_heads + 2 * kv_heads, head_dim, dtype=dtype)
    keys, values = (random(blocks, block_size, kv_heads, head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    return qkv[:, :q_heads], keys, values


def check(
    steps: list[tuple[int, int]], heads: tuple[int, int, int], *, block_size: int = 4, padding: int = 0,
    dtype: torch.dtype = torch.float32, splits: int | None = None, by_seat: bool = False,
) -> None:  # fmt: skip
    batch, blocks = ragged(steps, block_size, by_seat=by_seat)
    q, keys, values = inputs(batch, blocks, block_size, heads, padding, dtype)
    actual = attention(q, keys, values, batch, heads[2] ** -0.5, splits)
    assert_close(actual, reference.attention(q, keys, values, batch, heads[2] ** -0.5))


@few
@given(chunks, st.integers(1, 17), st.sampled_from([1, 2, 3, 7]), st.integers(0, 5), st.sampled_from([1, 3]))
def test_any_chunks_blocks_groups_and_padding(
    steps: list[tuple[int, int]], block_size: int, group: int, padding: int, splits: int
) -> None:
    kv_heads = 1 if splits > 1 else 2
    check(steps, (kv_heads * group, kv_heads, 16), block_size=block_size, padding=padding, splits=splits)


@few
@given(st.lists(st.integers(0, 90), min_size=1, max_size=5), st.integers(1, 17), st.sampled_from([None, 2, 4]))
def test_decodes_of_any_context(contexts: list[int], block_size: int, splits: int | None) -> None:
    check([(1, context) for context in contexts], (3, 1, 16), block_size=block_size, splits=splits)


@every_dtype
@pytest.mark.parametrize("splits", [1, 2])
def test_every_type(dtype: torch.dtype, splits: int) -> None:
    check([(1, 70), (5, 9), (3, 0)], (4, 2, 32), dtype=dtype, splits=splits)


@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 128])
def test_every_head_size(head_dim: int) -> None:
    check([(1, 70), (2, 0)], (3, 1, head_dim), block_size=16)


def test_a_group_larger_than_the_tile_of_a_decode() -> None:
    check([(1, 9), (2, 5)], (40, 2, 16))


@pytest.mark.parametrize(("dtype", "longest"), [(torch.float32, 20), (torch.float16, 140)], ids=str)
def test_chunks_longer_than_a_tile_of_queries(dtype: torch.dtype, longest: int) -> None:
    check([(longest, 30), (1, 200), (longest - 3, 0)], (2, 1, 16), block_size=16, dtype=dtype, splits=1)
    check([(19, 30), (1, 200)], (2, 1, 16), block_size=16, splits=2)


def test_block_table_rows_by_seat() -> None:
    check([(1, 9), (4, 3), (1, 0)], (4, 2, 16), by_seat=True)


def test_requests_without_rows_change_nothing() -> None:
    """A captured graph runs as many requests as it was captured with."""
    check([(1, 9), (1, 3), (0, 0), (0, 0)], (4, 2, 16), padding=2)


def test_padding_rows_are_zero() -> None:
    batch, blocks = ragged([(1, 9), (3, 3)], 4)
    q, keys, values = inputs(batch, blocks, 4, (4, 2, 16), 5, torch.float32)
    for splits in (1, 3):
        assert not attention(q, keys, values, batch, 0.25, splits)[4:].any()


def test_what_a_request_may_not_see_does_not_reach_it() -> None:
    """Not a number everywhere but in the blocks and places that are its own: null block, other blocks, block tails."""
    batch, blocks = ragged([(2, 5), (1, 8)], 4)
    q, keys, values = inputs(batch, blocks, 4, (4, 2, 16), 0, torch.float32)
    seen = torch.zeros(blocks * 4, dtype=torch.bool, device=DEVICE)
    for row, length in zip(batch.block_table.long(), batch.seq_lens.tolist(), strict=True):
        seen[(row[:, None] * 4 + torch.arange(4, device=DEVICE)).flatten()[:length]] = True
    expected = attention(q, keys, values, batch, 0.25)
    for cache in (keys, values):
        cache.view(-1, 2, 16)[~seen] = torch.nan
    assert torch.equal(attention(q, keys, values, batch, 0.25), expected)


def test_a_request_alone_and_in_company_gives_the_same_bits() -> None:
    batch, blocks = ragged([(1, 37), (3, 3), (1, 20)], 4)
    q, keys, values = inputs(batch, blocks, 4, (4, 2, 16), 0, torch.float32)
    together = attention(q, keys, values, batch, 0.25, 1)
    starts = torch.tensor([0, 3], dtype=torch.int32, device=DEVICE)
    alone = RaggedBatch(starts, batch.seq_lens[1:2], batch.block_table[1:2], batch.max_query_len, batch.max_seq_len)
    assert torch.equal(attention(q[1:4], keys, values, alone, 0.25, 1), together[1:4])
