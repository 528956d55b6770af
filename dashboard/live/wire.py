"""What an engine sends: server-sent events, and rows of tables as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from traces.schema import CODES, Table
from traces.store import Rows

MOST_EVENT_BYTES = 1 << 20
"""A step's event has about 800 bytes; whoever sends a megabyte without an end is no engine of ours."""


class FeedError(Exception):
    """The other side is not there, or sends what cannot be; `str(error)` is the sentence to show."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its name (``message`` unless given) and its data."""

    name: str
    data: bytes


class EventParser:
    """Cuts a byte stream into events (https://html.spec.whatwg.org/multipage/server-sent-events.html, with the line
    ends that our server writes). Made for thousands a second: libraries that go line by line take ten times as long.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Events that are whole now. Raises FeedError when one does not end."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise FeedError("the server sent an event without end; expected steps of a batchscope engine")
        return [event for event in map(_event, blocks) if event is not None]


def _event(block: bytes) -> Event | None:
    name, data = "message", None
    for line in block.split(b"\n"):
        if line.startswith(b"data: "):
            data = line[6:]
        elif line.startswith(b"event: "):
            name = line[7:].decode("utf-8", "replace")
    return None if data is None else Event(name, data)  # a comment keeps the connection, and says nothing


def parse_json(data: bytes) -> Any:
    """A document. Raises FeedError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise FeedError("the server's answer is no JSON; expected the trace of a batchscope engine") from None


def rows_of(table: Table, records: Sequence[Any]) -> Rows:
    """Records of the server as rows, ``(n,)``: codes as numbers, nan for null. Raises FeedError."""
    take, coded, floats = _plan(table)
    rows = np.empty(len(records), dtype=table.dtype)
    try:
        for index, record in enumerate(records):
            values = list(take(record))
            for place, numbers in coded:
                values[place] = numbers[values[place]]
            for place in floats:
                if values[place] is None:
                    values[place] = math.nan
            rows[index] = tuple(values)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise FeedError(f"the server sent rows that are no {table.name} of a step trace") from None
    return rows


@cache
def _plan(table: Table) -> tuple[itemgetter[Any], list[tuple[int, dict[str, int]]], list[int]]:
    """How to take a record apart: its values in order, places of codes with their numbers, places of floats."""
    coded = [
        (place, {word: number for number, word in enumerate(CODES[name])})
        for place, name in enumerate(table.names)
        if name in CODES
    ]
    floats = [place for place, column in enumerate(table.columns) if column.code == "d"]
    return itemgetter(*table.names), coded, floats
