"""Server-sent events: the response that streams them, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
"""Ends a stream of OpenAI's API."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode  # made once: it is hot


def event(data: Any, *, name: str | None = None, event_id: int | None = None) -> bytes:
    """One event, its data as JSON on one line."""
    head = "" if event_id is None else f"id: {event_id}\n"
    head += "" if name is None else f"event: {name}\n"
    return f"{head}data: {_encode(data)}\n\n".encode()


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone; the request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Streams what a generator yields; when the client goes away that ends at once, even while the generator waits.

    Args:
        events: whole events, as many at a time as there are.
        closed: called when the stream is over, however it ended (a generator that never began cannot clean up).
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], closed: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self._events, self._closed = events, closed
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client goes."""
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._closed()
            sending.cancel()
            gone.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._events:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(
                0
            )  # a generator that never waits would keep everybody else, and word of a lost client, out
        await send({"type": "http.response.body", "body": b"", "more_body": False})
