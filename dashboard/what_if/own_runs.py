"""My runs: what this browser asked for, newest first, to open again or to remove."""

from __future__ import annotations

import time
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, ctx, dcc, html, no_update

from dashboard.owner import current_owner
from dashboard.parts.aria import aria
from dashboard.runs.store import StoredRun
from dashboard.services import Services
from scheduler.errors import UserError

from .query import PATH, of_requests, write
from .resolver import run_key

PAGE = "what-if"
MOST_SHOWN = 100
_KINDS = {"simulate": "simulation", "sweep": "sweep"}


def own_runs(services: Services) -> Any:
    """The list, folded."""
    return html.Details(
        [
            html.Summary("My runs"),
            html.Div(_table(services.store.own(current_owner())), id=f"{PAGE}-own"),
        ],
        id=f"{PAGE}-own-part",
        className="card",
    )


def register(app: Dash, services: Services) -> None:
    """Removing a run; the list is made anew when runs have ended."""

    @app.callback(
        Output(f"{PAGE}-own", "children"),
        Output(f"{PAGE}-problem", "children", allow_duplicate=True),
        Input({"type": f"{PAGE}-forget", "run": ALL}, "n_clicks"),
        Input(f"{PAGE}-ended", "data"),
        prevent_initial_call=True,
    )
    def _change(clicks: list[int | None], ended: Any) -> Any:
        problem: Any = no_update
        if isinstance(ctx.triggered_id, dict):
            if not any(clicks):
                return no_update, no_update
            try:
                services.store.remove(ctx.triggered_id["run"], current_owner())
            except UserError as error:
                problem = str(error)
        return _table(services.store.own(current_owner())), problem


def link_to(run: StoredRun) -> str:
    """The page that shows a run, with the form that asks for it."""
    if run.request.get("kind") == "sweep":
        return f"/sweep?run={run.id}"
    return f"{PATH}{write(of_requests([run.request]))}&run={run_key(run.id)}"


def _table(runs: list[StoredRun]) -> Any:
    if not runs:
        return html.P("Nothing yet: runs that you start here are kept for a week.", className="words")
    head = html.Tr([html.Th(name) for name in ("Run", "Kind", "State", "Asked for", "")])
    return html.Table([html.Thead(head), html.Tbody([_row(run) for run in runs[:MOST_SHOWN]])], className="own-runs")


def _row(run: StoredRun) -> Any:
    label = run.label or "no label"
    remove = dmc.Button(
        "Remove", id={"type": f"{PAGE}-forget", "run": run.id}, size="compact-xs", variant="subtle", color="gray",
        disabled=run.active, **aria(label=f"Remove {label}"),
    )  # fmt: skip
    cells = [
        dcc.Link(label, href=link_to(run)),
        _KINDS.get(str(run.request.get("kind")), ""),
        html.Span(run.state, title=run.sentence),
        _ago(time.time() - run.created_s),
        remove,
    ]
    return html.Tr([html.Td(cell) for cell in cells])


def _ago(age_s: float) -> str:
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(age_s // length_s)
        if count:
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
