"""ITL spikes: the longest gap that each step ended, and what that step, or those before it, did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from tsdownsample import MinMaxDownsampler

from dashboard.data.requests import name_of, once, preemptions_of, streams
from dashboard.data.run import Run
from dashboard.data.window import Window
from dashboard.look import Figure
from dashboard.numbers import seconds, unit_for
from dashboard.scene import Scene
from traces.metrics import step_weights
from traces.run_table import count
from traces.schema import PADDING_COLUMNS

from .base import Panel
from .frame import Frame, plain, typed
from .latency import rows_of_gaps

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_POINTS = 600
"""Points over all runs; the largest and smallest of each part of x stay."""
TOLD = 5
"""The largest that are marked and told in words."""
LABEL_WIDTH, LABEL_HEIGHT = 0.3, 0.14
"""What the label of a spike takes of its axes at least; where there is no room the hover tells."""
ROUNDING_S = 1e-9
"""A gap is the difference of two ends of steps, which rounds."""
HEADROOM = 1.22
"""Room above the largest for its label."""
IDLE_SHARE = 0.5
"""From this share of a gap in which no step ran, that is its cause."""


@dataclass(frozen=True)
class Spikes:
    """The longest gap that each step in view ended, ``(steps with deliveries,)``.

    Attributes:
        row: row of the step among all steps of the run.
        gap_s: the gap, seconds.
    """

    row: Ints
    gap_s: Floats

    def __len__(self) -> int:
        return len(self.row)

    def where(self, keep: npt.NDArray[np.integer[Any]]) -> Spikes:
        """Some of them, by place."""
        return Spikes(self.row[keep], self.gap_s[keep])

    def largest(self, most: int) -> Spikes:
        """The largest, largest first."""
        if len(self) > most:
            return self.where(np.argpartition(-self.gap_s, most)[:most]).largest(most)
        return self.where(np.lexsort((self.row, -self.gap_s)))


def spikes_in_view(window: Window) -> Spikes:
    """The longest gap of each step in view that delivered to somebody a second time."""
    low, high = rows_of_gaps(window)
    steps = window.run.column("gaps", "step")[low:high]
    if not len(steps):
        return Spikes(np.empty(0, dtype=np.int64), np.empty(0))
    firsts = np.flatnonzero(np.append(True, steps[1:] != steps[:-1]))
    gap_s = np.maximum.reduceat(window.run.column("gaps", "gap_s")[low:high], firsts)
    return Spikes(window.low + _places(window.values("step"), steps[firsts]), gap_s)


def _places(numbers: Ints, wanted: Ints) -> Ints:
    """Where wanted numbers stand among rising ones; told by subtraction where none is missing."""
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return np.asarray(wanted - numbers[0])
    return np.asarray(np.searchsorted(numbers, wanted))


def _middle(window: Window, row: Ints) -> Floats:
    """Where a step stands in x: its middle, so that a click there finds it."""
    run = window.run
    if window.axis == "step":
        return np.asarray(run.column("steps", "step")[row] + 0.5)
    return np.asarray((run.column("steps", "t_start_s")[row] + run.column("steps", "t_end_s")[row]) / 2 - run.origin_s)


@dataclass(frozen=True)
class Cause:
    """Why a gap was as long as it was: one word, and the sentence."""

    word: str
    text: str


def causes(run: Run, spikes: Spikes) -> list[Cause]:
    """What happened between the delivery before and this one, read off the steps between.

    In this order: the request had lost its seat; no step ran; the request had no row in the steps between; else what
    most rows of the one step were for.
    """
    ends = run.column("steps", "t_end_s")
    before = np.searchsorted(ends, ends[spikes.row] - spikes.gap_s + ROUNDING_S) - 1
    before = np.minimum(before, spikes.row - 1)
    idle_s = spikes.gap_s - _sums(once(run, "seconds of steps", _step_seconds), before, spikes.row)
    parts = {name: _rows_for(run, columns, before, spikes.row) for name, columns in _ROWS.items()}
    told = zip(
        *(values.tolist() for values in (spikes.row, before, spikes.gap_s, idle_s, *parts.values())), strict=True
    )
    return [
        _cause(run, row, since, gap_s, idle, dict(zip(parts, rows, strict=True)))
        for row, since, gap_s, idle, *rows in told
    ]


_ROWS: dict[str, tuple[str, ...]] = {
    "prompts": ("prefill_tokens",),
    "recompute": ("recomputed_tokens",),
    "decode": ("decode_tokens",),
    "padding": tuple(PADDING_COLUMNS.values()),
}


def _step_seconds(run: Run) -> Floats:
    return step_weights(run.column("steps", "t_start_s"), run.column("steps", "t_end_s"))


def _rows_for(run: Run, columns: tuple[str, ...], before: Ints, row: Ints) -> Ints:
    """Rows computed for one purpose between two deliveries, ``(spikes,)``."""
    sums = np.stack([_sums(run.column("steps", name), before, row) for name in columns])
    return np.asarray(sums.sum(axis=0), dtype=np.int64)


def _sums(column: npt.NDArray[Any], before: Ints, row: Ints) -> Floats:
    """Sums of a column over the rows after `before`, up to `row`, ``(spikes,)``."""
    sums: Floats = column[row].astype(np.float64)
    for place in np.flatnonzero(row - before > 1).tolist():  # few
        sums[place] = column[before[place] + 1 : row[place] + 1].sum()
    return sums


def _cause(run: Run, row: int, before: int, gap_s: float, idle_s: float, parts: dict[str, int]) -> Cause:
    """Of a gap between the ends of the steps in rows `before` and `row`; parts: rows computed between, by purpose."""
    lost = _loss_behind(run, row, before)
    if lost is not None:
        return lost
    if idle_s > IDLE_SHARE * gap_s:
        return Cause("no step ran", f"no step ran for {seconds(idle_s)}")
    kind = max(parts, key=lambda name: parts[name])
    if row - before > 1:
        told = [count(parts[name], noun) for name, noun in _NOUNS.items() if parts[name]]
        return Cause(kind, f"{row - before:,} steps passed, which computed {', '.join(told)}")
    return Cause(kind, _SAID[kind].format(count(parts[kind], _NOUNS[kind]), count(parts["decode"], "new one")))


_SAID = {
    "prompts": "computed {0} besides {1}",
    "recompute": "computed {0} again, after a preemption",
    "padding": "computed {0}",
    "decode": "computed {0}, and little else",
}
_NOUNS = {"prompts": "prompt token", "recompute": "dropped token", "padding": "padded row", "decode": "new token"}


def _loss_behind(run: Run, row: int, before: int) -> Cause | None:
    """The preemption whose victim was ready again in this step, and had lost its seat since the step before the gap."""
    steps, lost = run.column("steps", "step"), preemptions_of(run)
    places = once(run, "preemptions by return", _by_return).get(int(steps[row]), ())
    since = int(steps[before]) if before >= 0 else -1
    for place in places:
        if int(lost.step[place]) > since:
            name = plain(name_of(run.names(), int(lost.request[place]), 30))
            out = count(int(lost.out_steps[place]), "step")
            text = f"request {name} had lost its seat in step {int(lost.step[place]):,}, for {out}"
            return Cause("preempted", f"{text}, then {count(int(lost.again_tokens[place]), 'token')} again")
    return None


def _by_return(run: Run) -> dict[int, list[int]]:
    """Step in which a victim was ready again -> places among the run's preemptions."""
    found: dict[int, list[int]] = {}
    for place, step in enumerate(preemptions_of(run).ready_step.tolist()):
        if step >= 0:
            found.setdefault(step, []).append(place)
    return found


def draw(scene: Scene) -> Figure:
    """A point for each step: the longest gap it ended; the largest five ringed and told."""
    found = [spikes_in_view(window) for window in scene.windows]
    unit, factor = unit_for(max((float(spikes.gap_s.max(initial=0.0)) for spikes in found), default=0.0))
    frame = Frame(scene, y=f"longest gap, {unit}")
    if not any(len(spikes) for spikes in found):
        return frame.empty(_why_none(scene))
    for row, (window, spikes) in enumerate(zip(scene.windows, found, strict=True)):
        _points(frame, row, window, spikes, factor)
        if not len(spikes):
            frame.yaxis(row, range=[0, 1], showticklabels=False)
            frame.note(_why_none_of(window.run), row=row, right=True)
    return frame.figure()


def _points(frame: Frame, row: int, window: Window, spikes: Spikes, factor: float) -> None:
    look, most = frame.scene.look, MOST_POINTS // len(frame.scene.runs) // 2 * 2
    drawn = spikes
    if len(spikes) > most:
        downsampler = MinMaxDownsampler()
        drawn = spikes.where(downsampler.downsample(np.ascontiguousarray(spikes.gap_s), n_out=most))
        frame.note(f"{len(drawn):,} of {len(spikes):,} steps drawn, extremes kept", row=row, right=True)
    _markers(frame, row, window, drawn, factor, {"size": 4, "color": look.runs[row], "opacity": 0.75})
    top = spikes.largest(TOLD)
    ring = {"size": 11, "symbol": "circle-open", "color": look.kinds["preempted"], "line": {"width": 2}}
    told = _markers(frame, row, window, top, factor, ring)
    _labels(frame, row, top, _middle(window, top.row), told, factor)


def _markers(
    frame: Frame, row: int, window: Window, spikes: Spikes, factor: float, marker: dict[str, object]
) -> list[Cause]:
    told = causes(window.run, spikes)
    steps = window.run.column("steps", "step")[spikes.row]
    frame.add(
        row, type="scatter", mode="markers", name="longest gap", showlegend=False, x=typed(_middle(window, spikes.row)),
        y=typed(spikes.gap_s * factor), customdata=typed(steps), marker=marker, cliponaxis=False,
        text=[_sentence(*parts) for parts in zip(steps.tolist(), spikes.gap_s.tolist(), told, strict=True)],
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    return told


def _sentence(step: int, gap_s: float, cause: Cause) -> str:
    return f"gap {seconds(gap_s)}, step {step:,}:<br>{cause.text}"


def _labels(frame: Frame, row: int, top: Spikes, x: Floats, told: list[Cause], factor: float) -> None:
    """Name the largest above it, the others where there is room beside them."""
    if not len(top):
        return
    start, end = frame.scene.span
    highest = float(top.gap_s.max(initial=0.0)) or 1.0
    places = np.stack([(x - start) / (end - start), top.gap_s / highest], axis=1)
    frame.yaxis(row, range=[0, highest * factor * HEADROOM])
    for place, side in {0: _above(float(places[0, 0])), **_sides(places)}.items():
        frame.layout["annotations"].append(
            {"text": f"{seconds(float(top.gap_s[place]))}, {told[place].word}", "showarrow": False,
             "x": float(x[place]), "y": float(top.gap_s[place] * factor), "xref": "x", **side,
             "yref": "y" if row == 0 else f"y{row + 1}", "font": {"size": 11, "color": frame.scene.look.ink}}
        )  # fmt: skip


_BESIDE = {True: {"xanchor": "right", "xshift": -9}, False: {"xanchor": "left", "xshift": 9}}


def _above(x: float) -> dict[str, Any]:
    """Where the label of the largest stands: nothing is as high."""
    anchor = "left" if x < LABEL_WIDTH / 2 else "right" if x > 1 - LABEL_WIDTH / 2 else "center"
    return {"xanchor": anchor, "yanchor": "bottom", "yshift": 5}


def _sides(places: Floats) -> dict[int, dict[str, Any]]:
    """Where the labels of other marks than the first have room.

    Args:
        places: x and y of each mark as shares of the axes, ``(marks, 2)``, the most important first.
    """
    chosen: dict[int, dict[str, Any]] = {}
    taken = [(float(places[0, 0]) - LABEL_WIDTH / 2, 1.0 + LABEL_HEIGHT / 2)]
    for place, (x, y) in list(enumerate(places.tolist()))[1:]:
        others = np.delete(places, place, axis=0)
        for left in (x > 0.5, x <= 0.5):
            edge = x - LABEL_WIDTH if left else x
            level = np.abs(others[:, 1] - y) < LABEL_HEIGHT
            hidden = level & (others[:, 0] > edge) & (others[:, 0] < edge + LABEL_WIDTH)
            free = not any(abs(edge - x0) < LABEL_WIDTH and abs(y - y0) < LABEL_HEIGHT for x0, y0 in taken)
            if free and not hidden.any() and 0 <= edge <= 1 - LABEL_WIDTH:
                chosen[place] = _BESIDE[left]
                taken.append((edge, y))
                break
    return chosen


def _why_none(scene: Scene) -> str:
    return _why_none_of(scene.runs[0]) if len(scene.runs) == 1 else "No step in this part delivered a second token."


def _why_none_of(run: Run) -> str:
    if not streams(run):
        return "This run delivers all tokens of a request at once: there are no gaps."
    return "No step in this part delivered a second token."


def words(scene: Scene) -> str:
    """The longest gaps of each run and their causes."""
    return " ".join(_words(scene, index, window) for index, window in enumerate(scene.windows))


def _words(scene: Scene, index: int, window: Window) -> str:
    top = spikes_in_view(window).largest(TOLD)
    if not len(top):
        return f"{scene.label(index)}: {_why_none_of(window.run)}"
    steps = window.run.column("steps", "step")[top.row].tolist()
    told = [
        f"{seconds(gap_s)} in step {step:,} ({cause.text})"
        for step, gap_s, cause in zip(steps, top.gap_s.tolist(), causes(window.run, top), strict=True)
    ]
    return f"{scene.label(index)}: longest gaps {'; '.join(told)}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a step in view that ended a gap, with the cause of its longest one."""
    frames = [_frame(scene.runs[index], spikes_in_view(window)) for index, window in enumerate(scene.windows)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run", "step", "gap_s", "cause"])


def _frame(run: Run, spikes: Spikes) -> pd.DataFrame:
    columns = {"step": run.column("steps", "step")[spikes.row], "gap_s": spikes.gap_s}
    return pd.DataFrame({"run": run.name, **columns, "cause": [cause.text for cause in causes(run, spikes)]})


PANEL = Panel(
    key="spikes",
    title="ITL spikes",
    question="Which steps made someone wait long for the next token, and what those steps were busy with.",
    draw=draw,
    words=words,
    table=table,
)
