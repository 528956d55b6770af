"""How a feed fares, in words for people."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import httpx

StateKind = Literal["connecting", "live", "gone", "ended"]


@dataclass(frozen=True, slots=True)
class FeedState:
    """Where a feed stands.

    Attributes:
        kind: ``connecting``, ``live``, ``gone`` (it keeps trying) or ``ended`` (the recording was closed in order).
        reason: why it is gone, as one sentence; else empty.
        since_s: since when, seconds of the Unix epoch.
    """

    kind: StateKind
    reason: str = ""
    since_s: float = field(default_factory=time.time)


def reason_of(error: httpx.HTTPError | httpx.StreamError, where: str) -> str:
    """A sentence for what went wrong on the way."""
    if isinstance(error, httpx.ConnectError):
        return f"nobody answers at {where}"
    if isinstance(error, httpx.TimeoutException):
        return f"{where} has not answered in time"
    if isinstance(error, httpx.HTTPStatusError):
        return reason_of_status(error.response.status_code, where)
    return f"the connection to {where} was lost"


def reason_of_status(status: int, where: str) -> str:
    """A sentence for an answer that is none."""
    if status == 401:
        return f"{where} asks for an API key; the one given is missing or wrong"
    return f"{where} answered {status}"
