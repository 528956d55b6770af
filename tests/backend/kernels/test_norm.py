"""RMSNorm kernels against torch."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.kernels import norm, reference
from tests.backend.kernels.cases import assert_close, every_dtype, few, random


@few
@given(st.integers(1, 4), st.integers(1, 300))
def test_rms_norm_of_any_width(rows: int, size: int) -> None:
    x, weight = random(rows, size), random(size, seed=1)
    assert_close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@every_dtype
def test_rms_norm_of_every_type(dtype: torch.dtype) -> None:
    x, weight = random(3, 96, dtype=dtype), random(96, dtype=dtype, seed=1)
    assert_close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@every_dtype
def test_add_rms_norm_gives_the_norm_and_the_sum(dtype: torch.dtype) -> None:
    x, residual, weight = (random(*shape, dtype=dtype, seed=i) for i, shape in enumerate(((3, 96), (3, 96), (96,))))
    for actual, expected in zip(
        norm.add_rms_norm(x, residual, weight, 1e-5), reference.add_rms_norm(x, residual, weight, 1e-5), strict=True
    ):
        assert_close(actual, expected)


def test_the_residual_is_the_exact_sum() -> None:
    x, residual = random(3, 96), random(3, 96, seed=1)
    assert torch.equal(norm.add_rms_norm(x, residual, random(96), 1e-5)[1], x + residual)


@every_dtype
def test_head_norm_works_on_views_and_leaves_the_rest_alone(dtype: torch.dtype) -> None:
    qkv, weight = random(3, 5 + 2, 24, dtype=dtype), random(24, dtype=dtype, seed=1)
    before = qkv.clone()
    expected = reference.rms_norm(qkv[:, :5], weight, 1e-6)
    assert_close(norm.head_norm(qkv[:, :5], weight, 1e-6), expected)
    assert torch.equal(qkv[:, 5:], before[:, 5:])
