"""Throughput against latency: every combination a point, the Pareto front a line, the limits a box."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dashboard.look import Figure, Look, axis, layout
from dashboard.numbers import digits, seconds
from dashboard.panels.frame import plain
from simulator.slo import Figure as Latency

from .points import Limits, Row, doubt, label, latency_title, limits_text, meets, ran

HEIGHT = 380


def figure(result: Mapping[str, Any], look: Look, limits: Limits) -> Figure:
    """x: the latency figure of the sweep, seconds; y: output tokens per second. `customdata`: the point's place."""
    latency = Latency(result["latency"])
    shown = [(at, row) for at, row in ran(result) if latency.of(row) is not None and row["output_tokens_per_s"]]
    made = layout(look, height=HEIGHT, showlegend=False)
    made["margin"] = {**made["margin"], "r": 24}
    made["xaxis"] = axis(look, title=_title(look, f"{latency_title(latency.name)}, seconds"), rangemode="tozero")
    made["yaxis"] = axis(look, title=_title(look, "output tokens/s"), rangemode="tozero")
    xs = [latency.of(row) or 0.0 for _, row in shown]
    least = 0.0
    if xs and min(xs) > 0 and max(xs) > 50 * min(xs):
        least = min(xs) / 1.5
        made["xaxis"].update(type="log", range=[math.log10(least), math.log10(max(xs) * 1.5)], dtick=1)
    limit = limits.get(latency.metric) if latency.name.endswith("p99") else None
    if limit is not None:
        made["shapes"] = [_box(least, limit, look)]
    front = [(at, row) for at, row in shown if row["pareto"]]
    return {
        "data": [
            *_kinds(shown, latency, look, limits),
            _line(sorted(front, key=lambda pair: latency.of(pair[1]) or 0.0), latency, look),
        ],
        "layout": made,
    }


def legend(figure: Figure) -> list[tuple[str, str, str]]:
    """Name, colour and symbol of what the figure holds; for the page, where a legend can wrap."""
    marks = [
        (trace["name"], trace["marker"]["color"], _MARKS[trace["name"]][2])
        for trace in figure["data"]
        if trace["name"] in _MARKS
    ]
    box = [
        ("within the limit of this latency", shape["fillcolor"], "▮") for shape in figure["layout"].get("shapes", ())
    ]
    return [*marks, ("Pareto front", figure["data"][-1]["line"]["color"], "┅"), *box]


def words(result: Mapping[str, Any], limits: Limits) -> str:
    """The front, and the best point within the limits."""
    points = ran(result)
    failed = len(result["runs"]) - len(points)
    said = f"{sum(bool(row['pareto']) for _, row in points)} of {len(points)} combinations are on the front"
    said += (f"; {failed} could not run." if failed else ".") + doubt(result)
    if not limits:
        return said
    good = [row for _, row in points if meets(row, limits)]
    if not good:
        return f"{said} None keeps {limits_text(limits)}."
    best = max(good, key=lambda row: row["output_tokens_per_s"] or 0.0)
    return (
        f"{said} {len(good)} keep {limits_text(limits)}; the fastest of them is {label(best)} with "
        f"{digits(best['output_tokens_per_s'])} output tokens/s."
    )


def _kinds(shown: list[tuple[int, Row]], latency: Latency, look: Look, limits: Limits) -> list[dict[str, Any]]:
    """Points within the limits are filled, the others open; those that fell behind their arrivals are crosses."""
    groups: dict[str, list[tuple[int, Row]]] = {}
    for at, row in shown:
        name = "falls behind its arrivals" if row["saturated"] else "within the limits" if limits else "keeps up"
        if not row["saturated"] and not meets(row, limits):
            name = "over a limit"
        groups.setdefault(name, []).append((at, row))
    return [_points(pairs, name, latency, look) for name, pairs in groups.items()]


def _points(pairs: list[tuple[int, Row]], name: str, latency: Latency, look: Look) -> dict[str, Any]:
    symbol, color, _ = _MARKS[name]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [latency.of(row) for _, row in pairs],
        "y": [row["output_tokens_per_s"] for _, row in pairs],
        "marker": {"symbol": symbol, "size": 9, "color": getattr(look, color), "line": {"width": 1.5}},
        "customdata": [at for at, _ in pairs],
        "hovertext": [_hover(row, latency) for _, row in pairs],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


_MARKS = {
    "within the limits": ("circle", "accent", "●"),
    "keeps up": ("circle", "accent", "●"),
    "over a limit": ("circle-open", "accent", "○"),
    "falls behind its arrivals": ("x-thin-open", "muted", "×"),
}
"""What a point is -> its symbol in Plotly, its colour in the look, its symbol in text."""


def _hover(row: Row, latency: Latency) -> str:
    return (
        f"{plain(label(row))}<br>{digits(row['output_tokens_per_s'])} output tokens/s, "
        f"{latency_title(latency.name)} {seconds(latency.of(row))}"
        f"{'<br>some steps extrapolated' if row.get('extrapolated') else ''}<br>click to look inside"
    )


def _line(front: list[tuple[int, Row]], latency: Latency, look: Look) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": [latency.of(row) for _, row in front],
        "y": [row["output_tokens_per_s"] for _, row in front],
        "line": {"color": look.ink, "width": 1.5, "dash": "dot", "shape": "hv"},
        "hoverinfo": "skip",
    }


def _box(least: float, limit: float, look: Look) -> dict[str, Any]:
    """What lies within the limit of the latency shown."""
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": least, "x1": limit, "y0": 0, "y1": 1, "layer": "below",
        "fillcolor": look.kinds["cached"], "opacity": 0.1, "line": {"width": 0},
    }  # fmt: skip


def _title(look: Look, text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 11, "color": look.muted}, "standoff": 6}
