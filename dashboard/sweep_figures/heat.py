"""Heat map: one figure over two of the settings that a sweep varied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.look import Figure, Look, axis, layout
from dashboard.what_if.sweep_form import point_text

from .load import LOADS
from .points import Quantity, Row, axes, doubt, empty, quantities, ran

ROW, AROUND = 46, 96
"""Pixels a row, and above and below all."""


def heat_axes(result: Mapping[str, Any]) -> tuple[str, str] | None:
    """The two that are shown, across and up: the first two varied, seeds aside; None: fewer were."""
    found = [name for name in axes(result) if name != "seed"]
    return (found[1], found[0]) if len(found) > 1 else None


def figure(result: Mapping[str, Any], look: Look, quantity: str) -> Figure:
    """A cell for each pair of values, with its number in it; customdata is the place in the sweep."""
    chosen = heat_axes(result)
    if chosen is None:
        return empty(look, "Two settings have to be varied.")
    across, up = chosen
    shown = quantities(result["latency"])[quantity]
    columns, rows = result["grid"][across], result["grid"][up]
    cells = _cells(result, across, up)
    values = [[_value(shown, cells.get(_key(x, y))) for x in columns] for y in rows]
    texts = [[shown.shown(value) for value in line] for line in values]
    made = layout(look, height=AROUND + ROW * len(rows), showlegend=False)
    made["margin"] = {**made["margin"], "l": 110, "t": 24}
    title = {"font": {"size": 11, "color": look.muted}, "standoff": 6}
    made["xaxis"] = axis(look, type="category", title={"text": across, **title}, fixedrange=True, showgrid=False)
    made["yaxis"] = axis(look, type="category", title={"text": up, **title}, fixedrange=True, showgrid=False)
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [point_text(across, value) for value in columns],
                "y": [point_text(up, value) for value in rows],
                "z": values,
                "text": texts,
                "texttemplate": "%{text}",
                "customdata": [[cells[_key(x, y)][0] if _key(x, y) in cells else -1 for x in columns] for y in rows],
                "colorscale": [list(stop) for stop in look.scale],
                "showscale": False,
                "xgap": 2,
                "ygap": 2,
                "hovertemplate": f"{across} %{{x}}, {up} %{{y}}<br>{shown.title}: %{{text}}<extra></extra>",
            }
        ],
        "layout": made,
    }


def words(result: Mapping[str, Any], quantity: str) -> str:
    """What is shown, its range, and what is held fixed."""
    chosen = heat_axes(result)
    if chosen is None:
        return "A map needs two settings that were varied."
    shown = quantities(result["latency"])[quantity]
    known = [value for _, row in _cells(result, *chosen).values() if (value := shown.of(row)) is not None]
    if not known:
        return f"No run has {shown.title}."
    fixed = [name for name in axes(result) if name not in chosen]
    held = ", ".join(f"{name} {point_text(name, _held(result, name))}" for name in fixed)
    return (
        f"{shown.title}: {shown.shown(min(known))} to {shown.shown(max(known))}"
        + (f", at {held}." if held else ".")
        + doubt(result)
    )


def _cells(result: Mapping[str, Any], across: str, up: str) -> dict[str, tuple[int, Row]]:
    """Place and row of each pair of values; of what else was varied see `_held`."""
    fixed = {name: _held(result, name) for name in axes(result) if name not in (across, up)}
    return {
        _key(row["point"][across], row["point"][up]): (at, row)
        for at, row in ran(result)
        if all(row["point"][name] == value for name, value in fixed.items())
    }


def _held(result: Mapping[str, Any], name: str) -> Any:
    """Where the map is cut: at the heaviest load, and at the first value of all else."""
    values = result["grid"][name]
    return values[-1] if name in LOADS else values[0]


def _key(x: Any, y: Any) -> str:
    return f"{x}|{y}"


def _value(shown: Quantity, cell: tuple[int, Row] | None) -> float | None:
    return None if cell is None else shown.of(cell[1])
