"""Goodput and latency against load, and the knee.

The knee is, where limits are given, the highest load up to which every p99 is within its limit; where none are, the
point at which the curve bends most: the largest difference between load and latency, both scaled to 0 to 1 (V. Satopaa,
J. Albrecht, D. Irwin and B. Raghavan, "Finding a 'Kneedle' in a Haystack", ICDCS Workshops 2011, without smoothing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.look import RUN_DASHES, Figure, Look, axis, layout
from dashboard.numbers import digits, seconds
from dashboard.panels.frame import plain
from dashboard.what_if.sweep_form import point_text
from simulator.slo import Figure as Latency

from .points import Limits, Row, axes, doubt, empty, latency_title, limits_text, meets, ran

HEIGHT = 380
LOADS = ("rate", "concurrency")
MOST_LINES = 8
_UNITS = {"rate": "requests/s arriving", "concurrency": "clients"}


@dataclass(frozen=True)
class Curve:
    """One combination of settings under rising load; of several seeds the worst.

    Attributes:
        name: the combination, values only, in the order of `varied`.
        places: of each load the place of its row in the sweep.
        loads: rising.
        latencies_s: the latency figure, the largest of the seeds.
        served: goodput where the sweep was told limits, else requests served, per second; the smallest of the seeds.
        within: whether every seed is within the limits.
    """

    name: str
    places: tuple[int, ...]
    loads: tuple[float, ...]
    latencies_s: tuple[float | None, ...]
    served: tuple[float | None, ...]
    within: tuple[bool, ...]

    def knee(self, limited: bool) -> int | None:
        """Place among the loads; None: there is none."""
        if limited:
            bad = self.within.index(False) if False in self.within else len(self.within)
            return bad - 1 if bad else None
        return bend(self.loads, self.latencies_s)


def load_axis(result: Mapping[str, Any]) -> str | None:
    """What was varied as load: the rate, or the number of clients; None: neither."""
    return next((name for name in LOADS if len(result["grid"].get(name, ())) > 1), None)


def curves(result: Mapping[str, Any], limits: Limits) -> list[Curve]:
    """One for each combination of what else was varied, in the order of the sweep; seeds are brought together."""
    load = load_axis(result)
    if load is None:
        return []
    groups: dict[str, dict[float, list[tuple[int, Row]]]] = {}
    for at, row in ran(result):
        if row["point"][load] is not None:
            name = ", ".join(point_text(axis, row["point"][axis]) for axis in varied(result))
            group = groups.setdefault(name, {})
            group.setdefault(float(row["point"][load]), []).append((at, row))
    latency = Latency(result["latency"])
    return [_curve(name, dict(sorted(group.items())), latency, limits) for name, group in groups.items()]


def varied(result: Mapping[str, Any]) -> list[str]:
    """What tells the curves apart: all that was varied but load and seed."""
    return [name for name in axes(result) if name not in (load_axis(result), "seed")]


def figure(result: Mapping[str, Any], look: Look, limits: Limits) -> Figure:
    """Two axes over one load: what is served above, latency below; `customdata`: the point's place in the sweep."""
    found = curves(result, limits)[:MOST_LINES]
    load = load_axis(result)
    if not found:
        return empty(look, "The load was not varied.")
    made = layout(look, height=HEIGHT, showlegend=False)
    title = {"font": {"size": 11, "color": look.muted}, "standoff": 6}
    made["xaxis"] = axis(look, title={"text": _UNITS.get(load or "", ""), **title}, rangemode="tozero", anchor="y2")
    made["yaxis"] = axis(look, title={"text": served_title(result), **title}, rangemode="tozero", domain=[0.56, 1])
    below = f"{latency_title(result['latency'])}, s"
    made["yaxis2"] = axis(look, title={"text": below, **title}, type="log", domain=[0, 0.46], dtick=1)
    latency = Latency(result["latency"])
    limit = limits.get(latency.metric) if latency.name.endswith("p99") else None
    if limit is not None:
        made["shapes"] = [_limit_line(limit, look)]
    data = [trace for at, curve in enumerate(found) for trace in _lines(curve, at, look, bool(limits))]
    return {"data": data, "layout": made}


def legend(result: Mapping[str, Any], look: Look, limits: Limits) -> list[tuple[str, str, str]]:
    """Name, colour and dash of each curve that is drawn; for the page, where a legend can wrap."""
    return [(curve.name or "all", *_stroke(at, look)) for at, curve in enumerate(curves(result, limits)[:MOST_LINES])]


def words(result: Mapping[str, Any], limits: Limits) -> str:
    """Where each curve's knee is, and how it was found."""
    found = curves(result, limits)
    if not found:
        return "The load was not varied: give rates, or vary concurrency."
    how = f"the highest load that keeps {limits_text(limits)}" if limits else "where the curve bends most (Kneedle)"
    unit = "clients" if load_axis(result) == "concurrency" else "requests/s"
    said = []
    for curve in found[:MOST_LINES]:
        knee = curve.knee(bool(limits))
        said.append(f"{curve.name or 'all'}: {'none' if knee is None else f'{digits(curve.loads[knee])} {unit}'}")
    more = f" {len(found) - MOST_LINES} more combinations are not drawn." if len(found) > MOST_LINES else ""
    seeds = len(result["grid"].get("seed", ()))
    worst = f" Of {seeds} seeds the worst is shown." if seeds > 1 else ""
    names = f" of {', '.join(varied(result))}" if varied(result) else ""
    return f"Knee{names}, {how}: {'; '.join(said)}.{_goodput(result)}{worst}{more}{doubt(result)}"


def _goodput(result: Mapping[str, Any]) -> str:
    """What the upper axis counts, where that is goodput."""
    limits = result.get("slo") or {}
    kept = ", ".join(f"{name.removesuffix('_s').upper()} ≤ {seconds(limit)}" for name, limit in limits.items())
    return f" Goodput counts requests with {kept}." if kept else ""


def served_title(result: Mapping[str, Any]) -> str:
    """What the upper axis shows."""
    return "goodput, requests/s" if result.get("slo") else "requests/s served"


def bend(loads: Sequence[float], latencies_s: Sequence[float | None]) -> int | None:
    """Where a rising curve bends most; None for fewer than three points, or one that bends at its ends only."""
    known = [at for at, value in enumerate(latencies_s) if value is not None]
    if len(known) < 3:
        return None
    x = np.array([loads[at] for at in known])
    y = np.array([latencies_s[at] for at in known], dtype=np.float64)
    if np.ptp(y) == 0:
        return None
    difference = (x - x[0]) / np.ptp(x) - (y - y.min()) / np.ptp(y)
    most = int(np.argmax(difference))
    return known[most] if 0 < most < len(known) - 1 else None


def _curve(name: str, group: Mapping[float, list[tuple[int, Row]]], latency: Latency, limits: Limits) -> Curve:
    worst = [max(pairs, key=lambda pair: latency.of(pair[1]) or 0.0) for pairs in group.values()]
    return Curve(
        name,
        tuple(at for at, _ in worst),
        tuple(group),
        tuple(latency.of(row) for _, row in worst),
        tuple(min((_served(row) for _, row in pairs), default=None) for pairs in group.values()),
        tuple(all(meets(row, limits) for _, row in pairs) for pairs in group.values()),
    )


def _served(row: Row) -> float:
    return float(row.get("goodput_per_s", row["requests_per_s"]) or 0.0)


def _lines(curve: Curve, at: int, look: Look, limited: bool) -> list[dict[str, Any]]:
    color, dash = _stroke(at, look)
    name = plain(curve.name) or "all"
    common: dict[str, Any] = {
        "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "x": list(curve.loads),
        "customdata": list(curve.places), "line": {"color": color, "width": 1.5, "dash": dash}, "marker": {"size": 6},
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
    load = [f"{name}<br>at {digits(value)}: " for value in curve.loads]
    below = [f"{head}{seconds(value)}" for head, value in zip(load, curve.latencies_s, strict=True)]
    above = [f"{head}{digits(value)} requests/s" for head, value in zip(load, curve.served, strict=True)]
    lines = [
        {**common, "y": list(curve.served), "yaxis": "y", "hovertext": above},
        {**common, "y": list(curve.latencies_s), "yaxis": "y2", "hovertext": below, "showlegend": False},
    ]
    knee = curve.knee(limited)
    return lines if knee is None else [*lines, _mark(curve, knee, name, color)]


def _stroke(at: int, look: Look) -> tuple[str, str]:
    return look.runs[at % len(look.runs)], RUN_DASHES[(at // len(look.runs)) % len(RUN_DASHES)]


def _mark(curve: Curve, knee: int, name: str, color: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": f"{name}: knee", "legendgroup": name, "showlegend": False,
        "x": [curve.loads[knee]], "y": [curve.latencies_s[knee]], "yaxis": "y2", "customdata": [curve.places[knee]],
        "marker": {"symbol": "diamond-open", "size": 14, "color": color, "line": {"width": 2}},
        "hovertemplate": f"{name}: the knee, at {digits(curve.loads[knee])}<extra></extra>",
    }  # fmt: skip


def _limit_line(limit: float, look: Look) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "yref": "y2", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
            "line": {"color": look.ink, "width": 1, "dash": "dot"}}  # fmt: skip
