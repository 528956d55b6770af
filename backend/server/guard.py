"""The API key: asked for on every path but those that monitors look at."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError

OPEN = ("/health", "/metrics")


class KeyGuard:
    """ASGI middleware that lets nobody in without ``Authorization: Bearer KEY``.

    Args:
        app: what is behind it.
        key: the key.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in OPEN or self._knows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; expected a header Authorization: Bearer KEY"
        error = ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        await error.response()(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = f"{scheme.lower()} {key.strip()}".encode()
        return hmac.compare_digest(given, self._expected)  # takes as long whatever is wrong
