"""Asking a server once, with an end to its patience and to the length of its answer."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from .state import reason_of
from .wire import FeedError

MOST_BYTES = 8 << 20
"""vLLM's metrics have a third of a megabyte."""
TIMEOUT = httpx.Timeout(5.0)


def client_for(api_key: str | None) -> httpx.Client:
    """A client that brings this key, if any."""
    return httpx.Client(headers={} if api_key is None else {"authorization": f"Bearer {api_key}"}, timeout=TIMEOUT)


def ask(client: httpx.Client, url: str, where: str, query: Mapping[str, int] | None = None) -> tuple[int, bytes]:
    """Status and body of an answer. Raises FeedError where there is none, or one without end."""
    try:
        with client.stream("GET", url, params=query) as reply:
            body = bytearray()
            for chunk in reply.iter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise FeedError(f"{where} answers without end; expected an engine's server")
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise FeedError(reason_of(error, where)) from None
    return reply.status_code, bytes(body)
