"""The steps of a run that are in view, in at most as many pieces as a figure has room for.

A piece keeps sums and extremes of its steps, so that a peak of one step in a million still shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard.view import Axis, View

from .memo import once
from .run import Run

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_PIECES = 480
"""About one for two pixels of a wide figure; steps as wide as a piece add at most two each."""


@dataclass(frozen=True)
class Window:
    """Rows ``[low, high)`` of a run's steps, in ``len(starts)`` pieces.

    Attributes:
        run: whose steps.
        axis: what x is.
        start, end: the part in view, in x.
        low, high: its rows.
        starts: first row of each piece, counted from `low`; int64 ``(pieces,)``.
        left, right: x where each piece begins and ends, ``(pieces,)``.
    """

    run: Run
    axis: Axis
    start: float
    end: float
    low: int
    high: int
    starts: Ints
    left: Floats
    right: Floats

    @classmethod
    def of(cls, run: Run, view: View, span: tuple[float, float], most: int = MOST_PIECES) -> Window:
        """The part of a run that a view shows; `span` is where x begins and ends."""
        start, end = span
        left, right = step_edges(run, view.axis)
        low = int(np.searchsorted(right, start, side="right"))
        high = max(low, int(np.searchsorted(left, end, side="left")))
        starts = _pieces(left[low:high], right[low:high], start, end, most)
        ends = np.append(starts, high - low)[1:] - 1
        return cls(run, view.axis, start, end, low, high, starts, left[low:high][starts], right[low:high][ends])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_steps(self) -> int:
        """Steps in view."""
        return self.high - self.low

    @property
    def exact(self) -> bool:
        """Whether each piece is one step."""
        return len(self) == self.num_steps

    @cached_property
    def counts(self) -> Ints:
        """Steps of each piece, ``(pieces,)``."""
        return np.diff(np.append(self.starts, self.num_steps))

    @cached_property
    def steps(self) -> Ints:
        """Number of the first step of each piece, ``(pieces,)``."""
        return np.asarray(self.values("step")[self.starts], dtype=np.int64)

    def values(self, name: str) -> npt.NDArray[Any]:
        """A column of the steps in view, ``(steps,)``."""
        return self.run.column("steps", name)[self.low : self.high]

    def total(self, values: str | npt.NDArray[Any]) -> Floats:
        """Sum over each piece, ``(pieces,)``, of a column or of an array of ``(steps,)``."""
        return self._reduce(np.add, values)

    def mean(self, values: str | npt.NDArray[Any]) -> Floats:
        """Mean over the steps of each piece, ``(pieces,)``."""
        return self.total(values) / np.maximum(self.counts, 1)

    def level(self, values: str | npt.NDArray[Any]) -> Floats:
        """Mean over the width of each piece in x, ``(pieces,)``: over time, or over steps where x is steps.

        For states, which last as long as their step; over its steps where a piece has no width.
        """
        if self.exact:
            return self.mean(values)
        array = self.values(values) if isinstance(values, str) else values
        widths = self._widths
        lasting = self.total(widths)
        weighted = self.total(array * widths) / np.where(lasting > 0, lasting, 1.0)
        return np.where(lasting > 0, weighted, self.mean(array))

    @cached_property
    def _widths(self) -> Floats:
        left, right = step_edges(self.run, self.axis)
        return np.asarray(right[self.low : self.high] - left[self.low : self.high], dtype=np.float64)

    @property
    def level_means(self) -> str:
        """What `level` is, in words, with the grain; empty where each piece is a step."""
        how = "mean over time" if self.axis == "time" else "mean of a step"
        return "" if self.exact or not len(self) else f"{how}; {self.grain}"

    def most(self, values: str | npt.NDArray[Any]) -> Floats:
        """Largest of each piece, ``(pieces,)``."""
        return self._reduce(np.maximum, values)

    def least(self, values: str | npt.NDArray[Any]) -> Floats:
        """Smallest of each piece, ``(pieces,)``."""
        return self._reduce(np.minimum, values)

    def _reduce(self, function: np.ufunc, values: str | npt.NDArray[Any]) -> Floats:
        array = self.values(values) if isinstance(values, str) else values
        if not len(self):
            return np.empty(0)
        kind = np.float64 if function is np.add else None
        return np.asarray(function.reduceat(array, self.starts, dtype=kind), dtype=np.float64)

    @cached_property
    def outline(self) -> Outline:
        """The pieces as the corners of a line of steps."""
        return Outline.of(self.left, self.right)

    @property
    def grain(self) -> str:
        """What a piece is, in words; empty when it is a step."""
        if self.exact or not len(self):
            return ""
        return f"each point: up to {int(self.counts.max()):,} steps"


@dataclass(frozen=True)
class Outline:
    """Corners of a line that holds each piece's value from its left to its right, and 0 where no step ran.

    Attributes:
        x: ``(corners,)``, for Plotly's line shape ``hv``.
        piece: which piece each corner takes its value from; -1: 0. ``(corners,)``.
    """

    x: Floats
    piece: Ints

    @classmethod
    def of(cls, left: Floats, right: Floats) -> Outline:
        """From the edges of pieces, each ``(pieces,)``, in order."""
        if not len(left):
            return cls(np.empty(0), np.empty(0, dtype=np.int64))
        numbers = np.arange(len(left))
        tolerance = 1e-9 * max(1.0, float(abs(right[-1])))
        idle = np.flatnonzero(left[1:] > right[:-1] + tolerance)
        places = np.concatenate([numbers, idle + 0.5, [len(left) - 0.5]])
        order = np.argsort(places, kind="stable")
        x = np.concatenate([left, right[idle], right[-1:]])[order]
        piece = np.concatenate([numbers, np.full(len(idle), -1), numbers[-1:]])[order]
        return cls(x, piece)

    def y(self, values: Floats) -> Floats:
        """Values of pieces, ``(pieces,)``, at the corners."""
        return np.where(self.piece < 0, 0.0, values[self.piece]) if len(values) else np.empty(0)


def step_edges(run: Run, axis: Axis) -> tuple[Floats, Floats]:
    """Where each step begins and ends in x, two of ``(steps,)``."""
    return once(run, f"edges of steps by {axis}", partial(_step_edges, axis=axis))


def _step_edges(run: Run, axis: Axis) -> tuple[Floats, Floats]:
    if axis == "step":
        step = run.column("steps", "step")
        return step, step + 1
    return run.column("steps", "t_start_s") - run.origin_s, run.column("steps", "t_end_s") - run.origin_s


def whole_span(run: Run, axis: Axis) -> tuple[float, float]:
    """Where a run's x begins and ends: from its first arrival to its last step's end."""
    left, right = step_edges(run, axis)
    if not len(left):
        return 0.0, 1.0
    first = float(left[0]) if axis == "step" else min(0.0, float(left[0]))
    return first, max(float(right[-1]), first + 1e-9)


def end_of(run: Run, axis: Axis) -> float:
    """Where a run's last step ends in x; 0 without steps."""
    _, right = step_edges(run, axis)
    return float(right[-1]) if len(right) else 0.0


def span_in_view(runs: tuple[Run, ...], view: View) -> tuple[float, float]:
    """The part of x that a view shows of its runs: what it says, cut to where the runs are."""
    spans = [whole_span(run, view.axis) for run in runs] or [(0.0, 1.0)]
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    start = first if view.start is None else min(max(view.start, first), last)
    end = last if view.end is None else max(min(view.end, last), first)
    return (start, end) if end > start else (first, last)


def row_at(run: Run, axis: Axis, x: float) -> int | None:
    """Row of the step at x: the last that had begun; None where no step is held."""
    left, _ = step_edges(run, axis)
    if not len(left):
        return None
    return max(0, int(np.searchsorted(left, x, side="right")) - 1)


def row_of_step(run: Run, step: int) -> int | None:
    """Row of a step by its number, or of the one before it where it is not held; None where there is none."""
    steps = run.column("steps", "step")
    if not len(steps):
        return None
    return max(0, int(np.searchsorted(steps, step, side="right")) - 1)


def _pieces(left: Floats, right: Floats, start: float, end: float, most: int) -> Ints:
    """First row of each piece: each step its own where there is room, else equal widths without the empty ones.

    A step as wide as a piece is one of its own: what it was must not be mixed with short steps beside it.
    """
    if len(left) <= most:
        return np.arange(len(left))
    edges, width = np.linspace(start, end, most, endpoint=False, retstep=True)
    rows = np.searchsorted(left, edges, side="left")
    rows[0] = 0
    wide = np.flatnonzero(right - left >= width)
    rows = np.concatenate([rows, wide, wide + 1])
    return np.unique(rows[rows < len(left)]).astype(np.int64)
