"""Which tokens may be drawn: min-p, then top-k, then top-p, all after temperature, as vLLM orders them.

On the CPU rows shrink to their few candidates before anything is sorted; on a GPU whole rows are sorted, without a
word from the host. Both keep the same tokens:

- min-p: those at least `min_p` times as likely as the likeliest (Minh et al., 2024, https://arxiv.org/abs/2407.01082).
- top-k: the `top_k` likeliest and all equal to the last of them, as vLLM and transformers keep them.
- top-p: of what is left, the fewest likeliest whose probability, of the whole that is left, reaches `top_p` (Holtzman
  et al., 2019, https://arxiv.org/abs/1904.09751); of equal ones those that come first in the vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scheduler.plan import IntArray

from .draws import FloatArray, running_sum

BoolArray = npt.NDArray[np.bool_]

FIXED_POINT = 2.0**40
"""Weights as integers on a GPU: sums that do not depend on the order of additions, which the number of rows decides."""
SPARSE = 8
"""Candidates are gathered side by side when they are at most a SPARSE-th of the vocabulary; more cost less in place."""


def candidates_by_floor(
    logits: FloatArray, temperature: FloatArray, top_k: IntArray, min_p: FloatArray
) -> tuple[IntArray, FloatArray]:
    """What min-p and top-k leave.

    Args:
        logits: ``(n, V)``.
        temperature: above 0, ``(n,)``.
        top_k: V where it cuts nothing, ``(n,)``.
        min_p: 0 where it cuts nothing, ``(n,)``.

    Returns:
        Token ids in vocabulary order and weights, the largest 1: both ``(n, C)``, padded with weight 0.
    """
    largest = logits.max(1)
    with np.errstate(divide="ignore"):  # no min-p: no floor
        floor = (largest + temperature * np.log(min_p)).astype(logits.dtype)
    cut = np.flatnonzero(top_k < logits.shape[1])
    if len(cut):
        chosen = logits if len(cut) == len(logits) else logits[cut]
        floor[cut] = np.maximum(floor[cut], kth_largest(chosen, top_k[cut]))
    ids, values = gather(logits >= floor[:, None], logits, -np.inf)
    return ids, np.exp((values - largest[:, None]) / temperature[:, None].astype(logits.dtype))


def candidates_by_mass(probs: FloatArray, top_p: FloatArray) -> tuple[IntArray, FloatArray]:
    """Tokens among which top-p alone will find its own, as `candidates_by_floor` gives them; weights are `probs`.

    All tokens less likely than ``(1 - top_p) / V`` have together less than ``1 - top_p``: none of them is needed. Half
    of that keeps rounding out of it.
    """
    floor = (0.5 * (1 - top_p) / probs.shape[1]).astype(probs.dtype)
    return gather(probs >= floor[:, None], probs, 0.0)


def nucleus(weights: FloatArray, top_p: FloatArray, total: float | None = None) -> FloatArray:
    """The weights, 0 outside top-p.

    Args:
        weights: of candidates in vocabulary order, ``(n, C)``.
        top_p: 1 where it cuts nothing, ``(n,)``.
        total: weight of the whole, tokens that are no candidates included; None: that of the candidates.
    """
    if (top_p >= 1).all():
        return weights
    falling = torch.from_numpy(np.sort(weights, 1)).flip(1)
    mass = running_sum(falling)
    whole = mass[:, -1] if total is None else total
    target = np.where(top_p < 1, top_p * whole, np.inf)
    last = np.minimum(np.count_nonzero(mass < target[:, None], axis=1), weights.shape[1] - 1)
    least = falling.numpy()[np.arange(len(weights)), last][:, None]
    kept: FloatArray = weights * (weights >= least)
    surplus = np.count_nonzero(kept, axis=1) - last - 1
    for row in np.flatnonzero((surplus > 0) & (least[:, 0] > 0)).tolist():
        equal = np.flatnonzero(weights[row] == least[row])
        kept[row, equal[len(equal) - surplus[row] :]] = 0
    return kept


def masked_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The logits ``(n, V)``, -inf where min-p, top-k or top-p cuts; for a GPU, where a sort is cheap and asking is not.

    Args:
        logits: on any device, as all others.
        temperature: above 0, ``(n,)``.
        top_k: int64, V where it cuts nothing, ``(n,)``.
        top_p: float64, 1 where it cuts nothing, ``(n,)``.
        min_p: 0 where it cuts nothing, ``(n,)``.
    """
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    weights = ((values - values[:, :1]) / temperature[:, None]).exp()
    keep = (weights >= min_p[:, None]) & (values >= values.gather(1, top_k[:, None] - 1))
    fixed = (weights * FIXED_POINT).to(torch.int64) * keep
    mass = fixed.cumsum(-1)
    target = torch.where(top_p < 1, top_p * mass[:, -1], torch.inf)
    keep &= mass - fixed < target[:, None]
    return logits.masked_fill(~torch.empty_like(keep).scatter_(1, order, keep), -torch.inf)


def kth_largest(values: FloatArray, k: IntArray) -> FloatArray:
    """Of each row of ``(n, V)`` the k-th largest, ``(n,)``; a selection, no sort of whole rows."""
    size, most = values.shape[1], int(k.max())
    head = np.partition(values, size - most, axis=1)[:, size - most :]
    if k.min() == most:
        return head[:, 0]
    head.sort(axis=1)
    kth: FloatArray = head[np.arange(len(k)), most - k]
    return kth


def gather(keep: BoolArray, source: FloatArray, padding: float) -> tuple[IntArray, FloatArray]:
    """The kept entries of each row in their order: columns and values, ``(n, C)``, `padding` where there are none."""
    count, size = keep.shape
    counts = np.count_nonzero(keep, axis=1)
    most = int(counts.max())
    if most * SPARSE > size:
        values = source * keep if padding == 0 else np.where(keep, source, np.asarray(padding, source.dtype))
        return np.broadcast_to(np.arange(size), keep.shape), values
    rows, flat = np.arange(count), np.flatnonzero(keep)
    places = np.arange(len(flat)) + np.repeat(rows * most - (counts.cumsum() - counts), counts)
    ids = np.zeros((count, most), dtype=np.int64)
    values = np.full((count, most), padding, dtype=source.dtype)
    ids.reshape(-1)[places] = flat - np.repeat(rows * size, counts)
    values.reshape(-1)[places] = source.reshape(-1)[flat]
    return ids, values
