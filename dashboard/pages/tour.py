"""Tour: five short stops from the naive rectangle to chunked prefill."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.inspector.aria import labelled
from dashboard.look import LIGHT, look_named
from dashboard.services import Services
from dashboard.tour.picture import counter, picture, words
from dashboard.tour.stops import STOPS, film

PATH = "/tour"
TITLE = "Tour"
_PLAY_MS = 900
"""Milliseconds a step while it plays."""
_GRAPH: Any = {"displayModeBar": False, "responsive": True}
_LEGEND = (
    ("prefill", "prompt token"),
    ("decode", "decoded token"),
    ("padding", "padding"),
    ("idle", "nothing computed"),
)


def layout(services: Services, **query: Any) -> Any:
    """One stop."""
    at = _stop_of(query.get("stop"))
    stop = STOPS[at]
    return dmc.Stack(
        [
            html.Div([html.H1(TITLE), _stops(at)], className="page-head"),
            html.Div(
                [
                    html.H2(f"{at + 1}. {stop.title}"),
                    dmc.Text(stop.text, maw=760, mb="sm"),
                    html.Div(
                        dcc.Graph(id="tour-picture", figure=picture(film(at), 0, LIGHT), config=_GRAPH),
                        id="tour-image", className="plot", role="img", **labelled(words(film(at), 0)),
                    ),
                    _controls(),
                    html.P(id="tour-words", className="words"),
                    html.Div(id="tour-legend"),
                ],
                className="card",
            ),
            html.Div(_question(at), className="card"),
            _ways_on(at),
            dcc.Store(id="tour-stop", data=at),
            dcc.Store(id="tour-step", data=0),
            dcc.Interval(id="tour-clock", interval=_PLAY_MS, disabled=True),
        ],
        gap="md",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """The picture moves, the question answers."""
    _register_moves(app)
    _register_picture(app)
    _register_question(app)


def _register_moves(app: Dash) -> None:
    @app.callback(
        Output("tour-step", "data"),
        Output("tour-clock", "disabled"),
        Output("tour-play", "children"),
        Input("tour-back", "n_clicks"),
        Input("tour-on", "n_clicks"),
        Input("tour-play", "n_clicks"),
        Input("tour-clock", "n_intervals"),
        State("tour-step", "data"),
        State("tour-stop", "data"),
        State("tour-clock", "disabled"),
        prevent_initial_call=True,
    )
    def _move(back: Any, on: Any, play: Any, tick: Any, step: int, stop: int, paused: bool) -> Any:
        last = len(film(_stop_at(stop)).frames) - 1
        trigger = ctx.triggered_id
        if trigger == "tour-play":
            starting = paused
            return (0 if starting and step >= last else no_update), not starting, "Pause" if starting else "Play"
        if trigger == "tour-clock":
            following = min(step + 1, last)
            return following, following == last, "Play" if following == last else "Pause"
        moved = min(max(step + (1 if trigger == "tour-on" else -1), 0), last)
        return moved, True, "Play"


def _register_picture(app: Dash) -> None:
    @app.callback(
        Output("tour-picture", "figure"),
        Output("tour-picture", "style"),
        Output("tour-words", "children"),
        Output("tour-counter", "children"),
        Output("tour-image", "aria-label"),
        Output("tour-legend", "children"),
        Output("tour-back", "disabled"),
        Output("tour-on", "disabled"),
        Input("tour-step", "data"),
        Input("theme", "data"),
        State("tour-stop", "data"),
    )
    def _draw(step: int, theme: Any, stop: int) -> Any:
        run, look = film(_stop_at(stop)), look_named(theme)
        shown = min(max(int(step), 0), len(run.frames) - 1)
        figure = picture(run, shown, look)
        style = {"height": f"{figure['layout']['height']}px"}
        said = words(run, shown)
        ends = shown == 0, shown == len(run.frames) - 1
        return figure, style, said, counter(run, shown), said, _legend(theme), *ends


def _register_question(app: Dash) -> None:
    @app.callback(
        Output("tour-feedback", "children"),
        Input("tour-answer", "value"),
        State("tour-stop", "data"),
        prevent_initial_call=True,
    )
    def _answer(value: str | None, stop: int) -> Any:
        if value is None:
            return no_update
        at = _stop_at(stop)
        run, question = film(at), STOPS[at].question
        if value == question.answer(run):
            return dmc.Alert(question.because(run), title="Right.", color="teal", variant="light")
        return dmc.Alert("Play the run above and look again.", title="Not quite.", color="orange", variant="light")


def _stops(at: int) -> Any:
    links = [
        dcc.Link(f"{number + 1} {stop.title}", href=f"{PATH}?stop={number + 1}",
                 className="nav-link here" if number == at else "nav-link")
        for number, stop in enumerate(STOPS)
    ]  # fmt: skip
    return html.Nav(links, style={"display": "flex", "flexWrap": "wrap"}, **labelled("Stops"))


def _controls() -> Any:
    return dmc.Group(
        [
            dmc.Button("Back", id="tour-back", variant="default", size="sm"),
            dmc.Button("Play", id="tour-play", size="sm", w=86),
            dmc.Button("Next", id="tour-on", variant="default", size="sm"),
            dmc.Text(id="tour-counter", size="sm", style={"fontVariantNumeric": "tabular-nums"}),
        ],
        gap="xs",
        mt="xs",
    )


def _question(at: int) -> list[Any]:
    question = STOPS[at].question
    choices = dmc.Group([dmc.Radio(label=choice, value=choice) for choice in question.choices], gap="lg", mt="xs")
    return [
        dmc.RadioGroup(choices, id="tour-answer", label=question.ask, size="md"),
        html.Div(id="tour-feedback", role="status", style={"marginTop": "10px"}),
    ]


def _ways_on(at: int) -> Any:
    before = dcc.Link("← " + STOPS[at - 1].title, href=f"{PATH}?stop={at}") if at else html.Span()
    last = at + 1 == len(STOPS)
    after = html.Span() if last else dcc.Link(STOPS[at + 1].title + " →", href=f"{PATH}?stop={at + 2}")
    what_if = dcc.Link(dmc.Button("Try it in What-if", id="tour-what-if", variant="light"), href=STOPS[at].link())
    return dmc.Group([before, what_if, after], justify="space-between")


def _legend(theme: Any) -> Any:
    look = look_named(theme)
    return dmc.Group([dmc.Group([_swatch(kind, look.kinds[kind]), dmc.Text(text, size="xs", c="dimmed")], gap=6)
                      for kind, text in _LEGEND], gap="md", mt=6)  # fmt: skip


def _swatch(kind: str, colour: str) -> Any:
    hatch = f"repeating-linear-gradient(135deg, {colour} 0 1.5px, transparent 1.5px 4px)"
    fill = {"background": hatch, "border": f"1px solid {colour}"} if kind == "padding" else {"background": colour}
    return html.Span(
        style={"width": "12px", "height": "12px", "display": "inline-block", "boxSizing": "border-box", **fill}
    )


def _stop_of(text: Any) -> int:
    """The stop of an address, from 0; the first where it names none."""
    return _stop_at(int(text) - 1) if str(text).isascii() and str(text).isdigit() and len(str(text)) < 4 else 0


def _stop_at(number: Any) -> int:
    return number if isinstance(number, int) and 0 <= number < len(STOPS) else 0
