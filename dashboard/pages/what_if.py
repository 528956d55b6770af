"""What if: up to four settings on one workload, simulated and held side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.look import MOST_RUNS, RUN_NAMES
from dashboard.owner import current_owner
from dashboard.parts.aria import aria
from dashboard.runs.store import StoredRun
from dashboard.scenario import Variant, scenario_named, scenarios
from dashboard.services import Services
from dashboard.view import View
from dashboard.what_if import own_runs, progress, results, workload_part
from dashboard.what_if.check import Fault, faults_of
from dashboard.what_if.progress import Item, progress_part, progress_rows
from dashboard.what_if.query import FIELDS, Form, of_requests, parse, write
from dashboard.what_if.settings import settings
from dashboard.what_if.variants import differences, shared_fields, variant_cards, variants_of
from scheduler.errors import ConfigError, UserError

PATH = "/what-if"
TITLE = "What if?"
PAGE = "what-if"


def layout(services: Services, **query: Any) -> Any:
    """The form of the address and, where it names runs, how far they are or what they show."""
    view = View.of_query(query)
    runs, problem = _stored(services, view)
    form = _form_of(query, runs)
    active = any(run.active for run in runs)
    items = [{"id": run.id, "label": _label(at, run.label), "sentence": ""} for at, run in enumerate(runs)]
    return dmc.Stack(
        [
            html.Div([html.H1(TITLE), _scenario_choice(form)], className="page-head"),
            html.Div(_scenario_words(form.scenario), id=f"{PAGE}-scenario-words"),
            html.Div([workload_part.workload_part(PAGE, form.workload), _system(form)], className="what-if-top"),
            html.Div(variant_cards(PAGE, form), id=f"{PAGE}-variants", className="variants"),
            _run_bar(form),
            html.Div(problem, id=f"{PAGE}-problem", className="fault", role="alert"),
            *progress_part(PAGE, items, active=active),
            html.Div(
                [] if active else _results(services, [run.id for run in runs], view, form.scenario),
                id=f"{PAGE}-results", className="results",
            ),
            own_runs.own_runs(services),
            dcc.Store(id=f"{PAGE}-query", data=write(form)),
            dcc.Store(id=f"{PAGE}-scenario-key", data=form.scenario),
            html.Div(id=f"{PAGE}-kept", hidden=True),
        ],
        gap="md",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """The form's, the runs' and the results' callbacks."""
    workload_part.register(app, services, PAGE)
    progress.register(app, services, PAGE)
    results.register(app, services)
    own_runs.register(app, services)
    app.clientside_callback(
        ClientsideFunction("what_if", "keep"), Output(f"{PAGE}-kept", "children"), Input(f"{PAGE}-query", "data"),
        Input(f"{PAGE}-runs", "data"),
    )  # fmt: skip
    _register_scenario(app)
    _register_variants(app)
    _register_form(app, services)
    _register_run(app, services)


def _form_of(query: Mapping[str, Any], runs: list[StoredRun]) -> Form:
    """The form in the address; where it has none, the one that asked for the runs."""
    known = {*FIELDS, *settings()}
    if runs and not any(name in known or name[:2] in {f"{letter}." for letter in RUN_NAMES} for name in query):
        return of_requests([run.request for run in runs])
    return parse(query)


def _stored(services: Services, view: View) -> tuple[list[StoredRun], str]:
    """The runs that an address names, and a sentence about those that are gone."""
    found, problem = [], ""
    for key in view.runs:
        try:
            run = services.store.get(key.removeprefix("r-"))
            if run.request.get("kind") == "simulate":
                found.append(run)
        except UserError as error:
            problem = str(error)
    return found, problem


def _results(services: Services, run_ids: list[str], view: View, scenario: str) -> list[Any]:
    try:
        watch = scenario_named(scenario).watch if scenario else ()
        return results.results(services, run_ids, view, watch)
    except UserError as error:
        return [html.P(str(error), className="fault")]


def _label(at: int, label: str) -> str:
    return f"{RUN_NAMES[at]} · {label}" if label and label != RUN_NAMES[at] else RUN_NAMES[at]


# ---- what the form looks like ------------------------------------------------------------------------------------


def _scenario_choice(form: Form) -> Any:
    return dmc.Select(
        id=f"{PAGE}-scenario", data=[{"value": each.key, "label": each.title} for each in scenarios()],
        value=form.scenario or None, placeholder="Begin with a question that somebody asked …", searchable=True,
        className="run-choice", **aria(label="Scenario"),
    )  # fmt: skip


def _scenario_words(key: str) -> Any:
    if not key:
        return []
    scenario = scenario_named(key)
    return html.Section(
        [
            html.P(scenario.question, className="question"),
            html.P([html.B("Reported: "), scenario.numbers], className="words"),
            html.Details([html.Summary("What to look for"), html.P(scenario.answer)], className="answer"),
            html.P(["Source: ", html.A(scenario.source, href=scenario.source, rel="noreferrer", target="_blank")],
                   className="words"),
        ],
        className="card",
    )  # fmt: skip


def _system(form: Form) -> Any:
    def number(name: str, label: str, **more: Any) -> Any:
        return dmc.NumberInput(
            id=f"{PAGE}-{name}",
            label=label,
            min=0,
            size="xs",
            debounce=400,
            hideControls=True,
            thousandSeparator=",",
            **more,
        )

    return html.Section(
        [
            html.H3("System and load"),
            html.Div(shared_fields(PAGE, form.shared), className="fields tight"),
            html.P("roofline prices each step from the hardware's and the model's figures; linear takes options, as in "
                   "linear:step_s=0.01,token_s=2e-5.", className="words"),
            html.Div(
                [
                    number("concurrency", "Clients that wait", value=form.concurrency or "", allowDecimal=False,
                           placeholder="none: arrival times"),
                    number("think", "Their pause, seconds", value=form.think_s or "", placeholder="0"),
                    number("seed", "Seed", value=form.seed, allowDecimal=False),
                ],
                className="fields tight",
            ),
            html.P("All variants run the same requests from the same seed.", className="words"),
        ],
        className="card",
    )  # fmt: skip


def _run_bar(form: Form) -> Any:
    return html.Div(
        [
            dmc.Button("Run", id=f"{PAGE}-run", w=120),
            dmc.Button("Add a variant", id=f"{PAGE}-add", variant="default", disabled=len(form.variants) >= MOST_RUNS),
            html.Span(id=f"{PAGE}-told", className="muted", **aria(live="polite")),
        ],
        className="run-bar",
    )


# ---- what it answers ---------------------------------------------------------------------------------------------


def _register_scenario(app: Dash) -> None:
    @app.callback(
        Output("address", "href", allow_duplicate=True),
        Input(f"{PAGE}-scenario", "value"),
        State(f"{PAGE}-scenario-key", "data"),
        prevent_initial_call=True,
    )
    def _pick(key: str | None, now: str) -> Any:
        if not key or key == now:
            return no_update
        return f"{PATH}?scenario={key}"


def _register_variants(app: Dash) -> None:
    @app.callback(
        Output(f"{PAGE}-variants", "children"),
        Output(f"{PAGE}-add", "disabled"),
        Input(f"{PAGE}-add", "n_clicks"),
        Input({"type": f"{PAGE}-copy", "variant": ALL}, "n_clicks"),
        Input({"type": f"{PAGE}-remove", "variant": ALL}, "n_clicks"),
        State(f"{PAGE}-query", "data"),
        prevent_initial_call=True,
    )
    def _change(added: int | None, copied: list[int | None], removed: list[int | None], query: str) -> Any:
        if not (added or any(copied) or any(removed)):
            return no_update, no_update
        form = _changed(parse(query), ctx.triggered_id)
        return variant_cards(PAGE, form), len(form.variants) >= MOST_RUNS


def _changed(form: Form, trigger: Any) -> Form:
    """The form after a click: one more variant, a copy, or one less."""
    letters = RUN_NAMES[: len(form.variants)]
    if not isinstance(trigger, Mapping):
        return form.with_variant(_copy(form, form.variants[0]))
    at = letters.find(trigger["variant"])
    if at < 0:
        return form
    if trigger["type"] == f"{PAGE}-copy":
        return form.with_variant(_copy(form, form.variants[at]))
    kept = [_relabelled(each, letters[n], n - (n > at)) for n, each in enumerate(form.variants) if n != at]
    return replace(form, variants=tuple(kept)) if kept else form


def _copy(form: Form, variant: Variant) -> Variant:
    return replace(variant, label=RUN_NAMES[min(len(form.variants), MOST_RUNS - 1)])


def _relabelled(variant: Variant, letter: str, at: int) -> Variant:
    """A variant without a label of its own is called by its letter, also by a new one."""
    return replace(variant, label=RUN_NAMES[at]) if variant.label == letter else variant


def _register_form(app: Dash, services: Services) -> None:
    @app.callback(
        Output(f"{PAGE}-query", "data"),
        Output({"type": f"{PAGE}-told", "variant": ALL}, "children"),
        Output({"type": f"{PAGE}-set", "variant": ALL, "name": ALL}, "error"),
        Output(f"{PAGE}-run", "disabled"),
        Output(f"{PAGE}-told", "children"),
        Input({"type": f"{PAGE}-set", "variant": ALL, "name": ALL}, "value"),
        Input({"type": f"{PAGE}-label", "variant": ALL}, "value"),
        Input({"type": f"{PAGE}-clients", "variant": ALL}, "value"),
        Input({"type": f"{PAGE}-own", "variant": ALL}, "data"),
        Input({"type": "workload-spec", "page": PAGE}, "data"),
        Input(f"{PAGE}-seed", "value"),
        Input(f"{PAGE}-concurrency", "value"),
        Input(f"{PAGE}-think", "value"),
        State(f"{PAGE}-scenario-key", "data"),
    )
    def _collect(
        values: Any, labels: Any, clients: Any, owns: Any, spec: Any, seed: Any, concurrency: Any, think: Any, key: str
    ) -> Any:
        load = {"seed": seed, "concurrency": concurrency, "think_s": think}
        form = form_of(ctx.inputs_list, spec, load, key)
        faults = faults_of(form, services.jobs.allowed)
        wrong = {(at, fault.setting) for at, fault in enumerate(faults) if fault is not None}
        errors = [_is_wrong(output["id"], wrong) for output in ctx.outputs_list[2]]
        told = [_told(form, at, fault) for at, fault in enumerate(faults)]
        any_wrong = any(fault is not None for fault in faults)
        return write(form), told, errors, any_wrong, "Correct what is marked first." if any_wrong else ""


def form_of(inputs: list[Any], spec: Mapping[str, Any], load: Mapping[str, Any], scenario: str) -> Form:
    """The form from Dash's lists of its inputs: settings, labels, clients, own parts, in that order."""
    given = variants_of(inputs[0])
    by_letter = [{item["id"]["variant"]: item.get("value") for item in group} for group in inputs[1:4]]
    labels, clients, own = by_letter
    variants = [
        Variant(
            (labels.get(letter) or "").strip() or letter,
            given.get(letter, {}),
            (own[letter] or {}).get("workload"),
            _whole(clients.get(letter)),
        )
        for letter in sorted(own)
    ]
    return Form(
        dict(spec), given.get("*", {}), tuple(variants), _whole(load["seed"]) or 0, _whole(load["concurrency"]),
        float(load["think_s"] or 0), scenario,
    )  # fmt: skip


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _is_wrong(ident: Mapping[str, str], wrong: set[tuple[int, str]]) -> bool:
    if ident["variant"] == "*":
        return any(name == ident["name"] for _, name in wrong)
    return (RUN_NAMES.find(ident["variant"]), ident["name"]) in wrong


def _told(form: Form, at: int, fault: Fault | None) -> Any:
    if fault is not None:
        return html.Span(fault.sentence, className="fault")
    return differences(form, at)


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
        items = [submit(services, at, request) for at, request in enumerate(parse(query).requests())]
        started = any(item["id"] for item in items)
        return items, progress_rows(PAGE, items), not started, started, "", []

    @app.callback(
        Output(f"{PAGE}-results", "children"),
        Input(f"{PAGE}-ended", "data"),
        State(f"{PAGE}-query", "data"),
        prevent_initial_call=True,
    )
    def _show(ended: list[str] | None, query: str) -> Any:
        if not ended:
            return no_update
        return _results(services, ended, View(), parse(query).scenario)


def submit(services: Services, at: int, request: Mapping[str, Any]) -> Item:
    """Ask for one variant's run; a refusal is that variant's sentence."""
    label = _label(at, request["label"])
    try:
        return {"id": services.jobs.submit(current_owner(), request), "label": label, "sentence": ""}
    except (ConfigError, UserError) as error:
        return {"id": "", "label": label, "sentence": str(error)}
