"""The seven tensors as tables that line up: those with a value a token, and those with a value a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from dash import html

from .aria import labelled
from .figures import MOST_ROWS, colour_of, ink_on
from .step import UNKNOWN, StepFacts

MOST_REQUESTS = 64
"""Requests whose rows of the block table are written out."""
MOST_BLOCKS = 32
_CELL = {"padding": "3px 8px", "textAlign": "right", "whiteSpace": "nowrap", "minWidth": "22px",
         "borderBottom": "1px solid var(--line)"}  # fmt: skip
_HEAD = {**_CELL, "textAlign": "left", "position": "sticky", "left": 0, "background": "var(--card)", "zIndex": 1}
_SIDE = {"color": "var(--muted)", "fontWeight": 400, "fontSize": "0.8rem"}
_SCROLL = {"overflowX": "auto", "maxWidth": "100%"}


def token_table(facts: StepFacts) -> Any:
    """Tensors with a value for each row of the flat batch, a column a row."""
    shown = facts.first_tokens(MOST_ROWS)
    flat, count = shown.flat, int(shown.scheduled.sum())
    owners = [colour_of(row) for row in flat.req_indices.tolist()]
    sampled = set(flat.logits_indices[: len(shown.requests) - shown.cut].tolist())
    total = facts.counts.tokens + facts.graph_rows
    ids = [shown.word(*place) for place in _places(shown)] if shown.words is None else flat.input_ids[:count].tolist()
    texts = [shown.word(*place) for place in _places(shown)]
    lines = [
        _line("row", "", range(count)),
        _line("request", "", [shown.requests[row].name for row in flat.req_indices.tolist()], owners),
        *([] if texts == [str(token) for token in ids] else [_line("text", "", texts)]),
        _line("input_ids", _kind(flat.input_ids, total), ids),
        _line("positions", _kind(flat.positions, total), flat.positions[:count].tolist()),
        _line("slot_mapping", _kind(flat.slot_mapping, total), flat.slot_mapping[:count].tolist()),
        _line("to the vocabulary", "", ["▲" if row in sampled else "" for row in range(count)]),
    ]
    return _table(lines, "Tensors with a value a token")


def request_table(facts: StepFacts) -> Any:
    """Tensors with a value for each request, a row a request."""
    count = min(len(facts.requests), MOST_REQUESTS)
    flat = facts.flat
    heads = (
        ("request", ""),
        ("seat", ""),
        ("query_start_loc", _kind(flat.query_start_loc)),
        ("seq_lens", _kind(flat.seq_lens)),
        ("logits_indices", _kind(flat.logits_indices)),
        ("block_table", _kind(flat.block_table)),
    )
    body = [html.Tr(_request_cells(facts, row)) for row in range(count)]
    head = html.Tr([html.Th([name, html.Br(), html.Span(kind, style=_SIDE)], style={**_CELL, "textAlign": "left"})
                    for name, kind in heads])  # fmt: skip
    table = html.Table([html.Thead(head), html.Tbody(body)], style={"borderCollapse": "collapse"},
                       **labelled("Tensors with a value a request"))  # fmt: skip
    return html.Div(table, style=_SCROLL)


def tail_note(facts: StepFacts) -> str:
    """What the tables leave out or fill up."""
    flat, requests = facts.flat, len(facts.requests)
    notes = [f"query_start_loc ends at {int(flat.query_start_loc[requests]):,}"]
    spare = facts.num_slots - requests
    if spare:
        notes.append(f"and repeats it for {spare:,} other seat{'s' if spare > 1 else ''}")
    said = [" ".join(notes) + ".", "Entries 0 of block_table are the null block, which fills rows up."]
    if facts.words is None:
        said.append(f"Token ids of this run were not kept ({UNKNOWN}).")
    if requests > MOST_REQUESTS:
        said.append(f"Written out: the first {MOST_REQUESTS} of {requests:,} requests.")
    if flat.block_table.shape[1] > MOST_BLOCKS:
        said.append(f"Of each request its first {MOST_BLOCKS} of up to {flat.block_table.shape[1]:,} blocks.")
    return " ".join(said)


def _request_cells(facts: StepFacts, row: int) -> list[Any]:
    flat = facts.flat
    start, end = int(flat.query_start_loc[row]), int(flat.query_start_loc[row + 1])
    blocks = flat.block_table[row, :MOST_BLOCKS].tolist()
    colour = colour_of(row)
    plain = [str(facts.slots[row]), f"{start:,} to {end:,}", f"{int(flat.seq_lens[row]):,}",
             f"{int(flat.logits_indices[row]):,}"]  # fmt: skip
    name = html.Td(facts.requests[row].name, style={**_CELL, "background": colour, "color": ink_on(colour)})
    row_of_table = html.Td("  ".join(map(str, blocks)), style={**_CELL, "textAlign": "left", "whiteSpace": "pre"})
    return [name, *(html.Td(text, style=_CELL) for text in plain), row_of_table]


def _places(facts: StepFacts) -> list[tuple[int, int]]:
    """(request, position) of every row."""
    return list(zip(facts.flat.req_indices.tolist(), facts.flat.positions.tolist(), strict=False))


def _line(name: str, kind: str, values: Sequence[Any], colours: Sequence[str] = ()) -> Any:
    painted = [{**_CELL, "background": colour, "color": ink_on(colour)} for colour in colours]
    cells = [html.Td(str(value), style=painted[at] if painted else _CELL) for at, value in enumerate(values)]
    return html.Tr([html.Th([name, html.Br() if kind else "", html.Span(kind, style=_SIDE)], style=_HEAD), *cells])


def _kind(array: npt.NDArray[Any], length: int | None = None) -> str:
    """Type and shape; `length` is that of the whole step's, where the array is a part."""
    shape = array.shape if length is None else (length,)
    return f"{array.dtype.name} ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _table(lines: list[Any], label: str) -> Any:
    table = html.Table(html.Tbody(lines), style={"borderCollapse": "collapse"}, **labelled(label))
    return html.Div(table, style=_SCROLL)
