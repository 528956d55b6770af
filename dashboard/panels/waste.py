"""The waste ledger: of all rows computed, how many served somebody, and what else was spent or saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dashboard.data.window import Window
from dashboard.look import Figure, Look, padding_color
from dashboard.scene import Scene
from traces.metrics import step_weights
from traces.schema import PADDING_COLUMNS

from .base import Panel
from .frame import Frame, typed

ROW_PX, BAR_PX = 116, 32
_USEFUL = {"prefill": "prefill_tokens", "decode": "decode_tokens"}
_PARTS = {**_USEFUL, "recomputed": "recomputed_tokens",
          **{f"padding: {cause}": column for cause, column in PADDING_COLUMNS.items()}}  # fmt: skip
"""Part of the rows computed -> its column."""
_MEANING = {
    "prefill": "prompt tokens computed for the first time",
    "decode": "output tokens computed for the first time",
    "recomputed": "tokens computed again after a preemption",
    "padding: prompt": "rows that fill prompts up to the longest",
    "padding: finished-row": "rows of requests that have ended while their batch goes on",
    "padding: graph": "rows up to the next captured graph size",
    "padding: overrun": "rows planned before their request was known to have ended",
}


@dataclass(frozen=True)
class Ledger:
    """Totals over the steps of a run that are in view.

    Attributes:
        parts: rows by part, keys as in the figure.
        rows: all rows computed.
        padding_context: KV positions read or stored for padding only.
        cached_tokens: prefix-cache hits, not computed.
        padding_s, step_s: seconds that padding cost, and seconds of all steps (device and host).
        estimated: `padding_s` is an estimate.
        idle_slot_s, slot_s: slot-seconds without anyone seated, and all of them, from the first step's start to the
            last one's end.
    """

    parts: dict[str, int]
    rows: int
    padding_context: int
    cached_tokens: int
    padding_s: float
    step_s: float
    estimated: bool
    idle_slot_s: float
    slot_s: float

    @classmethod
    def of(cls, window: Window) -> Ledger:
        """Add up a window's steps."""
        taken_s, slot_s = _slot_seconds(window)
        return cls(
            parts={name: _sum(window, column) for name, column in _PARTS.items()},
            rows=_sum(window, "computed_tokens"),
            padding_context=_sum(window, "padding_context"),
            cached_tokens=_sum(window, "cached_tokens"),
            padding_s=float(window.values("padding_s").sum()),
            step_s=float(window.values("device_s").sum() + window.values("host_s").sum()),
            estimated=window.run.source != "simulated",
            idle_slot_s=max(0.0, slot_s - taken_s),
            slot_s=slot_s,
        )

    @property
    def wasted(self) -> int:
        """Rows computed that are neither a prompt's nor an output's first computation."""
        return self.rows - sum(self.parts[name] for name in _USEFUL)


def _sum(window: Window, column: str) -> int:
    return int(window.values(column).sum(dtype="int64"))


def _slot_seconds(window: Window) -> tuple[float, float]:
    """Slot-seconds with somebody seated, and all, of the time from the first step in view to the last."""
    if not window.num_steps:
        return 0.0, 0.0
    start, end = window.values("t_start_s"), window.values("t_end_s")
    taken = float(window.values("slots_busy").astype(np.float64) @ step_weights(start, end))
    return taken, float(end[-1] - start[0]) * window.run.slots_total


def draw(scene: Scene) -> Figure:
    """A bar of rows for each run, on one scale; below it what is counted in other units."""
    frame = Frame(scene, row_height=ROW_PX, shares_x=False, x="rows computed in the steps in view")
    ledgers = [Ledger.of(window) for window in scene.windows]
    if not any(ledger.rows for ledger in ledgers):
        return frame.empty("No step in view computes anything")
    for row, ledger in enumerate(ledgers):
        _bar(frame, row, ledger)
        _below(frame, row, ledger)
    frame.layout.update(barmode="stack", uniformtext={"mode": "hide", "minsize": 10})
    frame.layout["xaxis"].update(rangemode="tozero", fixedrange=True, showgrid=False)
    return frame.figure()


def _bar(frame: Frame, row: int, ledger: Ledger) -> None:
    look = frame.scene.look
    for name, rows in ledger.parts.items():
        if not rows:
            continue
        share = rows / ledger.rows
        frame.add(
            row, type="bar", orientation="h", name=name, x=typed([rows]), y=[ROW_PX - BAR_PX / 2], width=BAR_PX,
            marker=_marker(look, name), text=f"{share:.0%}" if share >= 0.005 else "", textposition="inside",
            insidetextanchor="middle", textangle=0, textfont={"size": 11, "color": _text_color(look, name)},
            hovertemplate=f"{rows:,} rows, {share:.2%} of {ledger.rows:,}<br>{_MEANING[name]}",
            legendrank=list(_PARTS).index(name),
        )  # fmt: skip
    frame.yaxis(row, range=[0, ROW_PX], showgrid=False, showticklabels=False, showline=False)


def _marker(look: Look, name: str) -> dict[str, Any]:
    kind, _, cause = name.partition(": ")
    if not cause:
        return {"color": look.kinds[kind], "line": {"width": 1, "color": look.card}}
    ink = padding_color(look, cause)
    pattern = {"shape": "/", "fgcolor": ink, "bgcolor": look.card, "size": 5, "solidity": 0.4}
    return {"color": look.card, "pattern": pattern, "line": {"width": 1, "color": ink}}


def _text_color(look: Look, name: str) -> str:
    if name.startswith("padding"):
        return look.ink
    return "#ffffff" if look.name == "light" and name != "prefill" else "#12171c"


def _below(frame: Frame, row: int, ledger: Ledger) -> None:
    top = frame.layout["yaxis" if row == 0 else f"yaxis{row + 1}"]["domain"][1]
    frame.layout["annotations"].append(
        {"text": "<br>".join(_besides(ledger)), "xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left",
         "yanchor": "top", "align": "left", "showarrow": False, "yshift": -BAR_PX - 4,
         "font": {"size": 12, "color": frame.scene.look.muted}}
    )  # fmt: skip


def _besides(ledger: Ledger) -> list[str]:
    how = "estimate" if ledger.estimated else "its price by the cost model"
    idle = f"{ledger.idle_slot_s / ledger.slot_s:.1%} of slot time" if ledger.slot_s else "no slot time"
    return [
        f"Padding takes {_seconds(ledger.padding_s)} of {_seconds(ledger.step_s)} of steps ({how})",
        f"Empty slots: {idle} ({_seconds(ledger.idle_slot_s)}, all slots added)",
        f"KV positions handled for padding only: {ledger.padding_context:,}",
        f"Saved by the prefix cache: {ledger.cached_tokens:,} tokens",
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"


def words(scene: Scene) -> str:
    """How much of each run's work served nobody."""
    return " ".join(_sentence(scene, index, Ledger.of(window)) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, ledger: Ledger) -> str:
    if not ledger.rows:
        return f"{scene.label(index)}: no step in view computes anything."
    found = ", ".join(f"{rows:,} {name}" for name, rows in ledger.parts.items() if rows)
    besides = ". ".join(_besides(ledger))
    share = ledger.wasted / ledger.rows
    return f"{scene.label(index)}: {ledger.rows:,} rows computed, {share:.1%} of them wasted ({found}). {besides}."


def table(scene: Scene) -> pd.DataFrame:
    """One row an entry of the ledger: run, entry, amount, unit, what it is."""
    rows: list[tuple[str, str, float, str, str]] = []
    for index, window in enumerate(scene.windows):
        rows += [(scene.runs[index].name, *entry) for entry in _entries(Ledger.of(window))]
    return pd.DataFrame(rows, columns=["run", "entry", "amount", "unit", "meaning"])


def _entries(ledger: Ledger) -> list[tuple[str, float, str, str]]:
    how = "estimate: device seconds x share of padded rows" if ledger.estimated else "cost less cost without padding"
    return [
        ("computed", ledger.rows, "rows", "rows run through the dense layers"),
        *((name, rows, "rows", _MEANING[name]) for name, rows in ledger.parts.items()),
        ("padded context", ledger.padding_context, "KV positions", "read or stored for padding only"),
        ("cached", ledger.cached_tokens, "tokens", "prefix-cache hits, not computed"),
        ("padding time", ledger.padding_s, "s", how),
        ("step time", ledger.step_s, "s", "device and host seconds of all steps"),
        ("empty slots", ledger.idle_slot_s, "slot-seconds", "nobody seated, first step's start to last one's end"),
        ("all slots", ledger.slot_s, "slot-seconds", "first step's start to last one's end"),
    ]


PANEL = Panel(
    key="waste",
    title="Waste ledger",
    question="Of all the work done, how much served somebody, and where did the rest go?",
    draw=draw,
    words=words,
    table=table,
    shares_x=False,
)
