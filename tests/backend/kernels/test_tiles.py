"""The shipped configurations: rules that hold for all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels.tiles import (
    MAX_SPLITS,
    SPLIT_KEYS,
    Target,
    attention_splits,
    attention_tiles,
    power_of_two,
    warps,
)

TARGETS = (Target("cuda", 80), Target("cuda", 90), Target("cuda", 100), Target("cuda", 120), Target("hip", 0))


@given(st.integers(1, 10**6))
def test_power_of_two_is_the_least_that_is_not_below(size: int) -> None:
    power = power_of_two(size)
    assert power // 2 < size <= power
    assert power & (power - 1) == 0


@given(st.integers(1, 10**6))
def test_warps_are_a_power_of_two_from_one_to_sixteen(elements: int) -> None:
    assert warps(elements) in (1, 2, 4, 8, 16)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@given(
    st.sampled_from([16, 64, 128, 256]), st.sampled_from([torch.float32, torch.float16]), st.integers(1, 64),
    st.integers(1, 8192),
)  # fmt: skip
def test_a_tile_takes_a_whole_token_and_what_matrix_units_need(
    target: Target, head_dim: int, dtype: torch.dtype, group: int, longest: int
) -> None:
    tiles = attention_tiles(head_dim, dtype, group, longest, target)
    assert tiles.rows >= group
    assert tiles.rows % 16 == 0
    assert tiles.keys % 16 == 0
    for size in (tiles.rows, tiles.keys, tiles.num_warps):
        assert size & (size - 1) == 0


@given(st.integers(1, 5000), st.integers(1, 200_000), st.integers(8, 304))
def test_contexts_are_split_only_where_processors_would_idle_and_parts_are_worth_it(
    programs: int, max_seq_len: int, processors: int
) -> None:
    splits = attention_splits(programs, max_seq_len, processors)
    assert splits in (1, 2, 4, 8, 16, 32)
    assert splits <= MAX_SPLITS
    if splits > 1:
        assert splits * programs <= 2 * processors
        assert splits * SPLIT_KEYS <= max_seq_len


def test_a_lone_long_context_fills_the_device() -> None:
    assert attention_splits(8, 100_000, 132) == 32
    assert attention_splits(8, 500, 132) == 1
    assert attention_splits(1000, 100_000, 132) == 1
