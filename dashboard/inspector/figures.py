"""Pictures of a step: the flat row and the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.look import Figure, Look, axis, hatched, layout
from dashboard.panels.frame import plain
from scheduler.batch import BatchRequest

from .step import StepFacts

REQUEST_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""One a request, in turn: Okabe and Ito's colours (https://jfly.uni-koeln.de/color/) but for black."""
MOST_ROWS = 256
"""Rows of a flat batch, or cells of a rectangle, that are drawn."""
MOST_BLOCKS = 24
MOST_CELLS_OF_CACHE = 4_096
_LEGIBLE = {"mode": "hide", "minsize": 8}
"""Text in cells has one size, and goes where it would be smaller."""
_TEXT_ROWS = 48
"""Beyond so many cells side by side their text would not be legible."""


def colour_of(row: int) -> str:
    """The colour of a request, by its place in the step."""
    return REQUEST_COLOURS[row % len(REQUEST_COLOURS)]


def flat_row(facts: StepFacts, look: Look) -> Figure:
    """All tokens of the step end to end, one colour a request; triangles mark the rows that reach the vocabulary."""
    shown = facts.first_tokens(MOST_ROWS)
    texts = _row_texts(shown)
    hover = _row_hovers(shown)
    data = [
        _bars(rows, [texts[at] for at in rows], [hover[at] for at in rows], colour_of(row), request.name, look)
        for row, request in enumerate(shown.requests)
        for rows in [_rows_of(shown, row)]
    ]  # fmt: skip
    if shown.graph_rows:
        data.append(_graph_bars(shown, look))
    data += _vocabulary_marks(shown, look)
    total = int(shown.scheduled.sum()) + shown.graph_rows
    return {
        "data": data,
        "layout": layout(
            look, height=128, showlegend=False, barmode="overlay", dragmode=False, uniformtext=_LEGIBLE,
            margin={"l": 8, "r": 8, "t": 8, "b": 30},
            xaxis=axis(look, range=[0, max(total, 1)], showgrid=False, fixedrange=True, **_row_ticks(total)),
            yaxis=axis(look, range=[-0.75, 1], visible=False, fixedrange=True),
        ),
    }  # fmt: skip


def kv_map(facts: StepFacts, look: Look) -> Figure:
    """Blocks × offsets: which cell holds whose K/V; full colour is written in this step, pale is read."""
    shown = blocks_drawn(facts)
    lane = {block: at for at, block in enumerate(shown)}
    data: list[dict[str, Any]] = []
    for row, request in enumerate((*facts.requests, *facts.burning)):
        data += _cache_bars(facts, request, lane, colour_of(row), look)
    return {
        "data": data,
        "layout": layout(
            look, height=58 + 26 * len(shown), showlegend=False, barmode="overlay", dragmode=False, bargap=0.12,
            uniformtext=_LEGIBLE, margin={"l": 70, "r": 8, "t": 8, "b": 42},
            shapes=[_rect(0, facts.block_size, at - 0.44, at + 0.44, look) for at in range(len(shown))],
            xaxis=axis(look, range=[0, facts.block_size], fixedrange=True, showgrid=False,
                       **ticks(facts.block_size), title=axis_title("offset in the block", look)),
            yaxis=axis(look, range=[len(shown) - 0.5, -0.5], fixedrange=True, showgrid=False, tickmode="array",
                       tickvals=list(range(len(shown))), ticktext=[f"block {block}" for block in shown]),
        ),
    }  # fmt: skip


def cache_blocks(facts: StepFacts) -> list[int]:
    """The blocks that the step's requests hold, by number."""
    return sorted({int(b) for request in (*facts.requests, *facts.burning) for b in request.block_table})


def blocks_drawn(facts: StepFacts) -> list[int]:
    """As many of them as fit a picture, by number; those that the step writes to come before others."""
    most = max(1, min(MOST_BLOCKS, MOST_CELLS_OF_CACHE // facts.block_size))
    written = [block for request in facts.requests for block in _written(facts, request)]
    return sorted(list(dict.fromkeys([*written, *cache_blocks(facts)]))[:most])


def _row_texts(facts: StepFacts) -> list[str]:
    return [
        facts.word(row, request.computed + at)
        for row, request in enumerate(facts.requests)
        for at in range(request.scheduled)
    ]


def _row_hovers(facts: StepFacts) -> list[str]:
    flat, texts = facts.flat, _row_texts(facts)
    hovers = []
    for at, row in enumerate(flat.req_indices.tolist()):
        position, slot = int(flat.positions[at]), int(flat.slot_mapping[at])
        block, offset = divmod(slot, facts.block_size)
        hovers.append(
            f"row {at} of the flat row<br>request {plain(facts.requests[row].name)}, seat {facts.slots[row]}"
            f"<br>token {plain(texts[at])} at position {position}"
            f"<br>K/V to block {block}, offset {offset} (slot {slot})<br>attends to {position + 1:,} keys"
        )
    return hovers


def _rows_of(facts: StepFacts, row: int) -> range:
    starts = facts.flat.query_start_loc
    return range(int(starts[row]), int(starts[row + 1]))


def _bars(rows: range, texts: list[str], hovers: list[str], colour: str, name: str, look: Look) -> dict[str, Any]:
    return {
        "type": "bar", "x": [at + 0.5 for at in rows], "y": [1] * len(rows), "width": [1] * len(rows),
        "name": plain(name),
        "text": [plain(text) for text in texts] if rows.stop <= _TEXT_ROWS else None, "textposition": "inside",
        "insidetextanchor": "middle", "textangle": 0, "insidetextfont": {"color": ink_on(colour)},
        "hovertext": hovers, "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": colour, "line": {"width": 1 if rows.stop <= MOST_ROWS // 2 else 0, "color": look.card}},
    }  # fmt: skip


def _graph_bars(facts: StepFacts, look: Look) -> dict[str, Any]:
    total = int(facts.scheduled.sum())
    return {
        "type": "bar", "x": [total + at + 0.5 for at in range(facts.graph_rows)], "y": [1] * facts.graph_rows,
        "width": 1, "name": "graph padding", "marker": {"color": look.card, "pattern": hatched(look)},
        "hovertemplate": "a row of nobody, up to the next captured graph size<extra></extra>",
    }  # fmt: skip


def _vocabulary_marks(facts: StepFacts, look: Look) -> list[dict[str, Any]]:
    rows = facts.flat.logits_indices[: len(facts.requests) - facts.cut].tolist()
    says = ["its next token is sampled" if kept else "computed and discarded: its prompt goes on"
            for kept in facts.samples]  # fmt: skip
    return [{
        "type": "scatter", "mode": "markers", "x": [at + 0.5 for at in rows], "y": [-0.3] * len(rows),
        "marker": {"symbol": ["triangle-up" if kept else "triangle-up-open" for kept in facts.samples[: len(rows)]],
                   "size": 11, "color": look.ink},
        "hovertext": [f"row {at} goes on to the vocabulary<br>{says[i]}" for i, at in enumerate(rows)],
        "hovertemplate": "%{hovertext}<extra></extra>", "name": "to the vocabulary",
    }]  # fmt: skip


def _cache_bars(
    facts: StepFacts, request: BatchRequest, lane: dict[int, int], colour: str, look: Look
) -> list[dict[str, Any]]:
    """The cells that a request's K/V takes: pads, what is read, what is written."""
    pad = _pad(facts, request)
    start, end, size = pad + request.computed, pad + request.computed + request.scheduled, facts.block_size
    placed = [
        (place, lane[block], place % size)
        for at, block in enumerate(request.block_table)
        if block in lane
        for place in range(at * size, min((at + 1) * size, end))
    ]
    spans = (("padding", 0, pad, look.kinds["padding"]), ("read", pad, start, blend(colour, look.card, 0.3)),
             ("written", start, end, colour))  # fmt: skip
    return [
        _cells_of_cache([cell for cell in placed if first <= cell[0] < last], request, pad, says, shade, facts, look)
        for says, first, last, shade in spans
        if first < last
    ]


def _pad(facts: StepFacts, request: BatchRequest) -> int:
    """KV positions that lie before the request's own: pads, where the rectangle was really computed."""
    return request.pad if facts.layout == "padded" and facts.padding_side == "left" else 0


def _written(facts: StepFacts, request: BatchRequest) -> Sequence[int]:
    """The blocks that a request writes to in the step."""
    start = _pad(facts, request) + request.computed
    last = start + request.scheduled - 1
    return request.block_table[start // facts.block_size : last // facts.block_size + 1]


def _cells_of_cache(
    cells: Sequence[tuple[int, int, int]], request: BatchRequest, pad: int, says: str, shade: str, facts: StepFacts,
    look: Look,
) -> dict[str, Any]:  # fmt: skip
    marker: dict[str, Any] = {"color": shade, "line": {"width": 1, "color": look.card}}
    if says == "padding":
        marker["pattern"] = hatched(look)
    name, size = plain(request.name), facts.block_size
    return {
        "type": "bar", "orientation": "h", "width": 0.88,
        "base": [offset for _, _, offset in cells], "x": [1] * len(cells),
        "y": [at for _, at, _ in cells], "name": f"{name} {says}", "marker": marker,
        "text": ["" if says == "padding" else str(place - pad) for place, _, _ in cells] if size <= 32 else None,
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "insidetextfont": {"color": ink_on(shade)},
        "hovertext": [f"{name}: {_position(place, pad)}, {says}<br>block {request.block_table[place // size]}, "
                      f"offset {offset} (slot {request.block_table[place // size] * size + offset})"
                      for place, _, offset in cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip


def _position(place: int, pad: int) -> str:
    return f"position {place - pad}" if place >= pad else "left padding"


def ticks(cells: int) -> dict[str, Any]:
    """Ticks between cells: of few cells at whole numbers, of many where Plotly finds round ones."""
    if cells <= 64:
        return {"tick0": 0, "dtick": _tick(cells)}
    return {"nticks": 6, "tickangle": 0, "tickformat": ",d"}


def _row_ticks(total: int) -> dict[str, Any]:
    step = _tick(total)
    at = list(range(0, total, step))
    return {"tickmode": "array", "tickvals": [tick + 0.5 for tick in at], "ticktext": [str(tick) for tick in at]}


def _tick(cells: int) -> int:
    """Cells between two ticks: 1, 2, 4, 8, ... so that at most 16 stand side by side."""
    return 1 << max(0, (max(cells, 1) - 1).bit_length() - 4)


def axis_title(text: str, look: Look) -> dict[str, Any]:
    """A quiet title of an axis."""
    return {"text": text, "font": {"size": 11, "color": look.muted}, "standoff": 6}


def _rect(x0: float, x1: float, y0: float, y1: float, look: Look) -> dict[str, Any]:
    return {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "layer": "below", "fillcolor": look.kinds["free"],
            "line": {"width": 0}}  # fmt: skip


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on it (relative luminance of WCAG 2.1 against 0.179)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#111111" if luminance > 0.179 else "#ffffff"


def blend(colour: str, ground: str, share: float) -> str:
    """`share` of a colour over a ground, both ``#rrggbb``."""
    pairs = [(int(colour[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(over * share + under * (1 - share)):02x}" for over, under in pairs)
