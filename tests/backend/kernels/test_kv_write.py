"""New K/V lands at its slots, and nowhere else."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels import reference
from backend.kernels.kv_write import write_kv
from scheduler.batch import NO_SLOT
from tests.backend.kernels.cases import every_dtype, few, integers, random


def check(slots: list[int], block_size: int, dtype: torch.dtype) -> None:
    qkv = random(len(slots), 4 + 2 + 2, 24, dtype=dtype)
    _, k, v = torch.split(qkv, [4, 2, 2], dim=1)
    actual = [random(6, block_size, 2, 24, dtype=dtype, seed=seed) for seed in (1, 2)]
    expected = [cache.clone() for cache in actual]
    write_kv(k, v, actual[0], actual[1], integers(slots))
    reference.write_kv(k, v, expected[0], expected[1], integers(slots))
    for written, wanted in zip(actual, expected, strict=True):
        assert torch.equal(written, wanted)


@few
@given(st.lists(st.integers(0, 29), min_size=1, max_size=12, unique=True), st.integers(0, 5))
def test_every_row_at_its_slot_and_padding_nowhere(slots: list[int], padding: int) -> None:
    check([*slots, *[NO_SLOT] * padding], 5, torch.float32)


@every_dtype
def test_every_type(dtype: torch.dtype) -> None:
    check([3, NO_SLOT, 11], 4, dtype)
