"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from .request import Request


class WaitingQueue(Protocol):
    """Requests that have no seat; `__len__` counts them, `__iter__` gives them in serving order."""

    def push(self, request: Request) -> None:
        """Add a new request."""

    def push_preempted(self, request: Request) -> None:
        """Add a request that lost its seat."""

    def head(self) -> Request:
        """The request to serve next."""

    def pop(self) -> Request:
        """Take the head out."""

    def remove(self, request: Request) -> None:
        """Take any request out."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue(deque[Request]):
    """First come first served; a preempted request goes to the front. A deque, so that looking at it costs no call."""

    push = deque.append
    """Add at the end."""
    push_preempted = deque.appendleft
    """Add at the front."""
    pop = deque.popleft
    """Take the first out."""

    def head(self) -> Request:
        """The first of the queue."""
        return self[0]


class PriorityQueue:
    """Smallest (priority, arrival) first, preempted requests too."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Request]] = []

    def push(self, request: Request) -> None:
        """Add at the place its priority gives it."""
        heapq.heappush(self._heap, (urgency(request), request))

    push_preempted = push

    def head(self) -> Request:
        """The most urgent request."""
        return self._heap[0][1]

    def pop(self) -> Request:
        """Take the most urgent request out."""
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request) -> None:
        """Take any request out (linear in the queue)."""
        self._heap.remove((urgency(request), request))
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap, key=lambda entry: entry[0]))


def urgency(request: Request) -> tuple[int, float, int]:
    """Sort key of priority scheduling: smaller is served earlier and preempted later."""
    return (request.priority, request.arrival_s, request.index)
