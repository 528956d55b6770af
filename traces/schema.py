"""The step trace's tables: columns, types, units and codes, written down once."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scheduler.plan import PADDING_CAUSES, WAIT_REASONS
from scheduler.request import FinishReason

SCHEMA_VERSION = 1

SPAN_KINDS = ("queued", "prefill", "decode", "preempted", "padding")
"""What a request does in a span; ``padding`` is a row that has ended and burns on until its batch ends."""
QUEUED, PREFILL, DECODE, PREEMPTED, PADDING = range(5)

FINISH_REASONS = ("none", *(reason.value for reason in FinishReason))
"""``none``: the request had not ended when the trace did."""

PLAN_EVENTS = ("arrived", "aborted", "joined", "left", "preempted", "row", "dropped", "finished", "steady")
"""Lines of the plan log. ``steady`` stands where the number of rows of the steady prefix changes."""
ARRIVED, ABORTED, JOINED, LEFT, LOST_SEAT, ROW, DROPPED, FINISHED, STEADY = range(9)

CODES: dict[str, tuple[str, ...]] = {
    "wait_reason": WAIT_REASONS,
    "kind": SPAN_KINDS,
    "finish_reason": FINISH_REASONS,
    "event": PLAN_EVENTS,
}
"""Column -> the names of its codes 0, 1, 2, ..."""

PADDING_COLUMNS: dict[str, str] = {cause: f"padding_{cause.replace('-', '_')}" for cause in PADDING_CAUSES}
"""Cause of padded rows -> its column in `steps`. Padding of the context is counted apart: it adds no row."""

_NUMPY_TYPES = {"q": "<i8", "d": "<f8", "i": "<i4", "h": "<i2"}
_WORDS = {"q": "int64", "d": "float64", "i": "int32", "h": "int16"}


@dataclass(frozen=True)
class Column:
    """One column: its name, its `struct` letter and what it holds (with the unit)."""

    name: str
    code: str
    meaning: str

    @property
    def type(self) -> str:
        """The type in words, as pyarrow and numpy call it."""
        return _WORDS[self.code]


@dataclass(frozen=True)
class Table:
    """One table; while a trace is recorded, a file of fixed-width little-endian rows without gaps between fields."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in file order."""
        return [column.name for column in self.columns]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The row as numpy reads it."""
        return np.dtype([(column.name, _NUMPY_TYPES[column.code]) for column in self.columns])

    @cached_property
    def packer(self) -> struct.Struct:
        """The row as `struct` writes it."""
        return struct.Struct("<" + "".join(column.code for column in self.columns))


def _table(name: str, text: str) -> Table:
    """A table from lines of ``name code meaning``."""
    lines = [line.split(maxsplit=2) for line in text.strip().splitlines()]
    return Table(name, tuple(Column(*parts) for parts in lines))


STEPS = _table(
    "steps",
    """
    step                 q  number of the step, from 0
    t_start_s            d  when it began, seconds on the executor's clock
    t_end_s              d  when its results were in, seconds
    device_s             d  device time, seconds
    host_s               d  host time, seconds
    padding_s            d  its cost less its cost without the padding, seconds
    context_tokens       q  sum over scheduled requests of the KV positions they hold after the step
    padding_context      q  KV positions read or stored for padding only; these are no rows
    decode_context       q  sum over decode rows of the KV positions each reads, padding included
    prefill_context      q  sum over prefilling requests of the KV positions they end with
    prefill_pairs        q  sum over prefill rows of the positions each attends to
    slots_busy           i  seats taken, by rows too that have ended but are held with their batch
    slots_total          i  seats
    running              i  unfinished requests in seats
    waiting              i  requests waiting
    wait_reason          i  why the head of the queue waits (code)
    prefill_tokens       i  prompt tokens computed for the first time
    decode_tokens        i  output tokens computed for the first time
    recomputed_tokens    i  tokens computed again after a preemption
    cached_tokens        i  prefix-cache hits of the requests admitted in this step, not computed
    computed_tokens      i  rows run through the dense layers, padding included
    padding_prompt       i  padded rows that fill prompts up to the longest
    padding_finished_row i  padded rows of requests that have ended while their batch goes on
    padding_graph        i  padded rows up to the next captured graph size
    padding_overrun      i  rows of requests whose end was not known yet when the step was planned
    logits_rows          i  rows through the LM head
    sampled              i  rows whose sampled token is kept
    num_reqs             i  requests with rows in the step
    rows                 i  rows of the batch as it is laid out (ragged: its requests)
    cols                 i  columns of the batch as it is laid out (ragged: its longest row)
    decode_rows          i  decode rows, padded ones included
    prefill_rows         i  prefill rows, padded ones included
    blocks_used          i  KV blocks in use (reference count > 0)
    blocks_cached        i  KV blocks kept only because their contents may be wanted again
    blocks_total         i  KV blocks that can be used
    admitted             i  requests that gained a seat when the step was planned
    preempted            i  requests that lost their seat when the step was planned
    finished             i  requests that ended with the step's results
    """,
)

SPAN_EVENTS = _table(
    "spans",
    """
    step    q  first step of the span (open) or its last (close)
    time_s  d  when, seconds
    request i  the request's number
    slot    i  its seat; -1: none
    tokens  i  close: tokens the span computed
    kind    h  what the request does (code)
    open    h  1: the span opens, 0: it closes
    """,
)

SPANS = _table(
    "spans",
    """
    request    i  the request's number
    slot       i  its seat; -1: none
    kind       h  what the request does (code)
    first_step q  first step of the span
    last_step  q  last step of the span; first_step - 1 where it lasted no whole step
    tokens     i  tokens computed in it; 0 for queued, preempted and padding
    start_s    d  when it began, seconds
    end_s      d  when it ended, seconds; nan: it had not ended when the trace did
    """,
)

REQUESTS = _table(
    "requests",
    """
    request       i  the request's number, from 0 in order of arrival at the scheduler
    arrival_s     d  when it reached the server, seconds
    queued_s      d  when it was handed to the scheduler, seconds
    scheduled_s   d  start of the step that first gave it a seat, seconds; nan: never
    first_token_s d  when its first token was delivered, seconds; nan: never
    finished_s    d  when it ended, seconds; nan: never
    prompt_tokens i  tokens of its prompt
    output_tokens i  tokens delivered
    cached_tokens i  prefix-cache hits at its first admission, tokens
    preemptions   i  how often it lost its seat
    finish_reason i  why it ended (code)
    """,
)

GAPS = _table(
    "gaps",
    """
    step  q  the step that delivered the tokens
    gap_s d  time since the delivery before, seconds
    count i  how many requests had this gap
    """,
)

PLANS = _table(
    "plans",
    """
    step      q  the step whose plan this is about
    request   i  the request's number
    slot      i  its seat
    computed  i  row: tokens computed before
    scheduled i  row: tokens scheduled; steady: rows of the steady prefix from this step on
    event     h  what the line says (code)
    samples   h  row: 1 when it samples a token
    """,
)

BLOCKS = _table(
    "blocks",
    """
    step    q  the step whose plan handed the block out
    request i  who got it
    logical i  its place in the request's block table
    block   i  block id
    """,
)

TOKENS = _table(
    "tokens",
    """
    time_s  d  when a token was delivered, seconds
    request i  to whom
    """,
)

RECORDED = {table.name: table for table in (STEPS, SPAN_EVENTS, REQUESTS, GAPS, PLANS, BLOCKS, TOKENS)}
"""Tables as they are recorded, each in ``NAME.rows``."""
READABLE = {table.name: table for table in (STEPS, SPANS, REQUESTS, GAPS, PLANS, BLOCKS, TOKENS)}
"""Tables as readers see them; `spans` are whole, the rest is as recorded."""


def table_named(name: str) -> Table:
    """The readable table of this name; raises KeyError."""
    return READABLE[name]
