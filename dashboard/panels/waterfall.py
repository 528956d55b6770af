"""The request waterfall: a line for each request, from its arrival through queue, prompt and tokens to its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dashboard.data.requests import Floats, Ints, name_of, times_of, x_of
from dashboard.data.run import Run
from dashboard.data.spans import Spans, spans_in_view
from dashboard.data.window import Window
from dashboard.look import Figure, hatched
from dashboard.numbers import seconds
from dashboard.scene import Scene
from traces.run_table import count
from traces.schema import FINISH_REASONS, SPAN_KINDS

from .base import Panel
from .frame import Frame, plain, typed

MOST_REQUESTS = 120
"""Lines over all runs; of more requests the slowest are drawn."""
LEAST_REQUESTS = 30
"""Lines of each run at least."""
MOST_BARS = 1500
MOST_LABELS = 30
LABEL = 7
"""Characters that fit beside the axis; the end of a longer name."""
LINE_PX = {30: 14, 60: 9, 120: 5}
"""Up to so many lines -> pixels for each."""
LEAST_PX = 140
LEAST_SHARE = 0.002
"""First tokens are marked where the wait for them takes so much of the width."""


def draw(scene: Scene) -> Figure:
    """Bars of spans, a line a request, by arrival; of too many requests the slowest."""
    most = max(LEAST_REQUESTS, MOST_REQUESTS // max(1, len(scene.runs)))
    picked = [_picked(window, most) for window in scene.windows]
    lines = max((len(requests) for requests, _, _ in picked), default=0)
    frame = Frame(scene, row_height=max(LEAST_PX, _px(lines) * lines), y="request")
    if not lines:
        return frame.empty("No request touches this part.")
    for row, (requests, touching, spans) in enumerate(picked):
        window = scene.windows[row]
        _bars(frame, row, window.run, requests, spans)
        _first_tokens(frame, row, window, requests)
        _labels(frame, row, window.run, requests)
        if touching > len(requests):
            note = f"the {len(requests):,} slowest of {count(touching, 'request')} in view, arrival to end"
            frame.note(note, row=row, right=True)
    frame.layout["barmode"] = "overlay"
    return frame.figure()


def _px(lines: int) -> int:
    return next((px for most, px in LINE_PX.items() if lines <= most), min(LINE_PX.values()))


def _picked(window: Window, most: int) -> tuple[Ints, int, Spans]:
    """The requests to draw, by arrival; how many touch the view; and the spans of those drawn."""
    spans = spans_in_view(window)
    touching = _requests_of(spans)
    slowest = touching[np.argsort(-_lasting_s(window.run, touching), kind="stable")][:most]
    bars = np.bincount(np.searchsorted(touching, spans.request), minlength=len(touching))
    drawn = np.cumsum(bars[np.searchsorted(touching, slowest)]) <= MOST_BARS
    drawn[:1] = True
    requests = np.sort(slowest[drawn])
    return requests, len(touching), spans.where(np.isin(spans.request, requests))


def _requests_of(spans: Spans) -> Ints:
    """Whose they are, each once; spans are ordered by request."""
    return np.asarray(spans.request[np.append(True, spans.request[1:] != spans.request[:-1])[: len(spans)]])


def _lasting_s(run: Run, requests: Ints) -> Floats:
    """Arrival to end, or to the end of the trace, ``(requests,)`` in seconds."""
    ends = run.column("steps", "t_end_s")
    last_s = float(ends[-1]) if len(ends) else 0.0
    finished = _values(run, "finished_s", requests, np.nan)
    arrived = _values(run, "arrival_s", requests, last_s)
    return np.asarray(np.where(np.isnan(finished), last_s, finished) - arrived)


def _values(run: Run, name: str, requests: Ints, missing: float) -> npt.NDArray[Any]:
    """A column of `requests` for some of them; `missing` for those that the table does not hold (yet)."""
    row = _rows(run, requests)
    column = run.column("requests", name)
    return np.where(row >= 0, column[row], missing) if len(column) else np.full(len(requests), missing)


def _rows(run: Run, requests: Ints) -> Ints:
    """Row of each request in the table, which is ordered by number; -1: it has none."""
    known = run.column("requests", "request")
    if not len(known):
        return np.full(len(requests), -1)
    row = np.minimum(np.searchsorted(known, requests), len(known) - 1)
    return np.where(known[row] == requests, row, -1)


def _bars(frame: Frame, row: int, run: Run, requests: Ints, spans: Spans) -> None:
    about = _stories(run, requests)
    line = np.searchsorted(requests, spans.request)
    for kind, name in enumerate(SPAN_KINDS):
        part = spans.kind == kind
        if not part.any():
            continue
        chosen = spans.where(part)
        frame.add(
            row, type="bar", orientation="h", name=name, y=typed(line[part]), base=typed(chosen.left), width=0.8,
            x=typed(chosen.right - chosen.left), hovertemplate="%{customdata}<extra></extra>",
            marker=_marker(frame, name),
            customdata=_texts(chosen, name, [about[place] for place in line[part].tolist()]),
        )  # fmt: skip


def _marker(frame: Frame, name: str) -> dict[str, Any]:
    look = frame.scene.look
    if name == "padding":
        return {"color": look.card, "pattern": hatched(look), "line": {"width": 0.5, "color": look.kinds["padding"]}}
    return {
        "color": look.kinds[name],
        "line": {"width": 0.8, "color": look.kinds[name]},
    }  # seen when shorter than a pixel


def _texts(spans: Spans, kind: str, about: list[str]) -> list[str]:
    columns = (spans.first_step, spans.last_step, spans.tokens)
    return [
        f"{story}<br>{kind}{_during(first, last)}" + (f", {count(tokens, 'token')}" if tokens else "")
        for story, first, last, tokens in zip(about, *(values.tolist() for values in columns), strict=True)
    ]


def _during(first: int, last: int) -> str:
    if last < first:
        return ", less than a step"
    return f" in step {first:,}" if last == first else f" in steps {first:,} to {last:,}"


def _stories(run: Run, requests: Ints) -> list[str]:
    """What the hover tells of each request."""
    names, times, rows = run.names(), times_of(run), _rows(run, requests)
    numbers = zip(requests.tolist(), rows.tolist(), strict=True)
    return [_story(run, times, name_of(names, request), row) for request, row in numbers]


def _story(run: Run, times: Any, name: str, row: int) -> str:
    if row < 0:
        return f"request {plain(name)}"
    lost = int(run.column("requests", "preemptions")[row])
    prompt, output = int(times.prompt_tokens[row]), int(times.output_tokens[row])
    return (
        f"request {plain(name)}: prompt {count(prompt, 'token')}, output {output:,}"
        f"<br>queue {seconds(float(times.queue_s[row]))}, TTFT {seconds(float(times.ttft_s[row]))}, "
        f"E2E {seconds(float(times.e2e_s[row]))}" + (f", {count(lost, 'preemption')}" if lost else "")
    )


def _first_tokens(frame: Frame, row: int, window: Window, requests: Ints) -> None:
    x = x_of(window.run, window.axis, _values(window.run, "first_token_s", requests, np.nan))
    known = np.flatnonzero((x >= window.start) & (x <= window.end))
    arrived = x_of(window.run, window.axis, _values(window.run, "arrival_s", requests, np.nan))
    wait = float(np.median((x - arrived)[known])) if len(known) else 0.0
    if len(requests) > MOST_LABELS and wait < LEAST_SHARE * (window.end - window.start):
        return  # the marks would hide the bars
    frame.add(
        row, type="scatter", mode="markers", name="first token", x=typed(x[known]), y=typed(known), hoverinfo="skip",
        marker={"symbol": "line-ns-open", "size": 6 if len(requests) > 60 else 9,
                "line": {"width": 2, "color": frame.scene.look.ink}, "color": frame.scene.look.ink},
    )  # fmt: skip


def _labels(frame: Frame, row: int, run: Run, requests: Ints) -> None:
    names, lines = run.names(), len(requests)
    shown = range(lines) if lines <= MOST_LABELS else range(0)
    frame.yaxis(
        row, range=[max(lines, 1) - 0.5, -0.5], rangemode="normal", showgrid=False, tickvals=list(shown),
        ticktext=[plain(name_of(names, int(requests[line]), LABEL)) for line in shown],
    )  # fmt: skip


def words(scene: Scene) -> str:
    """How many requests, and the slowest of each run."""
    return " ".join(_sentence(scene, index, window) for index, window in enumerate(scene.windows))


def _sentence(scene: Scene, index: int, window: Window) -> str:
    touching = _requests_of(spans_in_view(window))
    if not len(touching):
        return f"{scene.label(index)}: no request touches this part."
    lasting = _lasting_s(window.run, touching)
    slowest = int(lasting.argmax())
    name = name_of(window.run.names(), int(touching[slowest]))
    story = f"the slowest is {name}, {seconds(float(lasting[slowest]))} from arrival to end"
    return f"{scene.label(index)}: {count(len(touching), 'request')} in view; {story}."


def table(scene: Scene) -> pd.DataFrame:
    """One row a request that touches the view."""
    frames = [_frame(window) for window in scene.windows]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


_TIMES = ("arrival_s", "scheduled_s", "first_token_s", "finished_s")
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")


def _frame(window: Window) -> pd.DataFrame:
    run, names = window.run, window.run.names()
    touching = _requests_of(spans_in_view(window))
    reasons = _values(run, "finish_reason", touching, 0).astype(int).tolist()
    return pd.DataFrame(
        {
            "run": run.name,
            "request": touching,
            "name": [name_of(names, request, 1 << 20) for request in touching.tolist()],
            **{name: _values(run, name, touching, np.nan) for name in (*_TIMES, *_COUNTS)},
            "finish_reason": [FINISH_REASONS[reason] for reason in reasons],
        }
    )


PANEL = Panel(
    key="waterfall",
    title="Requests",
    question="What each request waited for, from its arrival through queue, prompt and tokens to its end.",
    draw=draw,
    words=words,
    table=table,
)
