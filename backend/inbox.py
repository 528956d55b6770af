"""What clients send to the engine's thread: requests and aborts, in order of time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from .live import Live


class Inbox:
    """A mailbox between client threads and the engine's."""

    def __init__(self) -> None:
        self._items: deque[tuple[float, Live | str]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._num_requests = 0

    @property
    def num_requests(self) -> int:
        """Requests not yet handed over."""
        return self._num_requests

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    def put(self, lives: Sequence[Live], now_s: float) -> bool:
        """Requests arrive, together; False when the inbox is closed."""
        with self._changed:
            if self._closed:
                return False
            self._items.extend((now_s, live) for live in lives)
            self._num_requests += len(lives)
            self._changed.notify()
            return True

    def abort(self, request_id: str, now_s: float) -> None:
        """A client gives up."""
        with self._changed:
            self._items.append((now_s, request_id))
            self._changed.notify()

    def close(self) -> None:
        """Take no more requests."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, until_s: float) -> tuple[list[Live], list[str]]:
        """What had come by then: arrivals, aborts."""
        if not self._items:  # the common case needs no lock: a deque's length is always consistent
            return [], []
        arrivals: list[Live] = []
        aborts: list[str] = []
        with self._changed:
            while self._items and self._items[0][0] <= until_s:
                _, item = self._items.popleft()
                if isinstance(item, Live):
                    arrivals.append(item)
                else:
                    aborts.append(item)
            self._num_requests -= len(arrivals)
        return arrivals, aborts

    def wait(self, timeout_s: float | None) -> None:
        """Until something is here, the inbox closes, or the time is up."""
        with self._changed:
            if not self._items and not (self._closed and timeout_s is None):
                self._changed.wait(timeout_s)

    @property
    def empty(self) -> bool:
        """Whether everything has been taken."""
        return not self._items
