"""Runs under way: a row each with a bar, a sentence and a way to cancel, and the clock that moves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.owner import current_owner
from dashboard.parts.aria import aria
from dashboard.runs.jobs import Progress
from dashboard.services import Services
from scheduler.errors import UserError

EVERY_MS = 300
_ENDED = ("done", "failed", "cancelled")

Item = dict[str, str]
"""One run as the page keeps it: ``id``, ``label``, and ``sentence`` of one that was refused at once (no id then)."""


def progress_part(page: str, items: list[Item], *, active: bool) -> list[Any]:
    """The rows, the clock, and the stores ``{page}-runs`` (the items) and ``{page}-ended`` (ids, once all have ended).

    Args:
        page: prefix of the ids.
        items: runs to begin with.
        active: whether any of them still waits or runs.
    """
    return [
        dcc.Store(id=f"{page}-runs", data=items),
        dcc.Store(id=f"{page}-ended"),
        dcc.Interval(id=f"{page}-tick", interval=EVERY_MS, disabled=not active),
        html.Div(
            progress_rows(page, items, seen=active), id=f"{page}-progress", className="runs", **aria(live="polite")
        ),
    ]


def progress_rows(page: str, items: Iterable[Item], *, seen: bool = True) -> list[Any]:
    """A row for each run; of refused ones the sentence alone."""
    return [
        html.Div([html.B(item["label"]), html.Span(item["sentence"], className="fault")], className="run-row refused")
        if not item["id"]
        else _row(page, item, seen)
        for item in items
    ]


def _row(page: str, item: Item, seen: bool) -> Any:
    def of(what: str) -> dict[str, str]:
        return {"type": f"{page}-{what}", "run": item["id"]}

    return html.Div(
        [
            html.B(item["label"]),
            dmc.Progress(id=of("bar"), value=0, size="sm", **aria(label=f"Progress of {item['label']}")),
            html.Span("", id=of("said"), className="muted"),
            dmc.Button("Cancel", id=of("cancel"), size="compact-xs", variant="subtle", color="gray"),
        ],
        id=of("row"),
        className="run-row" if seen else "run-row gone",
    )


def register(app: Dash, services: Services, page: str) -> None:
    """The callbacks of one page's rows."""
    _register_tick(app, services, page)

    @app.callback(
        Output(f"{page}-problem", "children", allow_duplicate=True),
        Input({"type": f"{page}-cancel", "run": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def _cancel(clicks: list[int | None]) -> Any:
        if not any(clicks) or not ctx.triggered_id:
            return no_update
        try:
            services.jobs.cancel(ctx.triggered_id["run"], current_owner())
        except UserError as error:
            return str(error)
        return no_update


def _register_tick(app: Dash, services: Services, page: str) -> None:
    @app.callback(
        Output({"type": f"{page}-bar", "run": ALL}, "value"),
        Output({"type": f"{page}-said", "run": ALL}, "children"),
        Output({"type": f"{page}-row", "run": ALL}, "className"),
        Output(f"{page}-tick", "disabled"),
        Output(f"{page}-ended", "data"),
        Output(f"{page}-run", "loading"),
        Input(f"{page}-tick", "n_intervals"),
        State({"type": f"{page}-bar", "run": ALL}, "id"),
        State(f"{page}-runs", "data"),
        prevent_initial_call=True,
    )
    def _tick(count: int, idents: list[Mapping[str, str]], items: list[Item]) -> Any:
        found = {item["id"]: told(services, item["id"]) for item in items if item["id"]}
        shown = [found.get(ident["run"]) or told(services, ident["run"]) for ident in idents]
        over = all(one.state in _ENDED for one in found.values())
        return (
            [100 * one.fraction for one in shown],
            [one.sentence for one in shown],
            [_class_of(one, over) for one in shown],
            over,
            list(found) if over else no_update,
            not over,
        )


def told(services: Services, run_id: str) -> Progress:
    """How far a run is; one that is gone has failed."""
    try:
        return services.jobs.progress(run_id)
    except UserError as error:
        return Progress("failed", 0, 0, str(error))


def _class_of(one: Progress, over: bool) -> str:
    if one.state == "done":
        return "run-row gone" if over else "run-row over"
    return "run-row failed" if one.state in _ENDED else "run-row"
