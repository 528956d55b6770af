"""Fits non-negative terms to seconds of steps, so that single slow steps do not move them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from .costs.fit_terms import CURVED, Curve, Floats, Terms, parts_between

Ints = npt.NDArray[np.int64]

EVEN = 0.5
"""Weight of a step that took longer than its price where a probe says how slow the machine was: what is left after that
falls to both sides."""
SLOWER = 0.1
"""The same where none does; one that took less has the rest of 1. Whatever shares the machine
can only make a step slower, so prices go through the quick ones (expectiles: Newey and Powell, Econometrica 55, 1987);
where half of the steps of a line were held up for 1.6 to 6 times their time, its terms come out within percents."""
KNEE = 0.2
"""Relative errors beyond it count linearly (Huber 1964)."""
SCATTER = 0.05
"""Of a step's time from one run to the next on a quiet machine: what bends are weighed against."""
SOFT = 1e-3
"""Seconds that relative residuals are softened by, as a share of the median step: a step of no time divides by it."""
RIDGE = 1e-10
"""Of each term's own weight: decides between terms that only rounding tells apart."""
DEPENDENT = 1e-6
"""A column that the columns before it explain up to this share of its length says nothing new."""
CUT = 3.0
"""A step that took more than so many times its price was interrupted."""
BEND = 0.05
"""A curve bends from piece to piece by no more than about so much of a step's price, unless the steps say otherwise."""
ROUNDS = 30
STEADY = 1e-6
"""Relative change of the prices at which the rounds end."""
PIECE_STEPS = 8
"""Steps that a piece of a curve must hold; pieces with fewer are merged with the next."""


@dataclass(frozen=True)
class Design:
    """The columns that a fit chooses coefficients for.

    Attributes:
        matrix: ``(steps, 1 + pieces)``; the first column is the step's own.
        knots: feature -> knots of its curve.
        owners: for each further column its feature and the number of its piece.
    """

    matrix: Floats
    knots: dict[str, tuple[int, ...]]
    owners: tuple[tuple[str, int], ...]

    def bends(self, price: Floats) -> Floats:
        """How much more the next piece of a curve costs than if it went on as before, of the steps' price.

        Returns:
            A row for each two neighbouring pieces, ``(bends, 1 + pieces)``: its product with the coefficients.
        """
        rows = []
        for at, ((name, piece), (other, following)) in enumerate(pairwise(self.owners), start=1):
            if (name, piece + 1) == (other, following):
                row = np.zeros(self.matrix.shape[1])
                width = self.knots[name][following] - self.knots[name][piece]
                typical = float(np.median(price[self.matrix[:, at] > 0]))
                row[at], row[at + 1] = -width / typical, width / typical
                rows.append(row)
        return np.array(rows).reshape(-1, self.matrix.shape[1])


def design(told: dict[str, Ints], names: tuple[str, ...]) -> Design:
    """Columns of the features `names`; a piece that says nothing new gets none, and with that no slope.

    Args:
        told: feature -> its value in each step, ``(steps,)``.
        names: features in order of preference.
    """
    columns: list[Floats] = [np.ones(len(told["rows"]))]
    seen = _Independent()
    seen.adds(columns[0])
    knots = {name: knots_of(told[name]) if name in CURVED else (0,) for name in names}
    owners = []
    for name in names:
        for piece, part in enumerate(parts_between(told[name], knots[name]).T):
            if seen.adds(part):
                columns.append(part)
                owners.append((name, piece))
    return Design(np.stack(columns, axis=1), knots, tuple(owners))


def knots_of(values: Ints) -> tuple[int, ...]:
    """0 and those powers of two between which there are enough steps to tell a slope."""
    most = int(values.max(initial=0))
    knots = [0]
    for end in (2**power for power in range(most.bit_length() + 1)):
        inside = (values > knots[-1]) & (values <= end)
        beyond = np.count_nonzero(values > end)
        if np.count_nonzero(inside) >= PIECE_STEPS and beyond >= PIECE_STEPS:
            knots.append(end)
    return tuple(knots)


def fit(columns: Design, seconds: Floats, slower: float = SLOWER) -> Terms:
    """The non-negative terms that price the steps best, by relative error: those of a quiet machine, or typical ones.

    Iteratively reweighted least squares on ``(seconds - price) / price`` with the weights of `slower` and `KNEE`. Once
    that is steady, steps that took more than `CUT` times their price are left out: what held them up was not the work.

    Args:
        columns: of `design`.
        seconds: of each step, ``(steps,)``.
        slower: `SLOWER` or `EVEN`.
    """
    if not seconds.any():
        return Terms(0.0, {})
    soft = SOFT * float(np.median(seconds[seconds > 0]))
    price, found = seconds, np.zeros(columns.matrix.shape[1])
    for most in (np.inf, CUT - 1):
        for _ in range(ROUNDS):
            unit = price + soft
            residuals = (seconds - price) / unit
            weights = (residuals < most) * _weights(residuals, slower)
            found = _one_round(columns, seconds, unit, weights)
            before, price = price, columns.matrix @ found
            if np.abs(price - before).max() <= STEADY * price.max():
                break
    return _terms(columns, found)


def _weights(residuals: Floats, slower: float) -> Floats:
    sides = np.where(residuals > 0, slower, 1 - slower)
    found: Floats = sides / np.maximum(1.0, np.abs(residuals) / KNEE)
    return found


def _one_round(columns: Design, seconds: Floats, unit: Floats, weights: Floats) -> Floats:
    """The coefficients for these weights; `unit`: the seconds that residuals are relative to."""
    scale = weights**0.5 / (SCATTER * unit)
    bends = columns.bends(unit) / BEND
    matrix = np.vstack([columns.matrix * scale[:, None], bends])
    return _least_squares(matrix, np.append(seconds * scale, np.zeros(len(bends))))


def prices(told: dict[str, Ints], terms: Terms) -> Floats:
    """What the terms say of each step, ``(steps,)``."""
    found = np.full(len(told["rows"]), terms.step_s)
    for name, curve in terms.curves.items():
        found += parts_between(told[name], curve.knots) @ np.array(curve.slopes_s)
    return found


def _least_squares(matrix: Floats, target: Floats) -> Floats:
    """Non-negative least squares; columns of one length, reduced to a square first."""
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    basis, triangle = np.linalg.qr(matrix / lengths)
    wide = triangle.shape[1]
    padded = np.vstack([triangle, np.sqrt(RIDGE) * np.eye(wide)])
    chosen: Floats = nnls(padded, np.append(basis.T @ target, np.zeros(wide)))[0]
    found: Floats = chosen / lengths
    return found


def _terms(columns: Design, found: Floats) -> Terms:
    slopes = {name: [0.0] * len(knots) for name, knots in columns.knots.items()}
    for (name, piece), slope_s in zip(columns.owners, found[1:].tolist(), strict=True):
        slopes[name][piece] = slope_s
    curves = {name: Curve(columns.knots[name], tuple(slopes_s)) for name, slopes_s in slopes.items() if any(slopes_s)}
    return Terms(float(found[0]), curves)


class _Independent:
    """Tells of columns, one after the other, whether those before them explain them."""

    def __init__(self) -> None:
        self._basis: list[Floats] = []

    def adds(self, column: Floats) -> bool:
        """Whether the column says something new; if so it is remembered."""
        length = float(np.linalg.norm(column))
        rest = column
        for _ in range(2):  # once more for what rounding left
            for known in self._basis:
                rest = rest - (known @ rest) * known
        left = float(np.linalg.norm(rest))
        if left <= DEPENDENT * length:
            return False
        self._basis.append(rest / left)
        return True
