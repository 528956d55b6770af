"""Following a batchscope server: its steps as they come, and what belongs to them, none lost and none doubled."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from traces.schema import GAPS, REQUESTS, SPAN_EVENTS, STEPS, Table

from .address import place, server_url
from .answers import News, Overview, Page
from .live_run import LiveRun
from .run_buffer import RunBuffer
from .state import FeedState, StateKind, reason_of, reason_of_status
from .wire import EventParser, FeedError, parse_json, rows_of

CAPACITY = 20_000
"""Steps held: over three minutes of a fast engine at 100 steps a second."""
POLL_S = 0.4
"""How often the other tables are asked for; what is shown is that old at most, and a round trip. Each request costs the
engine's process about a millisecond."""
PAGE = 1000
"""Rows asked for at once: a page of 10,000 would hold the server's loop for tenths of a second."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between two tries to connect; each pause is twice the one before."""
AGAIN_PAUSE_S = 0.01
"""Before going on at another place of the same server."""
PATIENCE_S = 2.0
"""How long the tables may fail while the stream of steps goes on."""
ENDED_PAUSE_S = 2.0
"""How often a server whose run has ended is asked whether there is another one."""
READ_WHOLE = 50_000
"""Span events up to which a table is read from its first row, when one attaches late."""
MOST_BYTES = 16 << 20
"""Of an answer; a page of 1,000 rows has a fifth of a megabyte."""
TIMEOUT = httpx.Timeout(10.0, read=40.0)
"""An idle stream says something every 15 s."""
FOLLOWED: tuple[Table, ...] = (SPAN_EVENTS, REQUESTS, GAPS)


class EngineFeed:
    """Follows the run of a batchscope server in a thread of its own until it is closed. A context manager.

    The last steps are held in memory; an engine that is started anew begins another run, and nothing of the two is
    mixed. The server reads its trace from disk for us, so that a slow reader never holds back the engine.

    Args:
        url: the server's address.
        api_key: what it asks for; None: nothing.
        capacity: steps held.

    Raises:
        UserError: the address is none.
    """

    def __init__(self, url: str, *, api_key: str | None = None, capacity: int = CAPACITY) -> None:
        self.url = server_url(url)
        self.place = place(self.url)
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._capacity = capacity
        self._lock = threading.Lock()
        self._buffer: RunBuffer | None = None
        self._status = "running"
        self._next: dict[str, int] = {}
        self._state = FeedState("connecting")
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed {self.place}", daemon=True)
        self._thread.start()
        self._begun.wait()

    def __enter__(self) -> EngineFeed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def state(self) -> FeedState:
        """How it fares."""
        with self._lock:
            return self._state

    def snapshot(self) -> LiveRun | None:
        """The run as it is now, cheap and never changed later; None before anything has come."""
        with self._lock:
            return None if self._buffer is None else self._buffer.snapshot(self._status)

    def counts(self) -> dict[str, int]:
        """Of this run: ``lost`` steps, that never came, and ``doubled`` ones, that came again and were left out."""
        with self._lock:
            buffer = self._buffer
            return {"lost": 0, "doubled": 0} if buffer is None else {"lost": buffer.lost, "doubled": buffer.doubled}

    def close(self) -> None:
        """Stop following; may be called twice. What was held can still be looked at."""
        if self._thread.is_alive() and self._main is not None:
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._follow())
        self._begun.set()
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            return  # closed
        finally:
            self._loop.close()

    async def _follow(self) -> None:
        pause_s = FIRST_PAUSE_S
        async with httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=TIMEOUT) as client:
            while True:
                before = self._progress()
                pause_s = await self._try(client, pause_s)
                if self._progress() != before and self.state.kind == "gone":
                    pause_s = FIRST_PAUSE_S
                await asyncio.sleep(pause_s)

    async def _try(self, client: httpx.AsyncClient, pause_s: float) -> float:
        """Follow as long as it goes; returns how long to wait before the next try, seconds."""
        try:
            await self._connect(client)
        except _AgainError:
            return AGAIN_PAUSE_S
        except FeedError as error:
            self._lost(str(error))
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._lost(reason_of(error, self.place))
        if self.state.kind == "ended":
            return ENDED_PAUSE_S
        return min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)

    async def _connect(self, client: httpx.AsyncClient) -> None:
        overview = await self._overview(client)
        if self.state.kind == "ended" and not self._is_news(overview):
            return
        buffer, first = await self._adopt(client, overview)
        after = {"last-event-id": str(first - 1)} if first else {}
        async with client.stream("GET", "/trace/steps", headers=after) as reply:
            _check(reply, self.place)
            if (await self._overview(client)).run_id != buffer.key:
                raise _AgainError  # started anew between two questions
            self._say("live")
            await _first_of(self._read_steps(reply, buffer), self._poll_tables(client, buffer))
        await self._finish(client, buffer)

    async def _read_steps(self, reply: httpx.Response, buffer: RunBuffer) -> None:
        """Until the recording ends. Raises FeedError when the connection ends before that."""
        parser = EventParser()
        async for chunk in reply.aiter_bytes():
            events = parser.feed(chunk)
            rows = rows_of(STEPS, [parse_json(event.data) for event in events if event.name == "message"])
            with self._lock:
                buffer.add_steps(rows)
            if any(event.name == "end" for event in events):
                return
            while buffer.last_step - buffer.whole > self._capacity // 2:  # never more than the tables can follow
                await asyncio.sleep(POLL_S / 20)
        raise FeedError(f"the connection to {self.place} was lost")

    async def _poll_tables(self, client: httpx.AsyncClient, buffer: RunBuffer) -> None:
        fine_s = time.monotonic()
        while True:
            try:
                steps = await self._poll_once(client, buffer)
                if steps - 1 - buffer.last_step > self._capacity:
                    raise _AgainError  # what is missing would be thrown away at once: go on with the newest
                fine_s = time.monotonic()
            except (httpx.HTTPError, FeedError):
                # a server that stops takes no new connections, while the stream still tells its last steps
                if time.monotonic() - fine_s > PATIENCE_S:
                    raise
            await asyncio.sleep(POLL_S)

    async def _poll_once(self, client: httpx.AsyncClient, buffer: RunBuffer) -> int:
        """Read all tables as far as they go now; returns how many steps the engine has run."""
        newest = buffer.last_step  # what belongs to it is written before it
        goal: dict[str, int] | None = None
        while True:
            news = await self._news(client, buffer.key)
            with self._lock:
                for table, page in news.pages.items():
                    buffer.add(table, page.rows)
                    self._next[table] += len(page.rows)
            goal = goal or {table: page.total for table, page in news.pages.items()}
            there = all(self._next[table] >= total for table, total in goal.items())
            if there or not any(len(page.rows) for page in news.pages.values()):
                break
        with self._lock:
            buffer.settle(newest)
        return news.steps

    async def _finish(self, client: httpx.AsyncClient, buffer: RunBuffer) -> None:
        """The recording has ended: the rest of the tables, where the server still gives it."""
        try:
            await self._poll_once(client, buffer)
            complete = (await self._overview(client)).meta.get("complete")
        except (httpx.HTTPError, FeedError, _AgainError):
            complete = None  # it is on its way out, and may close its door or put its files away at any time
        with self._lock:
            buffer.settle(buffer.last_step)
            self._status = "finished" if complete else "stopped"
        self._say("ended")

    # -- which run it is ----------------------------------------------------------------------------------------------

    def _is_news(self, overview: Overview) -> bool:
        """Whether it tells of another run than the one that has ended, or of more of it."""
        buffer = self._buffer
        return buffer is None or (overview.run_id, overview.counts["steps"]) != (buffer.key, buffer.last_step + 1)

    async def _adopt(self, client: httpx.AsyncClient, overview: Overview) -> tuple[RunBuffer, int]:
        """The buffer for the run that the server tells of, and the number of the step to go on with."""
        steps = overview.counts["steps"]
        newest_held = max(0, steps - self._capacity)
        buffer = self._buffer
        anew = buffer is None or buffer.key != overview.run_id or buffer.last_step >= steps
        if buffer is None or anew:
            name = f"{overview.meta.get('model', 'engine')} at {self.place}"
            buffer = RunBuffer(overview.run_id, name, overview.meta, self._capacity, newest_held)
            buffer.origin_s = overview.first_arrival_s
        if anew or newest_held > buffer.last_step + 1:
            starts = await self._starts(client, overview, newest_held - self._capacity)
            with self._lock:
                buffer.forget_others()
                self._buffer, self._next, self._status = buffer, starts, "running"
        return buffer, max(buffer.last_step + 1, newest_held)

    async def _starts(self, client: httpx.AsyncClient, overview: Overview, step: int) -> dict[str, int]:
        """For each table the first row to read, so that all is there that touches steps from `step` on; of a long
        table, but for requests that have waited or run since before that and have not ended.
        """
        starts = dict.fromkeys([table.name for table in FOLLOWED], 0)
        if step <= 0 or overview.counts["spans"] <= READ_WHOLE:
            return starts
        starts["gaps"] = await self._bisect(client, overview, GAPS, lambda row: row["step"] >= step)
        starts["spans"] = await self._bisect(client, overview, SPAN_EVENTS, lambda row: row["step"] >= step)
        page = await self._page(client, overview.run_id, SPAN_EVENTS, starts["spans"], 1)
        if len(page.rows):
            since_s = page.rows["time_s"][0]
            starts["requests"] = await self._bisect(client, overview, REQUESTS, lambda row: _written_s(row) >= since_s)
        return starts

    async def _bisect(
        self, client: httpx.AsyncClient, overview: Overview, table: Table, found: Callable[[Any], bool]
    ) -> int:
        """Number of the first row for which something holds that, once it does, does for all rows after it."""
        low, high = 0, overview.counts[table.name]
        while low < high:
            middle = (low + high) // 2
            page = await self._page(client, overview.run_id, table, middle, 1)
            if len(page.rows) and not found(page.rows[0]):
                low = middle + 1
            else:
                high = middle
        return low

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _overview(self, client: httpx.AsyncClient) -> Overview:
        return Overview.of(await self._get(client, "/trace", {"limit": 1}))

    async def _page(self, client: httpx.AsyncClient, run_id: str, table: Table, start: int, limit: int) -> Page:
        page = Page.of(table, await self._get(client, f"/trace/{table.name}", {"from": start, "limit": limit}))
        if page.run_id != run_id:
            raise _AgainError
        return page

    async def _news(self, client: httpx.AsyncClient, run_id: str) -> News:
        news = News.of(FOLLOWED, await self._get(client, "/trace/news", {**self._next, "limit": PAGE}))
        if news.run_id != run_id:
            raise _AgainError
        return news

    async def _get(self, client: httpx.AsyncClient, path: str, query: dict[str, int]) -> bytes:
        body = bytearray()
        async with client.stream("GET", path, params=query) as reply:
            _check(reply, self.place)
            async for chunk in reply.aiter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise FeedError(f"{self.place} answers without end; expected the trace of a batchscope engine")
        return bytes(body)

    # -- how it fares -------------------------------------------------------------------------------------------------

    def _say(self, kind: StateKind) -> None:
        with self._lock:
            self._state = FeedState(kind)

    def _lost(self, reason: str) -> None:
        """It is gone, since when it went; a server that is away after its run's end has not gone, it has ended."""
        with self._lock:
            if self._state.kind == "ended":
                return
            since_s = self._state.since_s if self._state.kind == "gone" else FeedState("gone").since_s
            self._state = FeedState("gone", reason, since_s)
            if self._buffer is not None:
                self._buffer.settle(self._buffer.last_step)

    def _progress(self) -> tuple[str, int]:
        return ("", -1) if self._buffer is None else (self._buffer.key, self._buffer.last_step)


def _written_s(request: Any) -> float:
    """When a row of `requests` was written: at the request's end, or when it was queued."""
    ended_s = float(request["finished_s"])
    return float(request["queued_s"]) if math.isnan(ended_s) else ended_s


class _AgainError(Exception):
    """Connect anew, at once: nothing is wrong."""


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run several until one ends or fails; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(reply: httpx.Response, where: str) -> None:
    if reply.status_code != 200:
        raise FeedError(reason_of_status(reply.status_code, where))
