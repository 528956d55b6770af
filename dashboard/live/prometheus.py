"""Watching any vLLM, SGLang or batchscope server through its `/metrics`."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError
from traces.quantiles import QuantileRange, quantile_range
from traces.scrape import Counts, Scrape

from .address import place, server_url
from .ask import ask, client_for
from .state import FeedState, StateKind, reason_of_status
from .unsaid import cannot_tell
from .wire import FeedError

POLL_S = 1.0
KEPT = 3600
"""Looks held: an hour's."""
WINDOW_S = 60.0
"""Latencies are those of so many seconds."""
QUANTILES = (0.5, 0.9, 0.99)
SERIES = (
    "time_s", "running", "waiting", "kv_use", "prompt_per_s", "generation_per_s", "iterations_per_s",
    "tokens_per_iteration", "preemptions", "slots_busy", "slots_total",
)  # fmt: skip
"""Columns of a snapshot: seconds of the Unix epoch, requests, requests, a fraction, tokens per second (two), steps per
second, mean tokens of a step, requests that lost their seat, slots (two). All but the first six gauges are of the time
since the look before; nan where the server does not tell."""


@dataclass(frozen=True)
class MetricsSnapshot:
    """What was seen of a server.

    Attributes:
        server, model: its kind and what it serves; empty before it has answered.
        series: name of `SERIES` -> float64 ``(looks,)``.
        latencies: ``ttft``, ``itl``, ``tpot``, ``e2e`` -> their percentiles over the last `WINDOW_S` seconds.
        buckets: the same histograms whole, over the same time.
        restarts: how often the server was started anew while it was watched.
        cannot_tell: what this source leaves unsaid, in sentences.
    """

    url: str
    server: str
    model: str
    state: FeedState
    series: Mapping[str, npt.NDArray[np.float64]]
    latencies: Mapping[str, tuple[QuantileRange, ...]] = field(default_factory=dict)
    buckets: Mapping[str, Counts] = field(default_factory=dict)
    restarts: int = 0
    cannot_tell: tuple[str, ...] = ()


class MetricsHistory:
    """Looks at one server, oldest first, bounded."""

    def __init__(self, kept: int = KEPT) -> None:
        self.rows: deque[tuple[float, ...]] = deque(maxlen=kept)
        self.window: deque[Scrape] = deque()
        self.restarts = 0

    @property
    def newest(self) -> Scrape | None:
        """The last look."""
        return self.window[-1] if self.window else None

    def add(self, scrape: Scrape) -> None:
        """Take in a look."""
        before = self.newest
        if before is not None and scrape.restarted_since(before):
            self.restarts += 1
            self.window.clear()
            before = None
        self.rows.append(_row(scrape, before))
        self.window.append(scrape)
        while len(self.window) > 2 and self.window[1].time_s <= scrape.time_s - WINDOW_S:
            self.window.popleft()

    def interrupt(self, time_s: float) -> None:
        """Nothing is known from here to the next look: lines break."""
        if self.rows and not all(math.isnan(value) for value in self.rows[-1][1:]):
            self.rows.append((time_s, *[math.nan] * (len(SERIES) - 1)))

    def series(self) -> dict[str, npt.NDArray[np.float64]]:
        """All looks as columns."""
        table = np.array(self.rows, dtype=np.float64).reshape(-1, len(SERIES))
        return {name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(SERIES)}

    def buckets(self) -> dict[str, Counts]:
        """Latency histograms of the window."""
        if len(self.window) < 2:
            return {}
        old, new = self.window[0].latencies, self.window[-1].latencies
        both = {name: new[name].since(old[name]) for name in new if name in old}
        return {name: counts for name, counts in both.items() if counts is not None}


class MetricsFeed:
    """Looks at a server's `/metrics` again and again, in a thread of its own, until it is closed. A context manager.

    Args:
        url: the server's address.
        api_key: what it asks for; None: nothing.
        poll_s: seconds between two looks.

    Raises:
        UserError: the address is none.
    """

    def __init__(self, url: str, *, api_key: str | None = None, poll_s: float = POLL_S) -> None:
        self.url = server_url(url)
        self.place = place(self.url)
        self._api_key = api_key
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._history = MetricsHistory()
        self._state = FeedState("connecting")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"metrics {self.place}", daemon=True)
        self._thread.start()

    def __enter__(self) -> MetricsFeed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def state(self) -> FeedState:
        """How it fares."""
        with self._lock:
            return self._state

    def snapshot(self) -> MetricsSnapshot:
        """What was seen so far."""
        with self._lock:
            history, newest = self._history, self._history.newest
            buckets = history.buckets()
            latencies = {name: ranges for name, each in buckets.items() if (ranges := _ranges(each))}
            return MetricsSnapshot(
                self.url,
                "" if newest is None else newest.dialect.server,
                "" if newest is None else newest.model,
                self._state,
                history.series(),
                latencies,
                buckets,
                history.restarts,
                () if newest is None else tuple(_unsaid(newest)),
            )

    def cannot_tell(self) -> list[str]:
        """What this source leaves unsaid, in sentences; empty before it has answered."""
        return list(self.snapshot().cannot_tell)

    def close(self) -> None:
        """Stop looking; may be called twice."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        with client_for(self._api_key) as client:
            while not self._closing.is_set():
                begun_s = time.monotonic()
                self._look(client)
                self._closing.wait(max(0.0, self._poll_s - (time.monotonic() - begun_s)))

    def _look(self, client: httpx.Client) -> None:
        try:
            scrape = look(client, self.url)
        except FeedError as error:
            with self._lock:
                self._history.interrupt(time.time())
                self._say("gone", str(error))
            return
        with self._lock:
            self._history.add(scrape)
            self._say("live")

    def _say(self, kind: StateKind, reason: str = "") -> None:
        since_s = self._state.since_s if self._state.kind == kind else time.time()
        self._state = FeedState(kind, reason, since_s)


def look(client: httpx.Client, url: str) -> Scrape:
    """One look at a server. Raises FeedError with what is wrong."""
    where = place(url)
    status, body = ask(client, f"{url}/metrics", where)
    if status != 200:
        raise FeedError(reason_of_status(status, where))
    try:
        return Scrape.of(body.decode("utf-8", "replace"), time.time(), where)
    except InputError as error:
        raise FeedError(str(error)) from None


def _row(scrape: Scrape, before: Scrape | None) -> tuple[float, ...]:
    """A row of `SERIES`."""
    now = scrape.values
    apart_s = math.nan if before is None else scrape.time_s - before.time_s

    def gained(name: str) -> float:
        return now.get(name, math.nan) - before.values.get(name, math.nan) if before is not None else math.nan

    iterations = gained("iterations")
    generated = now["generation_per_s"] if "generation_per_s" in now else gained("generation_tokens") / apart_s
    return (
        scrape.time_s,
        *(now.get(name, math.nan) for name in ("running", "waiting", "kv_use")),
        gained("prompt_tokens") / apart_s,
        generated,
        iterations / apart_s,
        gained("iteration_tokens") / iterations if iterations > 0 else math.nan,
        gained("preemptions"),
        *(now.get(name, math.nan) for name in ("slots_busy", "slots_total")),
    )


def _ranges(counts: Counts) -> tuple[QuantileRange, ...]:
    found = (quantile_range(counts, q) for q in QUANTILES)
    return tuple(each for each in found if each is not None)


def _unsaid(scrape: Scrape) -> list[str]:
    known = {*scrape.values, *scrape.latencies}
    return cannot_tell(scrape.dialect, known | ({"generation_tokens"} if "generation_per_s" in known else set()))
