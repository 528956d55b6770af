"""The feeds that are open: one for each server, closed when nobody looks."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from scheduler.errors import UserError

from .address import place, server_url
from .answers import Overview
from .ask import ask, client_for
from .engine_feed import EngineFeed
from .prometheus import MetricsFeed, look
from .state import reason_of_status
from .wire import FeedError

MOST = 8
"""Feeds open at once; the one that was longest not looked at makes room."""
IDLE_S = 120.0

Feed = EngineFeed | MetricsFeed


@dataclass
class _Open:
    feed: Feed
    used_s: float


class Feeds:
    """Owns feeds. Thread-safe; a context manager.

    Args:
        most: feeds open at once.
        idle_s: a feed that nobody asked for so long is closed.
    """

    def __init__(self, *, most: int = MOST, idle_s: float = IDLE_S) -> None:
        self._most = most
        self._idle_s = idle_s
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="feeds", daemon=True)
        self._sweeper.start()

    def __enter__(self) -> Feeds:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._open)

    def attach(self, url: str, *, api_key: str | None = None) -> Feed:
        """The feed of a server, opened if need be: its trace where it is a batchscope server, else its metrics.

        Raises:
            UserError: the address is none, or nothing that can be followed answers there.
        """
        url = server_url(url)
        feed = self.get(url)
        if feed is not None:
            return feed
        opened = open_feed(url, api_key)
        with self._lock:
            if url in self._open:  # somebody else was quicker
                surplus, feed = [opened], self._open[url].feed
            else:
                surplus, feed = self._make_room(), opened
                self._open[url] = _Open(opened, time.monotonic())
        for each in surplus:
            each.close()
        return feed

    def get(self, url: str) -> Feed | None:
        """The open feed of a server, if there is one; it is in use from now on. Raises UserError for no address."""
        with self._lock:
            found = self._open.get(server_url(url))
            if found is None:
                return None
            found.used_s = time.monotonic()
            return found.feed

    def detach(self, url: str) -> None:
        """Close a server's feed, if it is open."""
        with self._lock:
            found = self._open.pop(server_url(url), None)
        if found is not None:
            found.feed.close()

    def close(self) -> None:
        """Close all; may be called twice."""
        self._closing.set()
        self._sweeper.join()
        for url in list(self._open):
            self.detach(url)

    def _make_room(self) -> list[Feed]:
        by_use = sorted(self._open, key=lambda url: self._open[url].used_s)
        return [self._open.pop(url).feed for url in by_use[: max(0, len(by_use) - self._most + 1)]]

    def _sweep(self) -> None:
        while not self._closing.wait(self._idle_s / 4):
            with self._lock:
                old_s = time.monotonic() - self._idle_s
                idle = [url for url, each in self._open.items() if each.used_s < old_s]
            for url in idle:
                self.detach(url)


def open_feed(url: str, api_key: str | None = None) -> Feed:
    """A feed of its own for a server. Raises UserError when nothing that can be followed answers."""
    url, where = server_url(url), place(server_url(url))
    with client_for(api_key) as client:
        try:
            status, body = ask(client, f"{url}/trace", where, {"limit": 1})
        except FeedError as error:
            raise UserError(f"{error}; start an engine with `batchscope serve`") from None
        if status == 401:
            raise UserError(reason_of_status(status, where))
        if status == 200 and _is_trace(body):
            return EngineFeed(url, api_key=api_key)
        try:
            look(client, url)
        except FeedError as error:
            raise UserError(
                f"{where} has no step trace to follow (/trace) and no metrics that we know (/metrics): {error}"
            ) from None
    return MetricsFeed(url, api_key=api_key)


def _is_trace(body: bytes) -> bool:
    try:
        Overview.of(body)
    except FeedError:
        return False
    return True
