"""`/trace`: the step trace while it grows, for dashboards: its meta, its tables in pages, its steps as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse, Response

from traces.schema import RECORDED
from traces.store import META, is_locked, read_meta

from .errors import ApiError, invalid
from .service import service_of
from .sse import EventStream, event
from .tail import TableTail

router = APIRouter(prefix="/trace")

POLL_S = 0.1
"""How often a stream looks for new steps when it has told all. Each look costs the engine's process a fifth of a
millisecond."""
PING_S = 15.0
"""An idle stream says something that often, so that proxies keep it and a dead client is noticed."""
BATCH = 64
"""Steps for one write: so many are in memory for a client, however slow it is."""
MOST_ROWS = 10_000
"""Largest page."""

From = Annotated[int, Query(alias="from", ge=0, le=2**40)]
Count = Annotated[int, Query(ge=0, le=2**40)]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]


@router.get("")
async def overview(request: Request, offset: Annotated[int, Query(ge=0, le=2**40)] = 0, limit: Limit = 100) -> Response:
    """What the run is, how many rows its tables have, and a page of requests."""
    folder = service_of(request).engine.trace_path
    with _open(folder, "requests", offset) as tail:
        page = _page(tail, limit)
    counts = {table: _count(folder, table) for table in ("steps", "spans", "requests", "gaps", "plans", "blocks")}
    return JSONResponse({
        "run_id": service_of(request).run_id, "path": str(folder), "running": not _ended(folder),
        "meta": read_meta(folder), "rows": counts, "requests": page,
    })  # fmt: skip


@router.get("/requests")
async def requests(request: Request, start: From = 0, limit: Limit = 1000) -> Response:
    """Rows of requests from a given one on: one when a request arrives, another when it ends."""
    return _table(request, "requests", start, limit)


@router.get("/spans")
async def spans(request: Request, start: From = 0, limit: Limit = 1000) -> Response:
    """Events that open and close spans, from a given one on."""
    return _table(request, "spans", start, limit)


@router.get("/gaps")
async def gaps(request: Request, start: From = 0, limit: Limit = 1000) -> Response:
    """Times between deliveries, from a given row on."""
    return _table(request, "gaps", start, limit)


@router.get("/news")
async def news(
    request: Request, spans: Count = 0, requests: Count = 0, gaps: Count = 0, limit: Limit = 1000
) -> Response:  # fmt: skip
    """What has come since, in one answer: a page of each of these tables from a given row on, and how many steps."""
    service = service_of(request)
    folder, tables = service.engine.trace_path, {}
    steps = _count(folder, "steps")
    for table, start in (("spans", spans), ("requests", requests), ("gaps", gaps)):
        with _open(folder, table, start) as tail:
            tables[table] = _page(tail, limit)
    return JSONResponse({"run_id": service.run_id, "steps": steps, "tables": tables})


@router.get("/steps")
async def steps(request: Request, start: From = 0, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """All steps from a given one on, then every step as it is recorded; an `end` event when the recording ends."""
    folder = service_of(request).engine.trace_path
    tail = _open(folder, "steps", start if last_event_id is None else _after(last_event_id))
    return EventStream(_follow(folder, tail), tail.close)


def _after(last_event_id: str) -> int:
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 12:
        raise invalid(f"Last-Event-ID is {last_event_id[:40]!r}; expected the number of a step", "Last-Event-ID")
    return int(last_event_id) + 1


async def _follow(folder: Path, tail: TableTail) -> AsyncGenerator[bytes, None]:
    told_s = time.monotonic()
    while True:
        ended = _ended(folder)  # asked first: what was written before the end is read below
        rows = tail.read(BATCH)
        if rows:
            yield b"".join([event(row, event_id=row["step"]) for row in rows])
        elif ended:
            yield event({"steps": len(tail)}, name="end")
            return
        elif time.monotonic() - told_s > PING_S:
            yield b": nothing new\n\n"
        else:
            await asyncio.sleep(POLL_S)
            continue
        told_s = time.monotonic()


def _ended(folder: Path) -> bool:
    """Whether nothing more will be written; the lock outlives that by the making of Parquet, a killed recorder not."""
    return not is_locked(folder) or _closed(folder, (folder / META).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _closed(folder: Path, written_ns: int) -> bool:
    """What its meta says, which is only read when it was written anew: a stream asks ten times a second."""
    return bool(read_meta(folder).get("closed"))


def _table(request: Request, table: str, start: int, limit: int) -> Response:
    service = service_of(request)
    with _open(service.engine.trace_path, table, start) as tail:
        page = _page(tail, limit)
    # told outright: FastAPI would walk through every number first, in the way of the engine
    return JSONResponse({"run_id": service.run_id, **page})


def _page(tail: TableTail, limit: int) -> dict[str, Any]:
    start = tail.next
    rows = tail.read(limit)
    return {"from": start, "next": tail.next, "total": len(tail), "rows": rows}


def _count(folder: Path, table: str) -> int:
    assert table in RECORDED
    with _open(folder, table, 0) as tail:
        return len(tail)


def _open(folder: Path, table: str, start: int) -> TableTail:
    try:
        return TableTail(folder, table, start)
    except FileNotFoundError:
        raise ApiError(503, "the recording has ended", code="stopped") from None
