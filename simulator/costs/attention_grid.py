"""A measured grid of attention times: prefill chunk x its history x decodes x their history, one layer, seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Cell = tuple[int, float]
"""``(index of the lower grid point, part of the way to the next one)``; a part above 1 is beyond the grid."""


@dataclass(frozen=True)
class AttentionGrid:
    """Times of one layer's attention.

    A prefill chunk is one request's rows; `decodes` requests of one row each have the same history. A request's history
    is what it had computed before the step.

    Attributes:
        chunk, before, decodes, context: the axes, rising, without their zeros: rows of the prefill, its history (from
            0), decode rows, their history.
        decode_s: ``(decodes, context)``, decodes alone.
        prefill_s: ``(chunk, before)``, a prefill alone.
        mixed_s: ``(chunk, before, decodes, context)``, both in one step.
        decode_filled, prefill_filled, mixed_filled: true where the time was not measured but continued on a line.
    """

    chunk: Floats
    before: Floats
    decodes: Floats
    context: Floats
    decode_s: Floats
    prefill_s: Floats
    mixed_s: Floats
    decode_filled: Bools
    prefill_filled: Bools
    mixed_filled: Bools

    @classmethod
    def of(cls, cells: Mapping[tuple[int, ...], float], path: Path | None = None) -> AttentionGrid:
        """From ``(chunk, before, decodes, context) -> seconds``.

        Holes are continued on the line through the two points before them, first along the decodes' history, then
        along their number. Raises InputError where too little was measured for that.
        """
        axes = [sorted({cell[axis] for cell in cells if cell[axis]}) for axis in range(4)]
        if any(len(axis) < 2 for axis in axes):
            raise InputError("has fewer than two points along an axis; expected a grid", path=path)
        axes[1] = [0, *axes[1]]
        places = [{value: at for at, value in enumerate(axis)} for axis in axes]
        shape = tuple(map(len, axes))
        decode, prefill = np.full(shape[2:], np.nan), np.full(shape[:2], np.nan)
        mixed = np.full(shape, np.nan)
        for (chunk, before, decodes, context), seconds in cells.items():
            left = (places[0].get(chunk, -1), places[1][before])
            right = (places[2].get(decodes, -1), places[3].get(context, -1))
            if decodes and context == 0:
                continue  # a first token of one row: cheaper than the first grid point, where it is read
            if not chunk:
                decode[right] = seconds
            elif not decodes:
                prefill[left] = seconds
            else:
                mixed[left + right] = seconds
        filled = tuple(np.isnan(table) for table in (decode, prefill, mixed))
        lines = [np.array(axis, dtype=np.float64) for axis in axes]
        tables = ((decode, lines[2:], "decodes"), (prefill, lines[:2], "prefills"), (mixed, lines, "mixed steps"))
        for table, along, what in tables:
            _fill(table, along)
            if np.isnan(table).any():
                raise InputError(f"has too few points of {what}; expected a grid of them", path=path)
        return cls(lines[0], lines[1], lines[2], lines[3], decode, prefill, mixed, *filled)


def cell(x: float, axis: list[float]) -> Cell:
    """Where `x` lies on a rising axis; below its first point counts as that point."""
    at = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return at, max(0.0, round((x - axis[at]) / (axis[at + 1] - axis[at]), 9))  # rounded: 1 is on the grid, not beyond


def mix(low: float, high: float, part: float) -> float:
    """`part` of the way from `low` to `high`."""
    return low + part * (high - low)


def _fill(table: Floats, axes: list[Floats]) -> None:
    """Continue each hole on the line through the two points before it, the last axis first; in place."""
    for number in range(table.ndim - 1, -1, -1):
        view, axis = np.moveaxis(table, number, 0), axes[number]
        for at in range(2, len(view)):
            hole = np.isnan(view[at])
            rise = (view[at - 1] - view[at - 2]) / (axis[at - 1] - axis[at - 2])
            ahead = view[at - 1] + np.maximum(rise, 0.0) * (axis[at] - axis[at - 1])
            view[at][hole] = ahead[hole]
