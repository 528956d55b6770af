"""What the kernels' tests share: where they run, how exact a type is, and random ragged batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from backend.kernels.attention import RaggedBatch
from backend.kernels.tiles import INTERPRETED

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative and absolute: two units in the last place; the interpreter cuts bfloat16 off where a GPU rounds."""

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A launch in the interpreter takes a tenth of a second."""


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def integers(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def assert_close(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    """Equal up to the type's tolerance, `scale` times."""
    assert actual.dtype == expected.dtype
    bound = TOLERANCE[actual.dtype] * scale
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound)


def ragged(chunks: Sequence[tuple[int, int]], block_size: int, *, by_seat: bool = False) -> tuple[RaggedBatch, int]:
    """A batch of requests that compute n tokens after c ones, ``(n, c)`` each, and the blocks of its cache.

    Blocks are dealt out in random order; with `by_seat` the table holds a row for each of twice as many seats.
    """
    queries = [n for n, _ in chunks]
    lens = [n + c if n else 0 for n, c in chunks]
    seats = len(chunks) * (2 if by_seat else 1)
    columns = max(-(-max(lens) // block_size), 1)
    blocks = 1 + seats * columns
    dealt = torch.randperm(blocks - 1, generator=torch.Generator().manual_seed(1)) + 1
    starts = torch.tensor([0, *queries]).cumsum(0)
    batch = RaggedBatch(
        starts.to(DEVICE, torch.int32),
        integers(lens, torch.int32),
        dealt.view(seats, columns).to(DEVICE, torch.int32),
        max(queries),
        max(lens),
        integers([seats - 1 - index for index in range(len(chunks))]) if by_seat else None,
    )
    return batch, blocks
