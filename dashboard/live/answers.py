"""What a batchscope server answers about its trace, checked: what the run is, and pages of its tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from traces.schema import REQUESTS, Table
from traces.store import Rows

from .wire import FeedError, parse_json, rows_of


@dataclass(frozen=True, slots=True)
class Overview:
    """``/trace``.

    Attributes:
        run_id: of the run.
        running: more steps may come.
        meta: of the trace.
        counts: table -> rows it has.
        first_arrival_s: of the run, engine's clock; nan: nothing has arrived.
    """

    run_id: str
    running: bool
    meta: Mapping[str, Any]
    counts: Mapping[str, int]
    first_arrival_s: float

    @classmethod
    def of(cls, body: bytes) -> Overview:
        """From an answer's body. Raises FeedError."""
        told = parse_json(body)
        try:
            counts = {str(table): _whole(rows) for table, rows in told["rows"].items()}
            first = rows_of(REQUESTS, told["requests"]["rows"][:1])
            first_s = float(first["arrival_s"][0]) if len(first) else math.nan
            overview = cls(_name(told["run_id"]), told["running"] is True, dict(told["meta"]), counts, first_s)
            _ = [overview.counts[table] for table in ("steps", "spans", "requests", "gaps")]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise FeedError(
                "the server does not tell of its trace as batchscope does; is it of another version?"
            ) from None
        return overview


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a table: ``/trace/TABLE``; `total` is how many the table has in all."""

    run_id: str
    total: int
    rows: Rows

    @classmethod
    def of(cls, table: Table, body: bytes) -> Page:
        """From an answer's body. Raises FeedError."""
        told = parse_json(body)
        try:
            return cls.told(told["run_id"], table, told)
        except (KeyError, TypeError):
            raise FeedError(f"the server sent no page of {table.name}") from None

    @classmethod
    def told(cls, run_id: object, table: Table, told: Any) -> Page:
        """From a document. Raises FeedError, KeyError or TypeError."""
        return cls(_name(run_id), _whole(told["total"]), rows_of(table, told["rows"]))


@dataclass(frozen=True, slots=True)
class News:
    """``/trace/news``: how many steps there are, and a page of each table asked for."""

    run_id: str
    steps: int
    pages: Mapping[str, Page]

    @classmethod
    def of(cls, tables: Iterable[Table], body: bytes) -> News:
        """From an answer's body. Raises FeedError."""
        told = parse_json(body)
        try:
            run_id = _name(told["run_id"])
            pages = {table.name: Page.told(run_id, table, told["tables"][table.name]) for table in tables}
            return cls(run_id, _whole(told["steps"]), pages)
        except (KeyError, TypeError):
            raise FeedError("the server sent no news of its trace; is it of another version?") from None


def _whole(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(value)
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:80]
