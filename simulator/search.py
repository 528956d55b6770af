"""Searches on a yes-or-no question: the highest rate that passes, the fewest servers that pass."""

from __future__ import annotations

import math
from collections.abc import Callable

DOUBLINGS = 12
"""How often a search doubles or halves before it gives up."""
BELOW, ABOVE = (0.9, 0.75), (1.1, 1.3)
"""Neighbours that are looked at once a bracket is narrow: fractions of the passing, multiples of the failing rate."""
FAR_ABOVE = (2.0, 4.0, 8.0)
"""Multiples of the first rate to look at when no lower rate passes: a server may want more traffic, not less."""
ROUNDS = 4
"""How often a neighbour below may fail and the search begin again there."""


class RateSearch:
    """Finds the highest rate at and below which every rate tried passes.

    Doubles or halves from `start` until it has a bracket and narrows it by its geometric mean. It does not take for
    granted that what passes at one rate passes at all lower ones: neighbours on both sides are tried too.

    Args:
        passes: the question; called once for each rate.
        start: first rate to try.
        precision: the bracket is narrow when failing / passing <= 1 + precision.
        hopeless: asked after each failure on the way down; True ends the search.

    Attributes:
        tried: every rate asked for and its answer.
    """

    def __init__(
        self,
        passes: Callable[[float], bool],
        *,
        start: float,
        precision: float,
        hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        self._passes = passes
        self._precision = precision
        self._hopeless = hopeless
        self.tried: dict[float, bool] = {}
        self._search(start)

    @property
    def best(self) -> float | None:
        """The highest rate that passed with no lower one failing; None: the lowest rate tried failed."""
        wall = self.wall
        below = [rate for rate, passed in self.tried.items() if passed and (wall is None or rate < wall)]
        return max(below, default=None)

    @property
    def wall(self) -> float | None:
        """The lowest rate that failed; None: none did."""
        return min((rate for rate, passed in self.tried.items() if not passed), default=None)

    @property
    def islands(self) -> list[float]:
        """Rates that passed above one that failed: there the answer is not monotone."""
        wall = self.wall
        return sorted(rate for rate, passed in self.tried.items() if passed and wall is not None and rate > wall)

    def _search(self, start: float) -> None:
        rate = start
        while self._try(rate) and len(self.tried) <= DOUBLINGS:
            rate *= 2
        if self.wall is None:
            return
        for _ in range(ROUNDS):
            if not self._bracket_below():
                for times in FAR_ABOVE:
                    self._try(start * times)
                return
            self._narrow()
            assert self.best is not None
            if all(self._try(self.best * part) for part in BELOW):
                break
        else:
            if self._bracket_below():
                self._narrow()
        if self.wall is not None:
            wall = self.wall
            for times in ABOVE:
                self._try(wall * times)

    def _bracket_below(self) -> bool:
        """Halve from the lowest failing rate until one passes."""
        for _ in range(DOUBLINGS):
            if self.best is not None:
                return True
            if self._hopeless():
                return False
            assert self.wall is not None
            self._try(self.wall / 2)
        return self.best is not None

    def _narrow(self) -> None:
        while self.best is not None and self.wall is not None and self.wall > self.best * (1 + self._precision):
            self._try(math.sqrt(self.best * self.wall))

    def _try(self, rate: float) -> bool:
        rate = float(f"{rate:.6g}")  # a rate that people can type again
        if rate not in self.tried:
            self.tried[rate] = self._passes(rate)
        return self.tried[rate]


def fewest(passes: Callable[[int], bool], *, most: int, hopeless: Callable[[], bool] = lambda: False) -> int | None:
    """The smallest number from 1 to `most` that passes, by doubling and bisection; None: none that was tried does.

    Args:
        passes: the question; it should be as good at a larger number.
        most: largest number to try.
        hopeless: asked after each failure; True ends the search.
    """
    failed, number = 0, 1
    while not passes(number):
        failed = number
        if number == most or hopeless():
            return None
        number = min(2 * number, most)
    while number - failed > 1:
        middle = (failed + number) // 2
        if passes(middle):
            number = middle
        else:
            failed = middle
    return number
