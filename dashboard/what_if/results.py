"""What the runs show: figures side by side, what bounds each, the panels, and the next setting to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.board.layout import board
from dashboard.look import MOST_RUNS
from dashboard.owner import current_owner
from dashboard.panels import PANELS
from dashboard.parts.aria import aria
from dashboard.parts.diagnosis import diagnosis
from dashboard.parts.summary import summary
from dashboard.runs.store import StoredRun
from dashboard.scenario import Variant
from dashboard.scene import Scene
from dashboard.services import Services
from dashboard.view import View
from scheduler.errors import UserError

from .progress import EVERY_MS, told
from .query import PATH, parse, typed_settings, write
from .resolver import run_key
from .settings import settings

PAGE = "what-if"


def results(services: Services, run_ids: Sequence[str], view: View, watch: Sequence[str] = ()) -> list[Any]:
    """The results of finished runs; those that failed or are gone are left out.

    Args:
        services: where runs are.
        run_ids: ids, in order.
        view: what the board shows, of these runs.
        watch: panels to show first.
    """
    done = [run for run in map(services.store.get, run_ids) if run.state == "done"]
    if not done:
        return []
    view = replace(view, runs=tuple(run_key(run.id) for run in done))
    scene = Scene(services.catalog.runs(view.runs), view)
    first = [key for key in watch if key in PANELS]
    return [
        html.H2("Results"),
        html.Section(summary(scene), className="card"),
        html.Div(
            [_why(scene, at, run) for at, run in enumerate(done)],
            className="variants",
        ),
        dcc.Store(id=f"{PAGE}-explains", data={}),
        dcc.Interval(id=f"{PAGE}-explain-tick", interval=2 * EVERY_MS, disabled=True),
        board(view, [*first, *(key for key in PANELS if key not in first)]),
    ]


def _why(scene: Scene, at: int, run: StoredRun) -> Any:
    return html.Section(
        [
            html.H3(f"What bounds {scene.label(at)}"),
            diagnosis(scene.runs[at]),
            dmc.Button(
                "Try the next setting", id={"type": f"{PAGE}-explain", "run": run.id}, size="compact-xs",
                variant="light", mt=8,
            ),
            html.Div(id={"type": f"{PAGE}-explained", "run": run.id}, className="words", **aria(live="polite")),
        ],
        className="card",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """The search for the next setting."""

    @app.callback(
        Output(f"{PAGE}-explains", "data"),
        Output(f"{PAGE}-explain-tick", "disabled"),
        Output(f"{PAGE}-problem", "children", allow_duplicate=True),
        Input({"type": f"{PAGE}-explain", "run": ALL}, "n_clicks"),
        State(f"{PAGE}-explains", "data"),
        prevent_initial_call=True,
    )
    def _try(clicks: list[int | None], known: dict[str, str]) -> Any:
        if not any(clicks) or not ctx.triggered_id or ctx.triggered_id["run"] in known:
            return no_update, no_update, no_update
        run_id = ctx.triggered_id["run"]
        try:
            asked = services.store.get(run_id).request
            label = f"{asked.get('label') or 'run'}: next setting"
            job = services.jobs.submit(current_owner(), {**asked, "explain": True, "label": label})
        except UserError as error:
            return no_update, no_update, str(error)
        return {**known, run_id: job}, False, ""

    @app.callback(
        Output({"type": f"{PAGE}-explained", "run": ALL}, "children"),
        Output(f"{PAGE}-explain-tick", "disabled", allow_duplicate=True),
        Input(f"{PAGE}-explain-tick", "n_intervals"),
        Input(f"{PAGE}-explains", "data"),
        State({"type": f"{PAGE}-explained", "run": ALL}, "id"),
        State(f"{PAGE}-query", "data"),
        prevent_initial_call=True,
    )
    def _tell(count: int | None, known: dict[str, str], idents: list[Mapping[str, str]], query: str) -> Any:
        active = [told(services, job).state in ("queued", "running") for job in known.values()]
        texts = [
            _explained(services, known[ident["run"]], query) if ident["run"] in known else no_update for ident in idents
        ]
        return texts, not any(active)


def _explained(services: Services, job: str, query: str) -> Any:
    """What the search found, or how far it is."""
    at = told(services, job)
    if at.state != "done":
        return at.sentence
    run = services.store.get(job)
    found = run.explanation or {"error": "there is no explanation of this run"}
    if "error" in found:
        return found["error"]
    return [html.P(found["text"]), *_offer(run, found["knob"], query)]


def _offer(run: StoredRun, knob: Mapping[str, Any] | None, query: str) -> list[Any]:
    """A link to the form with that setting as one more variant, where it is a setting and there is room."""
    form = parse(query)
    if not knob or len(form.variants) >= MOST_RUNS or knob["name"] not in settings():
        return []
    own = {name: value for name, value in run.request["settings"].items() if form.shared.get(name) != value}
    label = f"{knob['name']} {settings()[knob['name']].text(knob['after'])}"
    more = form.with_variant(Variant(label, typed_settings({**own, knob["name"]: knob["after"]})))
    return [dcc.Link("Add it to the form as a variant", href=PATH + write(more))]
