"""Live: a running engine, step by step; or any server's metrics, and what they cannot tell."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.board.layout import board
from dashboard.data.live_keys import Recent, live_key
from dashboard.data.window import whole_span
from dashboard.live.engine_feed import EngineFeed
from dashboard.live.live_run import LiveRun
from dashboard.live.prometheus import MetricsFeed
from dashboard.live.state import FeedState
from dashboard.metrics_view import metrics_view
from dashboard.parts.aria import aria
from dashboard.services import Services
from dashboard.view import View
from scheduler.errors import UserError

PATH = "/live"
TITLE = "Live"
TICK_MS = 400
"""Between two looks: figures change at least twice a second."""
PANELS = ("slots", "tokens", "queue", "kv", "occupancy", "waste", "spikes", "latency")
SPANS = {"5": "last 5 s", "20": "last 20 s", "60": "last minute", "300": "last 5 minutes", "all": "all held"}
DEFAULT_SPAN = "20"


def layout(services: Services, **query: Any) -> Any:
    """The source's address, how it fares, and the board or the metrics of it."""
    url = str(query.get("url") or services.engine_url or "")
    return dmc.Stack(
        [
            html.Div(
                [
                    html.H1(TITLE),
                    dmc.TextInput(id="live-url", value=url, placeholder="http://127.0.0.1:8000", className="live-url",
                                  **aria(label="Address of the server")),
                    dmc.Button("Watch", id="live-attach"),
                ],
                className="page-head",
            ),
            dcc.Store(id="live-source", data=url),
            dcc.Interval(id="live-tick", interval=TICK_MS),
            html.Div(id="live-state", className="live-state", **aria(live="polite")),
            html.Div(_source(services, url, query), id="live-body"),
        ],
        gap="md",
    )  # fmt: skip


def _source(services: Services, url: str, query: Mapping[str, Any]) -> Any:
    """What is shown of a source; a hint where there is none, a sentence where it cannot be watched."""
    if not url:
        return _hint()
    try:
        feed = _feed(services, url)
    except UserError as error:
        return dmc.Alert(str(error), color="red", id="live-refused")
    if isinstance(feed, MetricsFeed):
        return html.Div(id="live-metrics")
    key = live_key(feed.url)
    services.catalog.add_live(key, Recent(partial(_snapshot, services, feed.url)))
    view = View.of_query({**query, "run": key})
    following = view.start is None and view.end is None
    controls = [
        dmc.Button("Pause" if following else "Follow", id="live-follow", size="xs", w=84),
        dmc.Select(id="live-span", size="xs", w=140, allowDeselect=False, value=_span_of(query),
                   data=[{"value": value, "label": text} for value, text in SPANS.items()],
                   **aria(label="How much to show")),
    ]  # fmt: skip
    return [dcc.Store(id="live-following", data=following), board(view, PANELS, transport=False, extra=controls)]


def _snapshot(services: Services, url: str) -> LiveRun | None:
    """What is held of a source now; its feed may be another one than when the page was opened."""
    feed = services.feeds.get(url)
    return feed.snapshot() if isinstance(feed, EngineFeed) else None


def _span_of(query: Mapping[str, Any]) -> str:
    asked = str(query.get("window") or DEFAULT_SPAN)
    return asked if asked in SPANS else DEFAULT_SPAN


def _hint() -> Any:
    return dmc.Paper(
        [
            html.H2("Nothing is watched yet"),
            html.P("Give the address of a running server above: batchscope's own, which tells every step, or any vLLM "
                   "or SGLang server, whose /metrics tell less."),
            html.P(["No server at hand? ", html.Code("batchscope live"), " starts an engine, clients and this page."]),
        ],
        withBorder=True,
        p="lg",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """Attach, follow, pause."""
    app.callback(
        Output("live-source", "data"),
        Output("live-body", "children"),
        Input("live-attach", "n_clicks"),
        Input("live-url", "n_submit"),
        State("live-url", "value"),
        prevent_initial_call=True,
    )(partial(_attach, services))
    app.callback(Output("live-state", "children"), Input("live-tick", "n_intervals"), State("live-source", "data"))(
        partial(_state, services)
    )
    app.callback(  # its outputs are there only with a board: Dash wants all outputs of a callback, or none
        Output("board-view", "data", allow_duplicate=True),
        Output("board-tick", "data", allow_duplicate=True),
        Input("live-tick", "n_intervals"),
        State("live-source", "data"),
        State("live-following", "data"),
        State("live-span", "value"),
        State("board-view", "data"),
        State("board-tick", "data"),
        prevent_initial_call=True,
    )(partial(_tick, services))
    app.callback(
        Output("live-following", "data"),
        Output("live-follow", "children"),
        Input("live-follow", "n_clicks"),
        Input("live-span", "value"),
        Input("board-gesture", "data"),
        State("live-following", "data"),
        prevent_initial_call=True,
    )(_follow)
    app.callback(
        Output("live-metrics", "children"),
        Input("live-tick", "n_intervals"),
        Input("theme", "data"),
        State("live-source", "data"),
    )(partial(_metrics, services))


def _attach(services: Services, clicks: int | None, submitted: int | None, url: str | None) -> tuple[str, Any]:
    url = (url or "").strip()
    return url, _source(services, url, {})


def _feed(services: Services, url: str) -> EngineFeed | MetricsFeed:
    """The source's feed. The key goes to the engine that it was given for, and to no other address."""
    key = services.engine_key if url == services.engine_url else None
    return services.feeds.attach(url, api_key=key)


def _state(services: Services, ticks: int | None, url: str) -> Any:
    if not url:
        return no_update
    try:
        feed = _feed(services, url)  # opened anew where nobody looked for so long that it was closed
    except UserError as error:
        return state_line(FeedState("gone", str(error)), "")
    if isinstance(feed, MetricsFeed):
        return state_line(feed.state, "")
    run = feed.snapshot()
    return state_line(feed.state, "" if run is None else run_line(run, feed.counts()["lost"]))


def _tick(
    services: Services, ticks: int | None, url: str, following: bool, span: str, fields: dict[str, str], tick: int
) -> tuple[Any, Any]:
    feed = _open_feed(services, url)
    run = feed.snapshot() if isinstance(feed, EngineFeed) else None
    if run is None or not run.num_steps or not following:
        return no_update, no_update
    shown = _followed(run, span, fields)
    newest = run.last_step
    return (no_update if shown == fields else shown), (no_update if tick == newest else newest)


def _open_feed(services: Services, url: str) -> EngineFeed | MetricsFeed | None:
    """The source's feed; None where there is none, or no longer."""
    try:
        return services.feeds.get(url) if url else None
    except UserError:
        return None


def _followed(run: LiveRun, span: str, fields: dict[str, str]) -> dict[str, str]:
    """The view of the newest part: `window` in the address instead of numbers that are old at once."""
    view = View.of_query({**fields, "run": live_key_of(fields, run)}).whole()
    if span != "all":
        first, last = whole_span(run, "time")
        start = last - float(span)
        if view.axis == "step":
            rows = run.column("steps", "t_start_s") - run.origin_s >= start
            steps = run.column("steps", "step")[rows]
            start, last = (float(steps[0]), float(steps[-1] + 1)) if len(steps) else (0.0, 1.0)
        start = max(first, start) if view.axis == "time" else start
        view = View.of_query({**view.fields(), "from": start, "to": last})
    return {**view.fields(), "window": span}


def live_key_of(fields: Mapping[str, str], run: LiveRun) -> str:
    """The key that the page's address has for the run."""
    return fields.get("run") or run.key


def _follow(clicks: int | None, span: str, gesture: Any, following: bool) -> tuple[Any, Any]:
    """Zooming or panning pauses; the button goes on, or pauses; choosing a length goes on."""
    asked = ctx.triggered_id
    if asked == "board-gesture":
        moves = isinstance(gesture, dict) and gesture.get("kind") in ("zoom", "whole", "pan_to", "move")
        following = False if moves else following
    else:
        following = True if asked == "live-span" else not following
    return following, "Pause" if following else "Follow"


def _metrics(services: Services, ticks: int | None, theme: str, url: str) -> Any:
    feed = _open_feed(services, url)
    return metrics_view(feed.snapshot(), theme) if isinstance(feed, MetricsFeed) else no_update


def state_line(state: FeedState, more: str) -> Any:
    """How a source fares: a word, since when, and what is known."""
    words = {"connecting": "connecting", "live": "live", "ended": "the recording has ended", "gone": "gone"}
    since = time.strftime("%H:%M:%S", time.localtime(state.since_s))
    text = f"{state.reason}; trying again, since {since}" if state.kind == "gone" else more
    return [html.Span(words[state.kind], className=f"badge state-{state.kind}"), html.Span(text)]


def run_line(run: LiveRun, lost: int = 0) -> str:
    """What a live run is, how far it is, and how many of its steps were never held."""
    steps = run.column("steps", "t_end_s")
    per_s = _steps_per_s(run)
    parts = [
        run.name,
        f"{run.source}, policy {run.meta.get('policy', 'unknown')}",
        f"step {run.last_step:,}" + (f" at {per_s:,.0f} a second" if per_s else ""),
        f"{len(steps):,} steps held" + (f" (from {run.first_step:,})" if run.first_step else ""),
    ]
    if lost:
        parts.append(f"{lost:,} steps missed: the engine was too far ahead")
    return " · ".join(parts)


def _steps_per_s(run: LiveRun) -> float | None:
    """Over the last ten seconds held; None where there is nothing to count."""
    ends = run.column("steps", "t_end_s")
    recent = ends[ends > ends[-1] - 10.0] if len(ends) else ends
    if len(recent) < 2 or not math.isfinite(recent[-1] - recent[0]) or recent[-1] == recent[0]:
        return None
    return float((len(recent) - 1) / (recent[-1] - recent[0]))
