"""Tokens per step: what each step computes, useful and not, under the token budget."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dashboard.data.window import Window
from dashboard.look import Figure, padding_color
from dashboard.scene import Scene
from traces.schema import PADDING_COLUMNS

from .base import Panel
from .frame import Frame, hover_head, piece_texts, stack, typed
from .rows import step_rows

_USEFUL = {"decode": "decode_tokens", "prefill": "prefill_tokens", "recomputed": "recomputed_tokens"}
MOST_APART = 3
"""A largest step that is so many times the largest mean gets an axis of its own, or nobody sees the means."""


def draw(scene: Scene) -> Figure:
    """Stacked tokens of each step; with many steps the mean of each piece, and the largest step of it as a line."""
    frame = Frame(scene, y="tokens")
    for row, window in enumerate(scene.windows):
        _fill(frame, row, window)
    frame.layout["hovermode"] = "x unified"
    return frame.figure()


def _fill(frame: Frame, row: int, window: Window) -> None:
    look = frame.scene.look
    hover_head(frame, row, window, piece_texts(window))
    layers: list[dict[str, Any]] = [
        {"name": kind, "color": look.kinds[kind], "values": window.mean(column)} for kind, column in _USEFUL.items()
    ]
    for cause, column in PADDING_COLUMNS.items():
        if window.values(column).any():
            color = padding_color(look, cause)
            layers.append({"name": f"padding: {cause}", "color": color, "values": window.mean(column), "hatched": True})
    stack(frame, row, window, layers, "a step")
    right: dict[str, Any] = {}
    if not window.exact:
        peaks, means = window.most("computed_tokens"), window.mean("computed_tokens")
        if peaks.max(initial=0.0) > MOST_APART * means.max(initial=0.0):
            right = {"yaxis": frame.right_axis(row, "largest step")}
        outline = window.outline
        frame.add(row, type="scatter", mode="lines", name="largest step", x=typed(outline.x),
                  y=typed(outline.y(peaks)), hovertemplate="%{y:,} in the largest step",
                  line={"shape": "hv", "width": 1, "color": look.muted}, **right)  # fmt: skip
        frame.note(f"mean of a step; {window.grain}", row=row, right=True)
    budget = window.run.meta.get("config", {}).get("max_num_batched_tokens")
    most = float(window.most("computed_tokens").max(initial=0.0))
    if isinstance(budget, int) and most > budget / 4:
        frame.line(row, budget, f"token budget {budget:,}", **right)


def words(scene: Scene) -> str:
    """Totals of each run in view."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    computed = int(window.values("computed_tokens").sum())
    useful = sum(int(window.values(column).sum()) for column in _USEFUL.values())
    share = f", {1 - useful / computed:.1%} of them padding" if computed else ""
    return f"{scene.label(index)}: {window.num_steps:,} steps compute {computed:,} tokens{share}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a step in view."""
    columns = ["step", "t_start_s", "t_end_s", *_USEFUL.values(), *PADDING_COLUMNS.values(), "computed_tokens"]
    return step_rows(scene, columns)


PANEL = Panel(
    key="tokens",
    title="Tokens per step",
    question="What each step computes: prompts, new tokens, work done twice, and padding by its cause.",
    draw=draw,
    words=words,
    table=table,
)
