"""Training batches: samples of like length side by side, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from .corpus import Piece, samples
from .dice import Dice

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Row: TypeAlias = tuple[list[int], list[float]]

POOL = 2048
"""Samples that are sorted by length together."""


@dataclass(frozen=True)
class Batch:
    """One step's rectangle: `ids` and `weights` are (rows, columns); padding is 0 and weighs nothing.

    ``weights[r, c]`` is how much it counts in the loss that the model predicts ``ids[r, c]`` from what stands left of
    it: nothing in a question, and 1 / sqrt(n) in an answer of n tokens, so that short answers are not drowned.
    """

    ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


def batches(tokenizer: Tokenizer, seed: int, tokens: int) -> Iterator[Batch]:
    """Batches without end, each of at most about `tokens` places, in random order of length."""
    stream = samples(seed)
    dice = Dice(seed + 1)
    while True:
        pool = sorted((encoded(tokenizer, sample) for sample in islice(stream, POOL)), key=lambda row: len(row[0]))
        groups = list(_groups(pool, tokens))
        for group in dice.several(groups, len(groups)):
            yield _rectangle(group)


def encoded(tokenizer: Tokenizer, sample: list[Piece]) -> Row:
    """Token ids of a sample and their weights in the loss."""
    ids: list[int] = []
    weights: list[float] = []
    for piece in sample:
        some = tokenizer.encode(piece.text, add_special_tokens=False).ids
        ids += some
        weights += [len(some) ** -0.5 if piece.learned else 0.0] * len(some)
    return ids, weights


def _groups(pool: list[Row], tokens: int) -> Iterator[list[Row]]:
    group: list[Row] = []
    for row in pool:
        if group and (len(group) + 1) * len(row[0]) > tokens:
            yield group
            group = []
        group.append(row)
    yield group


def _rectangle(group: list[Row]) -> Batch:
    shape = (len(group), max(len(ids) for ids, _ in group))
    batch = Batch(np.zeros(shape, np.int64), np.zeros(shape, np.float32))
    for row, (ids, weights) in enumerate(group):
        batch.ids[row, : len(ids)] = ids
        batch.weights[row, : len(ids)] = weights
    return batch
