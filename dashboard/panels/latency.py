"""Latency: how TTFT, ITL, TPOT and E2E are distributed over what was delivered in view.

By delivery, not by arrival: of requests that arrived in a part, the slow ones have not ended by its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data.requests import in_view, once, streams, times_of
from dashboard.data.run import Run
from dashboard.data.window import Window, whole_span
from dashboard.look import RUN_DASHES, Figure, axis, layout
from dashboard.numbers import seconds, unit_for
from dashboard.scene import Scene
from traces.metrics import weighted_percentiles
from traces.run_table import count

from .base import Panel
from .frame import plain, typed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
METRICS = ("TTFT", "ITL", "TPOT", "E2E")
_MEANING = {
    "TTFT": "arrival to first token",
    "ITL": "token to token",
    "TPOT": "mean ITL/request",
    "E2E": "arrival to end",
}
_OF = {"TTFT": "request", "ITL": "gap", "TPOT": "request", "E2E": "request"}
MOST_RANKS = 400
"""Up to so many values each is a point of its curve; of more the curve has the points of `_grid`."""
LOG_FROM = 100
"""From that ratio of the largest to the smallest value on, x is logarithmic."""
HEIGHT, GAP_X, GAP_Y = 400, 0.15, 0.24
LEGEND_PX = 19
"""A line of the legend: on a small screen each run has its own."""


@dataclass(frozen=True)
class Curve:
    """A cumulative distribution as points.

    Attributes:
        percent: percentiles, 0 to 100, ``(points,)``.
        value_s: their values, seconds, ``(points,)``.
        values: how many values it stands for.
    """

    percent: Floats
    value_s: Floats
    values: int

    @classmethod
    def of(cls, values: Floats, counts: Ints | None = None) -> Curve | None:
        """From values in seconds in rising order, each standing for as many as its count says; None of no values.

        Percentiles are those of `traces.metrics.weighted_percentiles`: 0 and 100 are the extremes.
        """
        counts = np.ones(len(values), dtype=np.int64) if counts is None else counts
        total = int(counts.sum(dtype=np.int64))
        if not total:
            return None
        percent = _grid(total)
        return cls(percent, np.asarray(weighted_percentiles(values, counts, percent.tolist())), total)

    def columns(self) -> dict[str, Floats]:
        """Its points as a table's columns."""
        return {"percent": self.percent, "seconds": self.value_s}

    def at(self, percent: float) -> float:
        """The value of a percentile that is one of the points."""
        return float(self.value_s[int(np.searchsorted(self.percent, percent))])


def _grid(total: int) -> Floats:
    """Which percentiles are points: every rank of few values, else even ones and more where the tail is."""
    marks = np.array([0.0, 50.0, 90.0, 99.0, 100.0])
    if total <= MOST_RANKS:
        return np.unique(np.append(marks, np.arange(total) * 100.0 / max(1, total - 1)))
    tail = np.arange(950, 1000) / 10, np.arange(9900, 10000) / 100
    return np.unique(np.concatenate([marks, np.arange(200) / 2.0, *tail]))


def curves(window: Window) -> dict[str, Curve | None]:
    """The distributions of a run, in view: TTFT of first tokens, ITL of gaps, TPOT and E2E of requests that ended."""
    if (window.start, window.end) == whole_span(window.run, window.axis):
        return once(window.run, f"curves {window.axis}", lambda _: _curves(window))
    return _curves(window)


def _curves(window: Window) -> dict[str, Curve | None]:
    times = times_of(window.run)
    begun, ended = in_view(window, "first_token_s"), in_view(window, "finished_s")
    values = {"TTFT": times.ttft_s[begun], "TPOT": times.tpot_s[ended], "E2E": times.e2e_s[ended]}
    found = {name: Curve.of(_known(column)) for name, column in values.items()}
    found["ITL"] = Curve.of(*_gaps(window)) if streams(window.run) else None
    return {name: found[name] for name in METRICS}


def _known(values: Floats) -> Floats:
    return np.sort(values[~np.isnan(values)])


def _gaps(window: Window) -> tuple[Floats, Ints]:
    """Gaps delivered by steps in view, rising, and their counts."""
    run = window.run
    low, high = rows_of_gaps(window)
    order = once(run, "gaps by length", _rank)
    if high - low < len(order):
        order = order[(order >= low) & (order < high)]
    return run.column("gaps", "gap_s")[order], run.column("gaps", "count")[order].astype(np.int64)


def _rank(run: Run) -> npt.NDArray[np.intp]:
    return np.argsort(run.column("gaps", "gap_s"))


def rows_of_gaps(window: Window) -> tuple[int, int]:
    """Rows ``[low, high)`` of the table `gaps` that steps in view delivered; it is ordered by step."""
    if not window.num_steps:
        return 0, 0
    steps, gap_step = window.values("step"), window.run.column("gaps", "step")
    return int(np.searchsorted(gap_step, steps[0])), int(np.searchsorted(gap_step, steps[-1], side="right"))


def draw(scene: Scene) -> Figure:
    """Four cumulative distributions, all runs in each."""
    found = [curves(window) for window in scene.windows]
    figure: Figure = {"data": [], "layout": _layout(scene)}
    for place, name in enumerate(METRICS):
        known = [run_curves[name] for run_curves in found]
        _axes(figure, scene, place, name, known)
        for index, curve in enumerate(known):
            if curve is not None:
                figure["data"] += _lines(scene, index, place, name, curve, _unit(known)[1])
    return figure


def _layout(scene: Scene) -> dict[str, Any]:
    made = layout(scene.look, height=HEIGHT, annotations=[], hovermode="closest")
    top = 26 + (LEGEND_PX * len(scene.runs) if len(scene.runs) > 1 else 0)
    made["margin"] = {**made["margin"], "t": top, "b": 38}
    made["legend"] = {**made["legend"], "y": 1 + 20 / (HEIGHT - top - 38)}
    made["showlegend"] = len(scene.runs) > 1
    return made


def _unit(known: list[Curve | None]) -> tuple[str, float]:
    return unit_for(max((curve.at(100) for curve in known if curve is not None), default=0.0))


def _axes(figure: Figure, scene: Scene, place: int, name: str, known: list[Curve | None]) -> None:
    look, number = scene.look, "" if place == 0 else str(place + 1)
    left, top = place % 2 * (1 + GAP_X) / 2, 1 - place // 2 * (1 + GAP_Y) / 2
    x_domain, y_domain = [left, left + (1 - GAP_X) / 2], [max(0.0, top - (1 - GAP_Y) / 2), top]
    unit, _ = _unit(known)
    drawn = [curve for curve in known if curve is not None]
    figure["layout"][f"xaxis{number}"] = axis(
        look, domain=x_domain, anchor=f"y{number}", nticks=4, tickangle=0, showgrid=True,
        ticksuffix=f" {unit}", showticksuffix="last",
        visible=bool(drawn), **_scale(drawn),
    )  # fmt: skip
    figure["layout"][f"yaxis{number}"] = axis(
        look, domain=y_domain, anchor=f"x{number}", range=[0, 104], tickvals=[0, 50, 100],
        ticktext=["0%", "50%", "100%"], fixedrange=True, visible=bool(drawn),
    )  # fmt: skip
    note = {"xref": "paper", "yref": "paper", "showarrow": False, "font": {"size": 11, "color": look.muted}}
    title = f"<b>{name}</b> {_MEANING[name]}"
    figure["layout"]["annotations"].append(
        {**note, "text": title, "x": left, "y": top, "xanchor": "left", "yanchor": "bottom", "yshift": 3}
    )
    if not drawn:
        figure["layout"]["annotations"].append(
            {**note, "text": _why_none(scene, name), "x": sum(x_domain) / 2, "y": sum(y_domain) / 2}
        )


def _scale(drawn: list[Curve]) -> dict[str, Any]:
    """A logarithmic x where values spread far; it cannot show 0."""
    least = min((curve.at(0) for curve in drawn), default=0.0)
    most = max((curve.at(100) for curve in drawn), default=0.0)
    if least <= 0 or most <= LOG_FROM * least:
        return {"rangemode": "tozero"}
    return {"type": "log", "dtick": 1 if most <= 1e4 * least else 2, "exponentformat": "none"}


def _why_none(scene: Scene, name: str) -> str:
    if name in ("ITL", "TPOT") and scene.runs and not any(streams(run) for run in scene.runs):
        return "none: all tokens of a<br>request are delivered at once"
    return {"TTFT": "no first token in view", "ITL": "no two tokens in view"}.get(name, "no finished request in view")


def _lines(scene: Scene, index: int, place: int, name: str, curve: Curve, factor: float) -> list[dict[str, Any]]:
    """The curve, and marks at its p50 and p99."""
    number, color = "" if place == 0 else str(place + 1), scene.look.runs[index]
    label = plain(scene.label(index))
    told = f"p50 {seconds(curve.at(50))}, p99 {seconds(curve.at(99))}"
    known = f"{label}<br>{name} of {count(curve.values, _OF[name])}: {told}"
    common = {"type": "scatter", "xaxis": f"x{number}", "yaxis": f"y{number}", "name": label, "legendgroup": str(index)}
    marks = np.array([50.0, 99.0])
    places = np.searchsorted(curve.percent, marks)
    return [
        {**common, "mode": "lines", "x": typed(curve.value_s * factor), "y": typed(curve.percent),
         "showlegend": place == 0, "line": {"color": color, "width": 2, "dash": RUN_DASHES[index]},
         "hovertemplate": f"%{{y:.4~g}}% within %{{x:.4~g}}<br>{known}<extra></extra>"},
        {**common, "mode": "markers", "x": typed(curve.value_s[places] * factor), "y": typed(marks),
         "showlegend": False, "marker": {"color": color, "size": 6},
         "hovertemplate": f"p%{{y}} %{{x:.4~g}}<br>{known}<extra></extra>"},
    ]  # fmt: skip


def words(scene: Scene) -> str:
    """p50 and p99 of each run."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    parts = [
        f"{name} p50 {seconds(curve.at(50))}, p99 {seconds(curve.at(99))}"
        for name, curve in curves(window).items()
        if curve is not None
    ]
    first = count(int(in_view(window, "first_token_s").sum()), "request")
    ended = f"{int(in_view(window, 'finished_s').sum()):,} ended"
    told = "; ".join(parts) or "nothing was delivered"
    return f"{scene.label(index)}, {first} got a first token in view, {ended}: {told}."


def table(scene: Scene) -> pd.DataFrame:
    """The points of each curve."""
    frames = [
        pd.DataFrame({"run": scene.runs[index].name, "metric": name, **curve.columns()})
        for index, window in enumerate(scene.windows)
        for name, curve in curves(window).items()
        if curve is not None
    ]
    columns = ["run", "metric", "percent", "seconds"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


PANEL = Panel(
    key="latency",
    title="Latency",
    question="What share of first tokens, gaps and answers delivered in view took at most how long.",
    draw=draw,
    words=words,
    table=table,
    shares_x=False,
)
