"""Tests of how attention is cut into blocks, and of list scheduling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.attention_blocks import block_work, key_tile, schedule_s, splits, tail_s, whole_tiles

KEYS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


def test_blocks_of_a_step_are_counted_by_hand() -> None:
    # a prefill of 130 rows after 100: blocks end at keys 164, 228, 230 -> 2 tiles each; one of 64 after 0: 1 tile
    # decodes reading 128 and 129 keys: 1 and 2 tiles; the grid is 3 deep for all 4 requests: 12 - 6 blocks are empty
    work = block_work([130, 64], [100, 0], np.array([128, 129]), 128)
    assert (work.tiles, work.blocks, work.empty) == (6 + 1 + 3, 4 + 2, 6)


def test_key_tiles_are_those_of_flash_attention() -> None:
    assert [key_tile(width) for width in (64, 96, 128, 256)] == [256, 128, 128, 64]


@pytest.mark.parametrize(
    ("blocks", "sms", "key_tiles", "parts"),
    [
        (256, 128, 256, 1),  # fills 256 places
        (205, 128, 256, 1),  # 80% of them
        (128, 128, 256, 2),  # 2 x 128 = 256
        (64, 128, 256, 4),
        (192, 128, 256, 4),  # 1, 2, 3 parts fill 75%; 4 fill three waves
        (8, 108, 1, 1),  # nothing to split
    ],
)
def test_number_of_splits_follows_the_heuristic(blocks: int, sms: int, key_tiles: int, parts: int) -> None:
    assert splits(blocks, sms, key_tiles) == parts


def test_contexts_are_read_in_whole_tiles() -> None:
    # what a profile measures: the new token after whole tiles
    assert whole_tiles(np.array([1025, 1025]), 128) == 1024
    # 1026 to 1152 keys have as many tiles
    assert whole_tiles(np.array([1026, 1152]), 128) == 1024
    assert whole_tiles(np.array([1153]), 128) == 1152
    assert whole_tiles(np.array([17]), 128) == 16


def test_even_blocks_that_fill_the_slots_take_what_memory_takes() -> None:
    assert schedule_s([100.0] * 40, 8, all_rate=50.0, one_rate=100.0) == pytest.approx(4000 / 50)


def test_a_block_alone_goes_no_faster_than_its_own_rate() -> None:
    assert schedule_s([300.0], 8, all_rate=50.0, one_rate=10.0) == 30.0


def test_a_long_block_at_the_end_is_waited_for() -> None:
    # two slots at one key a second each: 4 and 4 together, then 10 alone on one of them
    assert schedule_s([4.0, 4.0, 10.0], 2, all_rate=2.0, one_rate=1.0) == 14.0
    # alone it may take all of the memory's rate: 4 s, then 10 keys at 2 a second
    assert schedule_s([4.0, 4.0, 10.0], 2, all_rate=2.0, one_rate=2.0) == 9.0


@given(KEYS, st.integers(1, 16), st.floats(1, 100), st.floats(1, 100))
def test_list_scheduling_keeps_to_its_bounds(keys: list[int], slots: int, all_rate: float, one_rate: float) -> None:
    lengths = [float(k) for k in keys]
    seconds = schedule_s(lengths, slots, all_rate, one_rate)
    balanced = sum(keys) / min(all_rate, slots * one_rate)
    least = max(balanced, max(keys) / min(one_rate, all_rate))
    # Graham (1966): the last block starts no later than all would end if they were spread evenly
    most = balanced + max(keys) / min(one_rate, all_rate / slots)
    assert least * (1 - 1e-9) <= seconds <= most * (1 + 1e-9)


@given(KEYS, st.integers(1, 16))
def test_the_tail_is_what_is_left_above_the_balanced_time(keys: list[int], slots: int) -> None:
    lengths = [float(k) for k in keys]
    assert tail_s(lengths, 1, slots, 40.0, 10.0) >= -1e-9
    assert tail_s([50.0] * slots, 4, slots, 40.0, 10.0) == pytest.approx(0.0, abs=1e-9)
