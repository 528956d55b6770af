"""A step on the page: cards with its pictures, its tables and a sentence on each."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.look import Figure, Look

from . import figures, masks, words
from .aria import labelled
from .step import StepFacts
from .tables import request_table, tail_note, token_table

_GRAPH: Any = {"displayModeBar": False, "responsive": True}


def show(facts: StepFacts, look: Look) -> list[Any]:
    """All cards of a step."""
    return [
        _head(facts),
        _card("One flat row", "All tokens of all requests end to end. Dense layers treat each row by itself.",
              figures.flat_row(facts, look), "inspect-flat", words.flat_row(facts), words.drawn_rows(facts),
              words.vocabulary(facts)),
        _tensors(facts),
        _card("Where K/V lies", "Each new token's key and value go to one slot: block × block size + offset. "
              "Reads follow the block table.", figures.kv_map(facts, look), "inspect-cache", words.cache(facts),
              words.drawn_cache(facts)),
        html.Div(
            [
                _card("Attention over the flat row", "A token sees its own request up to itself, and nobody else.",
                      masks.ragged_mask_figure(facts, look), "inspect-ragged", words.ragged_mask(facts),
                      words.drawn_ragged(facts)),
                _card("Attention over the rectangle", "Every row is as long as the longest; grey lines are padding.",
                      masks.padded_mask_figure(facts, look), "inspect-padded", words.padded_mask(facts),
                      words.drawn_rectangle(facts)),
            ],
            className="cards",
        ),
    ]  # fmt: skip


def _head(facts: StepFacts) -> Any:
    lines = [words.summary(facts), words.layout_note(facts), *facts.notes]
    return html.Div(
        [html.H2(facts.title), html.P(lines[0]), html.P(" ".join(lines[1:]), className="words")], className="card"
    )


def _tensors(facts: StepFacts) -> Any:
    return html.Div(
        [
            _title("The seven tensors", "They describe the step completely: three have a value a token, three a value "
                   "a request, and block_table has a row a request."),
            dmc.Stack([token_table(facts), request_table(facts)], gap="md", mt="xs"),
            html.P(tail_note(facts), className="words"),
        ],
        className="card",
    )  # fmt: skip


def _card(title: str, question: str, figure: Figure, key: str, *sentences: str) -> Any:
    said = " ".join(sentence for sentence in sentences if sentence)
    graph = dcc.Graph(id=key, figure=figure, config=_GRAPH, style={"height": f"{figure['layout']['height']}px"})
    # the sentences below say what the picture shows; a screen reader need not go through its marks
    return html.Div(
        [_title(title, question), html.Div(graph, className="plot", role="img", **labelled(said)),
         html.P(said, className="words")],
        className="card",
    )  # fmt: skip


def _title(title: str, question: str) -> Any:
    return html.Div([html.H3(title), html.P(question)], className="card-head")
