"""The queue: how many wait, and why the first of them does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dashboard.data.window import Window
from dashboard.look import Figure
from dashboard.numbers import seconds
from dashboard.scene import Scene
from scheduler.plan import WAIT_REASONS
from traces.metrics import step_weights

from .base import Panel
from .frame import Frame, hover_head, piece_texts, stack, typed
from .rows import step_rows

_NAMES = {
    "none": "nothing",
    "seqs": "a slot",
    "tokens": "token budget",
    "blocks": "KV blocks",
    "batch-closed": "the next batch",
}
"""Why the head of the queue waits -> for what, in words."""


def draw(scene: Scene) -> Figure:
    """Waiting requests by the reason of the first; with many steps the mean of each piece, and the most as a line."""
    frame = Frame(scene, y="requests")
    for row, window in enumerate(scene.windows):
        _fill(frame, row, window)
    frame.layout["hovermode"] = "x unified"
    return frame.figure()


def _fill(frame: Frame, row: int, window: Window) -> None:
    hover_head(frame, row, window, piece_texts(window))
    waiting, reason = window.values("waiting"), window.values("wait_reason")
    colors = frame.scene.look.kinds
    layers = []
    for code, name in enumerate(WAIT_REASONS):
        part = waiting * (reason == code)
        if part.any():
            layers.append({"name": f"wait for {_NAMES[name]}", "color": colors[name], "values": window.level(part)})
    stack(frame, row, window, layers, "requests")
    _lines(frame, row, window)
    frame.line(row, window.run.slots_total, f"{window.run.slots_total:,} slots")


def _lines(frame: Frame, row: int, window: Window) -> None:
    look, outline = frame.scene.look, window.outline
    x = typed(outline.x)
    if not window.exact:
        frame.add(row, type="scatter", mode="lines", name="most that wait", x=x, hovertemplate="%{y:,}",
                  y=typed(outline.y(window.most("waiting")).astype(np.float32)),
                  line={"shape": "hv", "width": 1, "color": look.ink})  # fmt: skip
        frame.note(window.level_means, row=row, right=True)
    frame.add(row, type="scatter", mode="lines", name="running" if window.exact else "most that run", x=x,
              y=typed(outline.y(window.most("running")).astype(np.float32)), hovertemplate="%{y:,}",
              line={"shape": "hv", "width": 1.5, "color": look.accent})  # fmt: skip


def words(scene: Scene) -> str:
    """How long a queue stood, and for what."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    waiting, reason = window.values("waiting"), window.values("wait_reason")
    if not waiting.any():
        return f"{scene.label(index)}: nobody waits after a step is planned."
    waited = step_weights(window.values("t_start_s"), window.values("t_end_s")) * (waiting > 0)
    codes = np.where((reason >= 0) & (reason < len(WAIT_REASONS)), reason, len(WAIT_REASONS))
    held = np.bincount(codes, weights=waited, minlength=len(WAIT_REASONS)).tolist()
    parts = [f"{_NAMES[name]} {seconds(held[code])}" for code, name in enumerate(WAIT_REASONS) if held[code]]
    most = f"{scene.label(index)}: up to {int(waiting.max()):,} requests wait."
    return f"{most} The first of them waits for {', '.join(parts)}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a step in view."""
    names = ["step", "t_start_s", "t_end_s", "waiting", "running", "slots_busy", "slots_total"]
    return step_rows(scene, names, _reasons)


def _reasons(window: Window) -> dict[str, Any]:
    return {"wait_reason": np.take(WAIT_REASONS, window.values("wait_reason"), mode="clip")}


PANEL = Panel(
    key="queue",
    title="Queue",
    question="How many wait, and what the first of them waits for.",
    draw=draw,
    words=words,
    table=table,
)
