"""Slot occupancy: seats with unfinished requests, seats held by rows that have ended, and all seats there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data.run import Run
from dashboard.data.window import Window, whole_span
from dashboard.look import Figure
from dashboard.numbers import percent
from dashboard.scene import Scene
from traces.metrics import step_weights

from .base import Panel
from .frame import Frame, hover_head, piece_texts, stack
from .rows import step_rows

Floats = npt.NDArray[np.float64]


def draw(scene: Scene) -> Figure:
    """Seats over x, stacked; of a piece of many steps the mean over time, and its fullest step as a line."""
    frame = Frame(scene, y="slots")
    if not any(len(window) for window in scene.windows):
        return frame.empty("No step ran in this part.")
    for row, window in enumerate(scene.windows):
        _fill(frame, row, window)
    frame.layout["hovermode"] = "x unified"
    return frame.figure()


def _fill(frame: Frame, row: int, window: Window) -> None:
    look, slots = frame.scene.look, window.run.slots_total
    hover_head(frame, row, window, piece_texts(window))
    unfinished, ended = window.level("running"), window.level(_ended(window))
    layers: list[dict[str, Any]] = [
        {"name": "unfinished requests", "color": look.kinds["decode"], "values": unfinished}
    ]
    if ended.any():
        layers.append({"name": "held by ended rows", "color": look.kinds["padding"], "values": ended, "hatched": True})
    stack(frame, row, window, layers, f"of {slots:,} slots")
    if not window.exact:
        frame.add(row, type="scatter", mode="lines", name="fullest step", x=window.outline.x.tolist(),
                  y=window.outline.y(window.most("slots_busy")).tolist(),
                  line={"shape": "hv", "width": 1, "color": look.ink},
                  hovertemplate="%{y:,} slots in the fullest step")  # fmt: skip
    frame.line(row, slots, "all slots")
    frame.yaxis(row, range=[0, slots * 1.08])
    told = (window.level_means, f"slot occupancy {percent(occupancy(window))}")
    frame.note("; ".join(filter(None, told)), row=row, right=True)


def _ended(window: Window) -> npt.NDArray[np.int32]:
    """Seats that rows hold although their request has ended, ``(steps,)``."""
    return np.asarray(window.values("slots_busy") - window.values("running"))


def occupancy(window: Window) -> float:
    """Slot occupancy of the part of a run in view: unfinished requests in seats / seats, over its time; nan: no time.

    Of a whole run it is `slot_occupancy` of `traces.metrics` (where the last step ends with the last request).
    """
    begin_s, end_s = _seconds_in_view(window)
    whole_s = (end_s - begin_s) * window.run.slots_total
    if whole_s <= 0:
        return float("nan")
    starts, ends = (np.clip(window.values(name), begin_s, end_s) for name in ("t_start_s", "t_end_s"))
    return float((step_weights(starts, ends) * window.values("running")).sum() / whole_s)


def _seconds_in_view(window: Window) -> tuple[float, float]:
    """When the view begins and ends in this run, on the clock of its steps."""
    run = window.run
    if window.axis == "time":
        first, last = whole_span(run, "time")
        return max(window.start, first) + run.origin_s, min(window.end, last) + run.origin_s
    if not window.num_steps:
        return 0.0, 0.0
    begin_s = _origin_of(run) if window.low == 0 else float(window.values("t_start_s")[0])
    return begin_s, float(window.values("t_end_s")[-1])


def _origin_of(run: Run) -> float:
    return min(run.origin_s, float(run.column("steps", "t_start_s")[0]))


def words(scene: Scene) -> str:
    """Occupancy of each run in view."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    ended = int((_ended(window) > 0).sum())
    held = f"; rows that have ended hold seats in {ended:,} of {window.num_steps:,} steps" if ended else ""
    share, slots = percent(occupancy(window)), window.run.slots_total
    return f"{scene.label(index)}: unfinished requests fill {share} of {slots:,} slots over time{held}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a step in view."""
    return step_rows(scene, ["step", "t_start_s", "t_end_s", "running", "slots_busy", "slots_total"])


PANEL = Panel(
    key="occupancy",
    title="Slot occupancy",
    question="How many seats serve somebody, and how many are held by rows that have already ended.",
    draw=draw,
    words=words,
    table=table,
)
