"""Addresses of servers, as people give them."""

from __future__ import annotations

from urllib.parse import urlsplit

from scheduler.errors import UserError

_TAILS = ("/metrics", "/trace", "/v1")
"""What people copy along."""


def server_url(given: str) -> str:
    """The address of a server, without what stands behind it: ``http://host:port``, and a prefix where there is one.

    Raises:
        UserError: it is no address over http or https.
    """
    text = given.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong(given, f" ({error})") from None
    if parts.scheme not in ("http", "https") or not host or not host.isprintable() or " " in host:
        raise _wrong(given)
    if parts.username is not None or parts.password is not None:
        raise UserError("the address of a server must not hold a password; give the API key apart")
    path = parts.path.rstrip("/")
    for tail in _TAILS:
        path = path.removesuffix(tail)
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{path}"


def place(url: str) -> str:
    """Host and port, to show."""
    return urlsplit(url).netloc


def _wrong(given: str, why: str = "") -> UserError:
    return UserError(f"{given[:100]!r} is no address of a server{why}; expected something like http://127.0.0.1:8000")
