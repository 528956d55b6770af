"""What the pictures of a step show, in sentences."""

from __future__ import annotations

from .figures import MOST_ROWS, blocks_drawn, cache_blocks
from .masks import keys_a_column, ragged_shown, rectangle_shown
from .step import StepFacts


def summary(facts: StepFacts) -> str:
    """The step in one sentence."""
    counts = facts.counts
    return (
        f"{_many(counts.tokens, 'token')} of {_many(counts.requests, 'request')}: a flat row of {counts.tokens:,}, "
        f"or a rectangle of {counts.rows:,} × {counts.cols:,} = {_many(counts.cells, 'cell')}, "
        f"{counts.padding:,} of them padding ({counts.padding_share:.0%})."
    )


def layout_note(facts: StepFacts) -> str:
    """In which of the two shapes the step ran; empty where it is typed in."""
    if facts.words is not None:
        return ""
    if facts.layout == "padded":
        return "This step ran as a rectangle; the flat row is the same step without its padding."
    return "This step ran as a flat row; the rectangle is the same step padded."


def flat_row(facts: StepFacts) -> str:
    """The flat row, for those who do not see it."""
    parts = [f"{_called(request.name)} has {_many(request.scheduled, 'row')}" for request in facts.requests[:8]]
    more = len(facts.requests) - len(parts)
    tail = f", and {_many(more, 'more request')}" if more else ""
    graph = f"; {_many(facts.graph_rows, 'row')} of graph padding follow" if facts.graph_rows else ""
    return f"End to end: {', '.join(parts)}{tail}{graph}."


def vocabulary(facts: StepFacts) -> str:
    """Which rows reach the vocabulary, and which results are thrown away."""
    rows, dropped = (
        len(facts.requests),
        [_called(r.name) for r, kept in zip(facts.requests, facts.samples, strict=True) if not kept],
    )
    said = f"{rows:,} of {_many(facts.counts.tokens, 'row')} go on to the vocabulary: the last of each request."
    if not dropped:
        return said
    names = ", ".join(dropped[:4]) + (f" and {len(dropped) - 4} more" if len(dropped) > 4 else "")
    verb, whose = ("is", "its prompt goes") if len(dropped) == 1 else ("are", "their prompts go")
    return f"{said} The result of {names} {verb} computed and discarded: {whose} on in a later step."


def cache(facts: StepFacts) -> str:
    """Where K/V is written and read."""
    blocks = len(cache_blocks(facts))
    return (
        f"{_many(facts.counts.tokens, 'new K/V entry', 'new K/V entries')} written (full colour), "
        f"{int(facts.computed.sum()):,} read from earlier steps (pale), in {_many(blocks, 'block')} of "
        f"{_many(facts.block_size, 'token')}."
    )


def ragged_mask(facts: StepFacts) -> str:
    """The flat mask's figures."""
    counts = facts.counts
    return (
        f"{counts.tokens:,} rows × {counts.keys:,} keys = {counts.flat_mask:,} pairs; {counts.pairs:,} are computed, "
        f"{counts.flat_masked_share:.0%} masked out, which kernels skip."
    )


def padded_mask(facts: StepFacts) -> str:
    """The rectangle's figures."""
    counts = facts.counts
    return (
        f"{counts.rows:,} × {counts.cols:,} cells × {counts.width:,} keys = {counts.padded_mask:,} pairs; the same "
        f"{counts.pairs:,} are needed, {counts.padded_masked_share:.0%} masked out. "
        f"{counts.padding:,} of {_many(counts.cells, 'cell')} are padding ({counts.padding_share:.0%})."
    )


def drawn_rows(facts: StepFacts) -> str:
    """What of the flat row is drawn; empty when all is."""
    total, shown = facts.counts.tokens, int(facts.first_tokens(MOST_ROWS).scheduled.sum())
    return f"Drawn: the first {shown:,} of {total:,} rows." if shown < total else ""


def drawn_cache(facts: StepFacts) -> str:
    """What of the cache is drawn; empty when all is."""
    blocks, drawn = len(cache_blocks(facts)), len(blocks_drawn(facts))
    return f"Drawn: {drawn:,} of {blocks:,} blocks, first of all those written to." if drawn < blocks else ""


def drawn_ragged(facts: StepFacts) -> str:
    """What of the flat mask is drawn; empty when all is."""
    shown, counts = ragged_shown(facts).counts, facts.counts
    if (shown.tokens, shown.keys) == (counts.tokens, counts.keys):
        return _shared(shown.keys)
    return (
        f"Drawn: the first {shown.tokens:,} of {counts.tokens:,} rows, {shown.keys:,} of {counts.keys:,} keys. "
        f"{_shared(shown.keys)}"
    )


def drawn_rectangle(facts: StepFacts) -> str:
    """What of the rectangle is drawn; empty when all is."""
    shown, counts = rectangle_shown(facts).counts, facts.counts
    if (shown.rows, shown.cols) == (counts.rows, counts.cols):
        return _shared(shown.width)
    return (
        f"Drawn: {shown.rows:,} of {_many(counts.rows, 'row')}, cut to {shown.cols:,} of "
        f"{_many(counts.cols, 'column')}. {_shared(shown.width)}"
    )


def _shared(keys: int) -> str:
    group = keys_a_column(keys)
    return f"Each column of the picture stands for {group:,} keys." if group > 1 else ""


def _called(name: str) -> str:
    """A request's name in a sentence; a number says what it is."""
    return f"request {name}" if name.isdigit() else name


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
