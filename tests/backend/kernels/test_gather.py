"""Gathered rows are the table's rows, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels.gather import gather_rows
from tests.backend.kernels.cases import few, integers, random


@few
@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.integers(1, 1500))
def test_any_rows_of_any_width(indices: list[int], size: int) -> None:
    table = random(7, size)
    assert torch.equal(gather_rows(table, integers(indices)), table[integers(indices)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_every_type_and_a_strided_table(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    table = (random(7, 40) * 100).to(dtype)[:, :33]
    assert torch.equal(gather_rows(table, integers([6, 0, 6], index_dtype)), table[[6, 0, 6]])
