"""SiLU-and-multiply against torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels import mlp, reference
from tests.backend.kernels.cases import assert_close, every_dtype, few, random


@few
@given(st.integers(1, 4), st.integers(1, 2000))
def test_any_width(rows: int, size: int) -> None:
    gate_up = random(rows, 2 * size)
    assert_close(mlp.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))


@every_dtype
def test_every_type(dtype: torch.dtype) -> None:
    gate_up = random(3, 2 * 96, dtype=dtype)
    assert_close(mlp.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # it is: 1 / (1 + inf) is 0
def test_large_gates_neither_overflow_nor_vanish() -> None:
    gate_up = torch.tensor([[200.0, -200.0, 2.0, 2.0]], device=random(1).device)
    assert mlp.silu_and_mul(gate_up).tolist() == [[400.0, 0.0]]
