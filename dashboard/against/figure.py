"""Measured curves and simulated ones over each other: running, waiting, KV blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxDownsampler

from dashboard.look import Figure, Look, axis, layout
from dashboard.panels.frame import BOTTOM, GAP, TOP, typed

ROW_HEIGHT = 110
"""Pixels of one state's axes."""
MOST_POINTS = 4_000
"""Of one curve; more are thinned to the smallest and the largest of each piece."""
STATES = {"running": "running requests", "waiting": "waiting requests", "kv_percent": "KV blocks used, %"}
Floats = npt.NDArray[np.float64]


def figure(result: Mapping[str, Any], look: Look) -> Figure | None:
    """The curves of a comparison, a row a state that was recorded; None where none was."""
    series = result["series"]
    shown = [] if series is None else [name for name in STATES if series["measured"][name] is not None]
    if not shown or not series["t_s"]:
        return None
    inner = len(shown) * ROW_HEIGHT + (len(shown) - 1) * GAP
    made = layout(look, height=inner + TOP + BOTTOM, annotations=[], hovermode="x unified")
    made["margin"] = {**made["margin"], "t": TOP, "b": BOTTOM}
    made["legend"]["y"] = 1 + 22 / inner
    title = {"text": "seconds since the first arrival", "font": {"size": 11, "color": look.muted}, "standoff": 4}
    made["xaxis"] = axis(look, anchor=_name("y", len(shown) - 1), showgrid=False, title=title)
    data: list[dict[str, Any]] = []
    for row, name in enumerate(shown):
        top = 1 - row * (ROW_HEIGHT + GAP) / inner
        made[_name("yaxis", row)] = axis(
            look, domain=[max(0.0, top - ROW_HEIGHT / inner), top], anchor="x", rangemode="tozero", fixedrange=True
        )
        made["annotations"].append(_label(name, series["rmse"][name], top, look))
        data += _curves(series, name, row, look)
    return {"data": data, "layout": made}


def _name(what: str, row: int) -> str:
    return what if row == 0 else f"{what}{row + 1}"


def _label(name: str, rmse: float | None, top: float, look: Look) -> dict[str, Any]:
    points = " points" if name == "kv_percent" else ""
    off = "" if rmse is None else f" · off by {rmse:,.3g}{points} (RMSE)"
    return {
        "text": STATES[name] + off, "font": {"size": 11, "color": look.muted}, "showarrow": False, "x": 0, "y": top,
        "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 3,
    }  # fmt: skip


def _curves(series: Mapping[str, Any], name: str, row: int, look: Look) -> list[dict[str, Any]]:
    """The measured one is solid, the simulated one dashed: told apart without colour."""
    times = np.array(series["t_s"], dtype=np.float64)
    lines = {"measured": {"color": look.accent}, "simulated": {"color": look.runs[1], "dash": "dash"}}
    traces = []
    for side, line in lines.items():
        t_s, values = _thinned(times, np.array(series[side][name], dtype=np.float64))
        traces.append(
            {"type": "scatter", "mode": "lines", "name": side, "legendgroup": side, "showlegend": row == 0,
             "x": typed(t_s), "y": typed(values), "xaxis": "x", "yaxis": _name("y", row),
             "line": {"width": 1.5, **line}, "hovertemplate": "%{y:,.4~g}"}
        )  # fmt: skip
    return traces


def _thinned(t_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    if len(t_s) <= MOST_POINTS:
        return t_s, values
    kept = MinMaxDownsampler().downsample(values, n_out=MOST_POINTS)
    return t_s[kept], values[kept]
