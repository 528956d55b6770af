"""Who sends the requests: an open loop on the workload's clock, or clients that wait for their answers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Protocol

import simpy
from simpy.events import URGENT, Event

from scheduler.request import Request
from traces.workload import Workload

from .engine import Inbox

Process = Generator[Event, Any, None]


class Load(Protocol):
    """Starts the SimPy processes that put requests into the engine's inbox."""

    def start(self, env: simpy.Environment, inbox: Inbox) -> None:
        """Start them; the last one closes the inbox."""


class OpenLoop:
    """Requests arrive when the workload says, whatever the server does.

    Args:
        workload: what arrives.
        aborts: ``(seconds, request index)``, in order of time: clients that give up.
    """

    def __init__(self, workload: Workload, aborts: Sequence[tuple[float, int]] = ()) -> None:
        self._workload = workload
        self._aborts = sorted(aborts)

    def start(self, env: simpy.Environment, inbox: Inbox) -> None:
        """Start the arrivals and, if there are any, the aborts."""
        inbox.open(1 + bool(self._aborts))
        env.process(self._arrive(env, inbox))
        if self._aborts:
            env.process(self._give_up(env, inbox))

    def _arrive(self, env: simpy.Environment, inbox: Inbox) -> Process:
        start_s = env.now
        for index, arrival_s in enumerate(self._workload.arrival_s.tolist()):
            if arrival_s > env.now - start_s:
                yield urgent_timeout(env, start_s + arrival_s - env.now)
            inbox.put(self._workload.request(index))
        inbox.close()

    def _give_up(self, env: simpy.Environment, inbox: Inbox) -> Process:
        for abort_s, index in self._aborts:
            if abort_s > env.now:
                yield urgent_timeout(env, abort_s - env.now)
            inbox.abort(self._workload.request(index).request_id)
        inbox.close()


class ClosedLoop:
    """A number of clients, each of which sends a request, waits for its end, thinks, and sends the next.

    Args:
        workload: the requests, taken in order by whichever client is free; their arrival times are not used.
        concurrency: clients.
        think_s: seconds between an answer and the same client's next request.
    """

    def __init__(self, workload: Workload, concurrency: int, think_s: float = 0.0) -> None:
        self._workload = workload
        self._concurrency = min(concurrency, len(workload))  # a client without a request would only leave
        self._think_s = think_s

    def start(self, env: simpy.Environment, inbox: Inbox) -> None:
        """Start the clients."""
        inbox.open(self._concurrency)
        work = iter(range(len(self._workload)))
        for _ in range(self._concurrency):
            env.process(self._client(env, inbox, work))

    def _client(self, env: simpy.Environment, inbox: Inbox, work: Iterator[int]) -> Process:
        for index in work:
            request = self._workload.request(index)
            request.arrival_s = env.now
            done = inbox.put_and_watch(request)
            yield done
            if self._think_s:
                yield env.timeout(self._think_s)
        inbox.close()


def urgent_timeout(env: simpy.Environment, delay_s: float) -> Event:
    """A timeout that comes before all ordinary events of its instant: arrivals go before the step."""
    event = Event(env)
    event._ok = True
    event._value = None
    env.schedule(event, URGENT, delay_s)
    return event


def ids_of(requests: Sequence[Request]) -> list[str | int]:
    """The requests' ids."""
    return [request.request_id for request in requests]
