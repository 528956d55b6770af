"""What a reader does to a view: zoom, pan, move the cursor. Pure functions from one view to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dashboard.data.run import Run
from dashboard.data.window import row_at, row_of_step, span_in_view, step_edges, whole_span
from dashboard.view import View

LEAST_SPAN = 1e-6
"""A view is at least that long (seconds or steps)."""


def after(gesture: Mapping[str, Any], view: View, runs: tuple[Run, ...]) -> View:
    """The view after a gesture.

    Gestures: ``zoom`` (``from``, ``to``), ``whole``, ``cursor`` (``x`` or ``step``), ``move`` (``by`` steps, from
    ``step`` or else from the cursor), ``pan_to`` (``x``: keep the length, begin near there). Any other, or one that
    makes no sense, changes nothing.
    """
    if not runs or not runs[0].num_steps:
        return view
    kind = gesture.get("kind")
    if kind == "whole":
        return view.whole()
    if kind == "zoom":
        return _zoomed(view, _number(gesture.get("from")), _number(gesture.get("to")))
    if kind == "pan_to":
        return _panned(view, runs, _number(gesture.get("x")))
    if kind == "cursor":
        return _at(view, runs[0], gesture)
    if kind == "move":
        by = _number(gesture.get("by"))
        return view if by is None else _moved(_from(view, _number(gesture.get("step"))), runs, by)
    return view


def _zoomed(view: View, start: float | None, end: float | None) -> View:
    if start is None or end is None or end - start < LEAST_SPAN:
        return view
    return replace(view, start=start, end=end)


def _panned(view: View, runs: tuple[Run, ...], x: float | None) -> View:
    if x is None:
        return view
    start, end = span_in_view(runs, view)
    last = max(whole_span(run, view.axis)[1] for run in runs)
    length = end - start
    start = max(0.0, min(x - 0.1 * length, last - length))
    return replace(view, start=start, end=start + length)


def _at(view: View, run: Run, gesture: Mapping[str, Any]) -> View:
    step, x = _number(gesture.get("step")), _number(gesture.get("x"))
    row = None
    if step is not None:
        row = row_of_step(run, int(step))
    elif x is not None:
        row = row_at(run, view.axis, x)
    return view if row is None else replace(view, step=int(run.column("steps", "step")[row]))


def _from(view: View, step: float | None) -> View:
    return view if step is None else replace(view, step=int(min(max(step, 0), 2**53)))


def _moved(view: View, runs: tuple[Run, ...], by: float) -> View:
    """The cursor some steps on; from the first step in view where it was nowhere. The view follows it."""
    run = runs[0]
    if view.step is None:
        row = row_at(run, view.axis, span_in_view(runs, view)[0]) or 0
    else:
        row = (row_of_step(run, view.step) or 0) + int(by)
    row = max(0, min(row, run.num_steps - 1))
    moved = replace(view, step=int(run.column("steps", "step")[row]))
    x = float(step_edges(run, view.axis)[0][row])
    start, end = span_in_view(runs, view)
    return moved if start <= x <= end else _panned(moved, runs, x)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
