"""A server's metrics as figures over the time that it was watched, with what they cannot tell."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import dcc, html

from dashboard.live.prometheus import WINDOW_S, MetricsSnapshot
from dashboard.look import Figure, Look, axis, layout, look_named
from dashboard.panels.frame import typed

_FIGURES: tuple[tuple[str, str, tuple[tuple[str, str, str], ...], str], ...] = (
    ("Running and waiting", "requests", (("running", "running", "decode"), ("waiting", "waiting", "queued")), ",.0f"),
    ("KV cache in use", "share", (("kv_use", "in use", "decode"),), ".1%"),
    ("Tokens per second", "tokens / s",
     (("generation_per_s", "generated", "decode"), ("prompt_per_s", "prompt", "prefill")), ",.4~g"),
    ("Tokens per step", "tokens", (("tokens_per_iteration", "mean of a look's steps", "decode"),), ",.4~g"),
    ("Preemptions", "requests since the look before", (("preemptions", "preempted", "preempted"),), ",.0f"),
)  # fmt: skip
_LATENCIES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "Queue"}
CONFIG: Any = {"displayModeBar": False, "responsive": True}


def metrics_view(seen: MetricsSnapshot, theme: str | None) -> Any:
    """Everything a server's metrics tell."""
    look = look_named(theme)
    cards = [
        html.Section(
            [html.H3(title), dcc.Graph(figure=figure(seen, look, unit, lines, spec), config=CONFIG)], className="card"
        )
        for title, unit, lines, spec in _FIGURES
        if any(np.isfinite(seen.series[name]).any() for name, _, _ in lines)
    ]
    return dmc.Stack(
        [_about(seen), html.Div([*cards, _latency_card(seen)], className="cards"), _unsaid(seen)], gap="md"
    )


def figure(seen: MetricsSnapshot, look: Look, unit: str, lines: tuple[tuple[str, str, str], ...], spec: str) -> Figure:
    """Lines over the seconds before now; they break where the server did not answer."""
    time_s = seen.series["time_s"]
    x = time_s - time_s[-1] if len(time_s) else time_s
    data = [
        {"type": "scatter", "mode": "lines", "name": label, "x": typed(x), "y": typed(seen.series[name]),
         "line": {"color": look.kinds[kind], "width": 1.6}, "connectgaps": False,
         "hovertemplate": f"%{{y:{spec}}} {label}<extra></extra>"}
        for name, label, kind in lines
    ]  # fmt: skip
    title = {"font": {"size": 11, "color": look.muted}}
    return {
        "data": data,
        "layout": layout(
            look, height=210, hovermode="x unified",
            xaxis=axis(look, showgrid=False, title={"text": "seconds before the last look", **title}),
            yaxis=axis(look, rangemode="tozero", tickformat=spec if "%" in spec else "", title={"text": unit, **title}),
        ),
    }  # fmt: skip


def _about(seen: MetricsSnapshot) -> Any:
    again = f" · started anew {seen.restarts} times meanwhile" if seen.restarts else ""
    text = f"{seen.server or 'server'} · {seen.model or 'model unknown'} · {len(seen.series['time_s']):,} looks{again}"
    return html.P([html.Span("metrics only", className="badge simulated"), " ", text], className="live-state")


def _latency_card(seen: MetricsSnapshot) -> Any:
    rows = [
        html.Tr([html.Td(_LATENCIES.get(name, name)), *[html.Td(each.words()) for each in ranges]])
        for name, ranges in seen.latencies.items()
    ]
    head = html.Tr([html.Th("latency"), *[html.Th(text) for text in ("p50", "p90", "p99")]])
    note = f"Of the last {WINDOW_S:,.0f} s. The server counts in buckets: each figure lies between the two given."
    body = (
        html.Table([html.Thead(head), html.Tbody(rows)], className="figures") if rows else html.P("No request ended.")
    )
    return html.Section([html.H3("Latencies"), html.P(note, className="words"), body], className="card")


def _unsaid(seen: MetricsSnapshot) -> Any:
    if not seen.cannot_tell:
        return None
    items = html.Ul([html.Li(sentence) for sentence in seen.cannot_tell])
    return html.Section([html.H3("What this source cannot tell"), items], className="card")
