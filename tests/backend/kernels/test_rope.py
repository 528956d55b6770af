"""The rotary kernel against torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels import reference, rope
from tests.backend.kernels.cases import assert_close, every_dtype, few, integers, random


def check(q_heads: int, kv_heads: int, head_dim: int, positions: list[int], dtype: torch.dtype) -> None:
    qkv = random(len(positions), q_heads + 2 * kv_heads, head_dim, dtype=dtype)
    q, k, v = torch.split(qkv, [q_heads, kv_heads, kv_heads], dim=1)
    table, untouched = random(64, head_dim, seed=1), v.clone()
    expected = reference.rope(q, k, integers(positions), table)
    rope.rope(q, k, integers(positions), table)
    for actual, wanted in zip((q, k), expected, strict=True):
        assert_close(actual, wanted)
    assert torch.equal(v, untouched)


@few
@given(
    st.sampled_from([(4, 2), (9, 3), (1, 1)]), st.sampled_from([2, 16, 24]), st.lists(st.integers(0, 63), min_size=1)
)
def test_any_heads_and_positions(heads: tuple[int, int], head_dim: int, positions: list[int]) -> None:
    check(*heads, head_dim, positions, torch.float32)


@every_dtype
def test_every_type(dtype: torch.dtype) -> None:
    check(4, 2, 32, [3, 0, 63], dtype)


def test_the_rotation_keeps_lengths_and_relative_angles() -> None:
    """With true cosines and sines, q at position p times k at position p - 5 does not depend on p."""
    angles = torch.arange(64)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    table = torch.cat((angles.cos(), angles.sin()), dim=1).to(random(1).device)
    q, k = random(1, 1, 8).repeat(3, 1, 1), random(1, 1, 8, seed=1).repeat(3, 1, 1)
    length = q.norm().item()
    products = []
    for shift in (5, 20, 63):
        turned_q, turned_k = q.clone(), k.clone()
        rope.rope(turned_q, turned_k, integers([shift] * 3), table)
        other_q, other_k = q.clone(), k.clone()
        rope.rope(other_q, other_k, integers([shift - 5] * 3), table)
        products.append((turned_q * other_k).sum().item())
        assert turned_q.norm().item() == pytest.approx(length, rel=1e-5)
    assert products == pytest.approx([products[0]] * 3, rel=1e-4)
