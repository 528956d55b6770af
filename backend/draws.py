"""One token a row on the CPU: the likeliest, or the first whose cumulative weight exceeds a uniform number.

Every row's result depends on that row alone, bit for bit: sums run over blocks of fixed size or in sequence, never in
an order that the number of rows decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scheduler.plan import IntArray

FloatArray = npt.NDArray[np.floating[Any]]

BLOCK = 128
"""Weights summed at once; the search goes to a block first, then into it: no cumulative sum over the vocabulary."""


def likeliest(logits: Tensor) -> Tensor:
    """Index of each row's largest logit, the first one on ties: int64 ``(N,)`` from ``(N, V)``."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    return torch.from_numpy(logits.numpy().argmax(-1))  # numpy vectorises it, eight times as fast


def draw(weights: Tensor, uniforms: FloatArray) -> IntArray:
    """The first index, in vocabulary order, whose cumulative weight exceeds ``uniform * total``.

    Args:
        weights: not negative, any total, ``(N, V)``. An index of weight 0 is never drawn.
        uniforms: in ``[0, 1)``, ``(N,)``.
    """
    rows = np.arange(len(weights))
    blocks = torch.nn.functional.pad(weights, (0, -weights.shape[1] % BLOCK)).view(len(weights), -1, BLOCK)
    ends = blocks.sum(-1).numpy().cumsum(1)
    target = _below(uniforms.astype(ends.dtype) * ends[:, -1], ends[:, -1])
    block = _crossing(ends, target)
    before = np.where(block > 0, ends[rows, block - 1], 0)
    inside = blocks.numpy()[rows, block].cumsum(1)
    # two ways to add a block up may differ in the last bit: never look beyond its end
    index: IntArray = block * BLOCK + _crossing(inside, _below(target - before, inside[:, -1]))
    return index


def draw_among(ids: IntArray, weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """As `draw`, among few candidates: `ids` rising in each row and `weights`, both ``(N, C)``; 0 pads."""
    ends = running_sum(torch.from_numpy(weights))
    index = _crossing(ends, _below(uniforms * ends[:, -1], ends[:, -1]))
    drawn: IntArray = ids[np.arange(len(ids)), index]
    return drawn


def running_sum(values: Tensor) -> npt.NDArray[np.float64]:
    """Cumulative sums of each row, in sequence, float64; torch is ten times as fast as numpy here."""
    sums: npt.NDArray[np.float64] = values.cumsum(1, dtype=torch.float64).numpy()
    return sums


def _crossing(ends: FloatArray, target: FloatArray) -> IntArray:
    """Where each row of rising sums first exceeds its target."""
    index: IntArray = np.count_nonzero(ends <= target[:, None], axis=1)
    return index


def _below(target: FloatArray, total: FloatArray) -> FloatArray:
    """The target, kept below the total against rounding: some index must exceed it."""
    kept: FloatArray = np.minimum(target, np.nextafter(total, np.zeros_like(total)))
    return kept
