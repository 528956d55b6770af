"""Sweep: many settings on one workload, their front, their knee and a map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.look import look_named
from dashboard.numbers import digits, seconds
from dashboard.owner import current_owner
from dashboard.parts.aria import aria
from dashboard.runs.store import StoredRun
from dashboard.scenario import Variant
from dashboard.services import Services
from dashboard.sweep_figures import front, heat, load
from dashboard.sweep_figures.points import label, quantities
from dashboard.what_if import progress, workload_part
from dashboard.what_if.progress import progress_part, progress_rows
from dashboard.what_if.query import Form
from dashboard.what_if.settings import settings
from dashboard.what_if.sweep_form import (
    EXAMPLE,
    GRIDS,
    SLO_METRICS,
    SweepForm,
    of_request,
    parse,
    point_request,
    write,
)
from dashboard.what_if.variants import shared_fields, variant_cards, variants_of
from scheduler.errors import UserError
from simulator.grid import LOAD_AXES
from simulator.slo import NAMES

PATH = "/sweep"
TITLE = "Sweep"
PAGE = "sweep"
POINT = "sweep-point"
_GRAPH: Any = {"displaylogo": False, "responsive": True, "modeBarButtons": [["toImage", "zoom2d", "resetScale2d"]],
               "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "batchscope-sweep"}}  # fmt: skip


def layout(services: Services, **query: Any) -> Any:
    """The form of the address and, where it names a sweep, how far it is or what it shows."""
    run, problem = _stored(services, query.get("run"))
    known = [name for name in query if name != "run"]
    form = of_request(run.request) if run is not None and not known else parse(query)
    items = [] if run is None else [{"id": run.id, "label": run.label, "sentence": ""}]
    active = run is not None and run.active
    return dmc.Stack(
        [
            html.Div(
                [
                    html.H1(TITLE),
                    html.P("Every combination of a few values, simulated.", className="muted grow"),
                    dcc.Link("Try an example", href=PATH + write(EXAMPLE), className="plain-button"),
                ],
                className="page-head",
            ),
            html.Div(
                [workload_part.workload_part(PAGE, form.base.workload), _system(form.base)], className="what-if-top"
            ),
            html.Div([_grid_card(form), _limits_card(form)], className="what-if-top"),
            *variant_cards(PAGE, form.base, alone=True),
            html.Div(
                [dmc.Button("Run", id=f"{PAGE}-run", w=120), html.Span(id=f"{PAGE}-told", className="muted")],
                className="run-bar",
            ),
            html.Div(problem, id=f"{PAGE}-problem", className="fault", role="alert"),
            *progress_part(PAGE, items, active=active),
            html.Div(_results(run), id=f"{PAGE}-results", className="results"),
            dcc.Store(id=f"{PAGE}-query", data=write(form)),
            html.Div(id=f"{PAGE}-kept", hidden=True),
        ],
        gap="md",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """The form's, the sweep's and the figures' callbacks."""
    workload_part.register(app, services, PAGE)
    progress.register(app, services, PAGE)
    progress.register(app, services, POINT)
    app.clientside_callback(
        ClientsideFunction("what_if", "keep_sweep"), Output(f"{PAGE}-kept", "children"), Input(f"{PAGE}-query", "data"),
        Input(f"{PAGE}-runs", "data"),
    )  # fmt: skip
    _register_form(app)
    _register_run(app, services)
    _register_figures(app, services)
    _register_point(app, services)


def _stored(services: Services, run_id: Any) -> tuple[StoredRun | None, str]:
    """The sweep that an address names, or a sentence on why there is none."""
    if not run_id:
        return None, ""
    try:
        run = services.store.get(str(run_id).removeprefix("r-"))
    except UserError as error:
        return None, str(error)
    return (run, "") if run.request.get("kind") == "sweep" else (None, "that run is no sweep; open it in Replay")


# ---- what the form looks like ------------------------------------------------------------------------------------


def _system(form: Form) -> Any:
    number: dict[str, Any] = {
        "min": 0,
        "hideControls": True,
        "size": "xs",
        "debounce": 400,
        "thousandSeparator": ",",
        "allowDecimal": False,
    }
    return html.Section(
        [
            html.H3("System and load"),
            html.Div(shared_fields(PAGE, form.shared), className="fields tight"),
            html.Div(
                [
                    dmc.NumberInput(id=f"{PAGE}-concurrency", label="Clients that wait", value=form.concurrency or "",
                                    placeholder="none: arrival times", **number),
                    dmc.NumberInput(id=f"{PAGE}-seed", label="Seed", value=form.seed, **number),
                ],
                className="fields",
            ),
        ],
        className="card",
    )  # fmt: skip


def _grid_card(form: SweepForm) -> Any:
    grids = [*form.grids, *[("", "")] * GRIDS][:GRIDS]
    return html.Section(
        [
            html.H3("What is varied"),
            *[_grid_row(at, name, values) for at, (name, values) in enumerate(grids)],
            html.Div(
                [
                    dmc.TextInput(id=f"{PAGE}-rates", label="Rates, requests/s", value=form.rates, size="xs",
                                  placeholder="2,4,8 or 2:16:2", debounce=400),
                    dmc.TextInput(id=f"{PAGE}-seeds", label="Seeds (presets only)", value=form.seeds, size="xs",
                                  placeholder="0,1,2", debounce=400),
                ],
                className="fields",
            ),
            html.P("Values: 16,32,64; a range 16:64:16; a logarithmic one log:8:512:7.", className="words"),
        ],
        className="card",
    )  # fmt: skip


def _grid_row(at: int, name: str, values: str) -> Any:
    names = [*settings(), *(axis for axis in LOAD_AXES if axis not in ("rate", "seed"))]
    return html.Div(
        [
            dmc.Select(id={"type": f"{PAGE}-grid-name", "at": at}, label=f"Setting {at + 1}", value=name or None,
                       data=names, searchable=True, clearable=True, size="xs", placeholder="none"),
            dmc.TextInput(id={"type": f"{PAGE}-grid-values", "at": at}, label="Values", value=values, size="xs",
                          placeholder="16,32,64", debounce=400),
        ],
        className="fields part",
    )  # fmt: skip


def _limits_card(form: SweepForm) -> Any:
    fields = [
        dmc.TextInput(id={"type": f"{PAGE}-slo", "metric": metric}, label=f"{metric.upper()}, p99 at most", size="xs",
                      value=form.slo.get(metric, ""), placeholder="no limit", debounce=400)
        for metric in SLO_METRICS
    ]  # fmt: skip
    latency = dmc.Select(
        id=f"{PAGE}-latency", label="Latency on the front", data=list(NAMES), value=form.latency, searchable=True,
        allowDeselect=False, size="xs",
    )  # fmt: skip
    return html.Section(
        [
            html.H3("Limits"),
            html.Div([*fields, latency], className="fields"),
            html.P("Seconds, or as in 500ms. Limits can be changed after the sweep.", className="words"),
        ],
        className="card",
    )


def _results(run: StoredRun | None) -> list[Any]:
    """Places for the figures of a sweep that has ended well."""
    if run is None or run.state != "done" or run.result is None:
        return []
    choices = [{"value": key, "label": each.title} for key, each in quantities(run.result["latency"]).items()]
    chosen = dmc.Select(id=f"{PAGE}-quantity", data=choices, value="throughput", allowDeselect=False, size="xs", w=220,
                        **aria(label="Shown on the map"))  # fmt: skip
    return [
        html.H2("Results"),
        dcc.Store(id=f"{PAGE}-shown", data=run.id),
        html.Div(
            [
                _card("front", "Throughput against latency", "Which combinations no other beats on both?"),
                _card("load", "Under rising load", "Up to which load does latency hold?"),
            ],
            className="cards",
        ),
        _card("heat", "Two settings at once", "Where is the best corner?", chosen),
        html.Section(
            [html.H3("One point"), html.P("Click a point in a figure to look inside.", className="words")],
            id=f"{PAGE}-point", className="card",
        ),
        html.Div(progress_part(POINT, [], active=False)),
        html.Div(id=f"{POINT}-problem", className="fault"),
        html.Div(id=f"{POINT}-link"),
    ]  # fmt: skip


def _card(key: str, title: str, question: str, *more: Any) -> Any:
    graph = dcc.Graph(id={"type": f"{PAGE}-figure", "key": key}, config=_GRAPH)
    return html.Section(
        [
            html.Div(
                [html.Div([html.H3(title), html.P(question)], className="card-head"), *more], className="card-top"
            ),
            html.Div(id={"type": f"{PAGE}-legend", "key": key}, className="curves"),
            html.Div(graph, className="plot", role="figure", **aria(label=title)),
            html.P("", id={"type": f"{PAGE}-words", "key": key}, className="words"),
        ],
        className="card",
    )


# ---- what it answers ---------------------------------------------------------------------------------------------


def _register_form(app: Dash) -> None:
    @app.callback(
        Output(f"{PAGE}-query", "data"),
        Output({"type": f"{PAGE}-told", "variant": ALL}, "children"),
        Output(f"{PAGE}-run", "disabled"),
        Output(f"{PAGE}-told", "children"),
        Output(f"{PAGE}-told", "className"),
        Input({"type": f"{PAGE}-set", "variant": ALL, "name": ALL}, "value"),
        Input({"type": "workload-spec", "page": PAGE}, "data"),
        Input(f"{PAGE}-seed", "value"),
        Input(f"{PAGE}-concurrency", "value"),
        Input({"type": f"{PAGE}-grid-name", "at": ALL}, "value"),
        Input({"type": f"{PAGE}-grid-values", "at": ALL}, "value"),
        Input(f"{PAGE}-rates", "value"),
        Input(f"{PAGE}-seeds", "value"),
        Input({"type": f"{PAGE}-slo", "metric": ALL}, "value"),
        Input(f"{PAGE}-latency", "value"),
    )
    def _collect(
        values: Any, spec: Any, seed: Any, clients: Any, names: Any, texts: Any, rates: Any, seeds: Any, slo: Any,
        latency: str,
    ) -> Any:  # fmt: skip
        given = variants_of(ctx.inputs_list[0])
        base = Form(
            dict(spec), given.get("*", {}), (Variant("A", given.get("A", {})),),
            seed if isinstance(seed, int) else 0, clients if isinstance(clients, int) else None,
        )  # fmt: skip
        grids = tuple((name, text.strip()) for name, text in zip(names, texts, strict=True) if name and text)
        limits = {metric: text.strip() for metric, text in zip(SLO_METRICS, slo, strict=True) if text}
        form = SweepForm(base, grids, (rates or "").strip(), (seeds or "").strip(), limits, latency)
        fault = form.fault()
        told = "" if fault is None else fault.sentence
        replaced = [name for name in form.grid() if name in base.variants[0].settings]
        note = f"Varied instead of set: {', '.join(replaced)}." if replaced else ""
        return write(form), [note or None], fault is not None, told, "fault" if told else "muted"


def _register_run(app: Dash, services: Services) -> None:
    @app.callback(
        Output(f"{PAGE}-runs", "data"),
        Output(f"{PAGE}-progress", "children"),
        Output(f"{PAGE}-tick", "disabled", allow_duplicate=True),
        Output(f"{PAGE}-run", "loading", allow_duplicate=True),
        Output(f"{PAGE}-problem", "children", allow_duplicate=True),
        Output(f"{PAGE}-results", "children", allow_duplicate=True),
        Input(f"{PAGE}-run", "n_clicks"),
        State(f"{PAGE}-query", "data"),
        prevent_initial_call=True,
    )
    def _run(clicks: int | None, query: str) -> Any:
        if not clicks:
            return (no_update,) * 6
        request = parse(query).request()
        try:
            ident = services.jobs.submit(current_owner(), request)
        except UserError as error:
            return no_update, no_update, True, False, str(error), no_update
        items = [{"id": ident, "label": request["label"], "sentence": ""}]
        return items, progress_rows(PAGE, items), False, True, "", []

    @app.callback(Output(f"{PAGE}-results", "children"), Input(f"{PAGE}-ended", "data"), prevent_initial_call=True)
    def _show(ended: list[str] | None) -> Any:
        return _results(services.store.get(ended[0])) if ended else no_update


def _register_figures(app: Dash, services: Services) -> None:
    @app.callback(
        [Output({"type": f"{PAGE}-figure", "key": key}, "figure") for key in ("front", "load", "heat")],
        [Output({"type": f"{PAGE}-words", "key": key}, "children") for key in ("front", "load", "heat")],
        [Output({"type": f"{PAGE}-legend", "key": key}, "children") for key in ("front", "load")],
        Input(f"{PAGE}-shown", "data"),
        Input(f"{PAGE}-quantity", "value"),
        Input({"type": f"{PAGE}-slo", "metric": ALL}, "value"),
        Input("theme", "data"),
        State(f"{PAGE}-query", "data"),
    )
    def _draw(run_id: str, quantity: str, slo: list[str | None], theme: Any, query: str) -> Any:
        result, look = services.store.get(run_id).result, look_named(theme)
        if result is None:
            return (no_update,) * 8
        try:
            given = {metric: text for metric, text in zip(SLO_METRICS, slo, strict=True) if text}
            limits = SweepForm(slo=given).limits_s()
        except UserError:  # said above the button
            limits = {}
        figures = [
            front.figure(result, look, limits), load.figure(result, look, limits), heat.figure(result, look, quantity)
        ]  # fmt: skip
        words = front.words(result, limits), load.words(result, limits), heat.words(result, quantity)
        marks = [
            html.Span([html.Span(symbol, style={"color": color}, className="mark"), name])
            for name, color, symbol in front.legend(figures[0])
        ]
        return *figures, *words, marks, _curves(load.varied(result), load.legend(result, look, limits))


def _curves(names: list[str], entries: list[tuple[str, str, str]]) -> list[Any]:
    """The curves' names behind a piece of their line."""
    css = {"solid": "solid", "dash": "dashed", "dot": "dotted"}
    lines = [
        html.Span([html.Span(style={"borderTop": f"2px {css.get(dash, 'solid')} {color}"}, className="stroke"), name])
        for name, color, dash in entries
    ]
    return [html.Span(f"{', '.join(names)}:"), *lines] if names else []


def _register_point(app: Dash, services: Services) -> None:
    @app.callback(
        Output(f"{PAGE}-point", "children"),
        Input({"type": f"{PAGE}-figure", "key": ALL}, "clickData"),
        State(f"{PAGE}-shown", "data"),
        prevent_initial_call=True,
    )
    def _pick(clicks: Any, run_id: str) -> Any:
        at = _place(ctx.triggered[0]["value"]) if ctx.triggered else None
        run = services.store.get(run_id)
        if at is None or run.result is None or not 0 <= at < len(run.result["runs"]):
            return no_update
        return _point(run.result["runs"][at], at)

    @app.callback(
        Output(f"{POINT}-runs", "data"),
        Output(f"{POINT}-progress", "children"),
        Output(f"{POINT}-tick", "disabled", allow_duplicate=True),
        Output(f"{POINT}-problem", "children", allow_duplicate=True),
        Output(f"{POINT}-link", "children", allow_duplicate=True),
        Input(f"{POINT}-run", "n_clicks"),
        State(f"{POINT}-at", "data"),
        State(f"{PAGE}-shown", "data"),
        prevent_initial_call=True,
    )
    def _simulate(clicks: int | None, at: int, run_id: str) -> Any:
        if not clicks:
            return (no_update,) * 5
        run = services.store.get(run_id)
        try:
            request = point_request(run.request, (run.result or {"runs": []})["runs"][at]["point"])
            ident = services.jobs.submit(current_owner(), request)
        except UserError as error:
            return no_update, no_update, True, str(error), ""
        items = [{"id": ident, "label": request["label"], "sentence": ""}]
        return items, progress_rows(POINT, items), False, "", ""

    @app.callback(Output(f"{POINT}-link", "children"), Input(f"{POINT}-ended", "data"), prevent_initial_call=True)
    def _link(ended: list[str] | None) -> Any:
        if not ended or services.store.get(ended[0]).state != "done":
            return no_update
        return dcc.Link("Open this run in Replay", href=f"/replay?run=r-{ended[0]}", className="plain-button")


def _place(click: Mapping[str, Any] | None) -> int | None:
    """The place in the sweep that a click was on."""
    points = (click or {}).get("points") or [{}]
    place = points[0].get("customdata")
    return place if isinstance(place, int) else None


def _point(row: Mapping[str, Any], at: int) -> list[Any]:
    """What is known of one point, and a way inside."""

    def spread(name: str) -> str:
        return seconds(row[name]["p99"]) if row.get(name) else "–"

    facts = [
        ("output tokens/s", digits(row["output_tokens_per_s"])),
        ("TTFT, p99", spread("ttft_s")),
        ("TPOT, p99", spread("tpot_s")),
        ("E2E, p99", spread("e2e_s")),
        ("requests served", f"{row['finished']:,} of {row['requests']:,}"),
        ("preemptions", f"{row['preemptions']:,}"),
    ]
    return [
        html.H3(label(row)),
        html.Dl([html.Div([html.Dt(name), html.Dd(value)]) for name, value in facts], className="facts"),
        dmc.Button("Simulate this point", id=f"{POINT}-run", size="xs", variant="light"),
        dcc.Store(id=f"{POINT}-at", data=at),
    ]
