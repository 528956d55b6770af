"""Pictures of a step's attention masks: over the flat row, and over the rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboard.look import Figure, Look, axis, layout
from dashboard.panels.frame import plain, typed
from scheduler.batch import BoolArray
from scheduler.plan import IntArray

from .figures import MOST_ROWS, REQUEST_COLOURS, axis_title, ticks
from .step import StepFacts

MOST_COLUMNS = 1_024
"""Columns of a picture; of more keys, several share a column."""
MOST_KEYS = 262_144
"""Keys of the flat row's mask that are looked at: 64 MB for 256 rows."""
MOST_COLS = 64
"""Columns of the rectangle that are drawn."""
_LINED = 12
"""Requests up to which lines stand between them."""
_HOVER_CELLS = 16_384
"""Cells up to which each tells who sees whom."""


def keys_a_column(keys: int) -> int:
    """How many keys share a column of the picture."""
    return -(-keys // MOST_COLUMNS)


def ragged_shown(facts: StepFacts) -> StepFacts:
    """What of a step its flat mask is drawn for."""
    return facts.within(MOST_ROWS, MOST_KEYS)


def rectangle_shown(facts: StepFacts) -> StepFacts:
    """What of a step its rectangle's mask is drawn for."""
    return facts.rectangle_within(MOST_ROWS, MOST_COLS)


def ragged_mask_figure(facts: StepFacts, look: Look) -> Figure:
    """The flat batch's attention mask, tokens × keys: a causal block for each request, nothing between them."""
    shown = ragged_shown(facts)
    mask = shown.ragged_mask()
    owner = np.repeat(np.arange(len(shown.requests)), shown.scheduled)
    ends = np.cumsum(shown.computed + shown.scheduled)
    lines = [_line(look, x=float(end)) for end in ends[:-1]]
    lines += [_line(look, y=float(end)) for end in np.cumsum(shown.scheduled)[:-1]]
    lines = lines if len(shown.requests) <= _LINED else []
    return _mask_figure(mask, owner, np.zeros(len(mask), dtype=bool), lines, _ragged_hovers(shown, mask), look,
                        x="keys, request after request", y="rows of the flat batch")  # fmt: skip


def padded_mask_figure(facts: StepFacts, look: Look) -> Figure:
    """The rectangle's attention mask, cells × keys of the cell's row; grey lines are padding."""
    shown = rectangle_shown(facts)
    batch = shown.padded
    rows, cols = batch.is_token.shape
    mask = batch.attention_mask().reshape(rows * cols, -1)
    owner = np.repeat(np.arange(rows), cols)
    burnt = owner >= batch.num_requests
    lines = [_line(look, y=float(row * cols)) for row in range(1, rows) if rows <= _LINED]
    return _mask_figure(mask, owner, ~batch.is_token.reshape(-1) | burnt, lines, _padded_hovers(shown, mask), look,
                        x="keys of the row", y="cells, row after row")  # fmt: skip


def _mask_figure(
    mask: BoolArray, owner: IntArray, padding: BoolArray, lines: list[dict[str, Any]],
    hovers: list[list[str]] | None, look: Look, *, x: str, y: str,
) -> Figure:  # fmt: skip
    rows, keys = mask.shape
    group = keys_a_column(keys)
    mask = _grouped(mask, group)
    values = np.where(mask, 2 + owner[:, None] % len(REQUEST_COLOURS), 0).astype(np.int8)
    values[padding] = 1
    colours = (look.kinds["idle"], look.kinds["padding"], *REQUEST_COLOURS)
    heat: dict[str, Any] = {
        "type": "heatmap", "z": typed(values), "x0": group / 2, "dx": group, "y0": 0.5, "dy": 1, "zmin": -0.5,
        "zmax": len(colours) - 0.5, "colorscale": _steps(colours), "showscale": False,
        "xgap": 1 if keys <= 64 else 0, "ygap": 1 if rows <= 40 else 0,
        "hovertemplate": "%{text}<extra></extra>" if hovers else "row %{y:.0f}, key %{x:,.0f}<extra></extra>",
    }  # fmt: skip
    if hovers:
        heat["text"] = hovers
    return {
        "data": [heat],
        "layout": layout(
            look, height=70 + max(120, min(rows * 22, 400)), showlegend=False, dragmode=False, shapes=lines,
            margin={"l": 44, "r": 8, "t": 8, "b": 42},
            xaxis=axis(look, range=[0, keys], fixedrange=True, showgrid=False, **ticks(keys),
                       title=axis_title(x, look)),
            yaxis=axis(look, range=[rows, 0], fixedrange=True, showgrid=False, **ticks(rows),
                       title=axis_title(y, look)),
        ),
    }  # fmt: skip


def _ragged_hovers(facts: StepFacts, mask: BoolArray) -> list[list[str]] | None:
    if mask.size > _HOVER_CELLS:
        return None
    names = [plain(request.name) for request in facts.requests]
    keys = [f"{name}'s position {at}" for name, r in zip(names, facts.requests, strict=True)
            for at in range(r.computed + r.scheduled)]  # fmt: skip
    rows = [f"{name}'s position {r.computed + at}" for name, r in zip(names, facts.requests, strict=True)
            for at in range(r.scheduled)]  # fmt: skip
    return [
        [f"{row} {'sees' if seen else 'does not see'} {key}" for key, seen in zip(keys, line, strict=False)]
        for row, line in zip(rows, mask.tolist(), strict=True)
    ]


def _padded_hovers(facts: StepFacts, mask: BoolArray) -> list[list[str]] | None:
    if mask.size > _HOVER_CELLS:
        return None
    batch, rows = facts.padded, (*facts.requests, *facts.burning)
    cols = batch.is_token.shape[1]
    hovers = []
    for at, line in enumerate(mask.tolist()):
        row, col = divmod(at, cols)
        who = f"{plain(rows[row].name)}'s position {int(batch.positions[row, col])}"
        if row >= batch.num_requests:
            hovers.append([f"{plain(rows[row].name)} has ended: its row burns on"] * len(line))
        elif not batch.is_token[row, col]:
            hovers.append([f"padding in {plain(rows[row].name)}'s row: computed for nothing"] * len(line))
        else:
            start = int(batch.kv_start[row])
            hovers.append([f"{who} {'sees' if seen else 'does not see'} position {key - start}" if key >= start
                           else f"{who} skips a pad" for key, seen in enumerate(line)])  # fmt: skip
    return hovers


def _grouped(mask: BoolArray, group: int) -> BoolArray:
    """The mask with `group` keys a column: seen where any of them is."""
    rows, keys = mask.shape
    filled = np.pad(mask, ((0, 0), (0, -keys % group)))
    grouped: BoolArray = np.logical_or.reduce(filled.reshape(rows, -1, group), axis=2)
    return grouped


def _steps(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale of equal steps."""
    count = len(colours)
    return [[edge / count, colour] for at, colour in enumerate(colours) for edge in (at, at + 1)]


def _line(look: Look, *, x: float | None = None, y: float | None = None) -> dict[str, Any]:
    """A line across the mask where one request ends and the next begins."""
    place = {"xref": "x", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1} if x is not None else {
        "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": y, "y1": y}  # fmt: skip
    return {"type": "line", "line": {"width": 1, "color": look.muted}, **place}
