"""Routers: which of several replicas gets a request, decided from what a router in front of them can see."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import simpy
from simpy.events import Event

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError, unknown_name
from scheduler.plugins import class_of_module
from scheduler.prefix import hash_blocks
from scheduler.request import Request

from .engine import Inbox


class Replica:
    """What a router sees of one replica: the requests that it has sent there and that have not ended.

    Attributes:
        number: its place among the replicas, from 0.
        sent: requests sent there so far.
        unfinished: those of them that have not ended, by id.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent = 0
        self.unfinished: dict[str | int, Request] = {}

    def begin(self, request: Request) -> None:
        """A request is sent there."""
        self.sent += 1
        self.unfinished[request.request_id] = request

    def end(self, request: Request) -> None:
        """A request sent there has ended."""
        del self.unfinished[request.request_id]

    @property
    def requests(self) -> int:
        """Unfinished requests."""
        return len(self.unfinished)

    @property
    def tokens(self) -> int:
        """Prompt tokens of the unfinished requests and the tokens they have been answered so far."""
        return sum(request.num_tokens for request in self.unfinished.values())


class Router(ABC):
    """Chooses a replica for each request. Subclass it, implement `pick`, and name it ``module:Class``.

    A router sees prompts and streams of answers; how long an answer will be it does not know.

    Args:
        replicas: all of them; they are kept up to date.
        config: the replicas' scheduler settings.
        seed: of its own randomness.
    """

    name: ClassVar[str]
    needs_contents: ClassVar[bool] = False
    """Whether it looks at tokens, so that a workload of lengths alone will not do."""

    def __init__(self, replicas: Sequence[Replica], config: SchedulerConfig, seed: int = 0) -> None:
        self.replicas = replicas
        self.config = config
        self.seed = seed

    @abstractmethod
    def pick(self, request: Request) -> int:
        """The number of the replica that gets this request."""


class RoundRobin(Router):
    """Each in turn."""

    name = "round-robin"

    def pick(self, request: Request) -> int:
        """The next one."""
        return sum(replica.sent for replica in self.replicas) % len(self.replicas)


class Random(Router):
    """Any, with equal chances."""

    name = "random"

    def __init__(self, replicas: Sequence[Replica], config: SchedulerConfig, seed: int = 0) -> None:
        super().__init__(replicas, config, seed)
        self._random = random.Random(seed)

    def pick(self, request: Request) -> int:
        """Drawn."""
        return self._random.randrange(len(self.replicas))


class LeastRequests(Router):
    """The one with the fewest unfinished requests; among equals the one that was sent fewest so far."""

    name = "least-requests"

    def pick(self, request: Request) -> int:
        """The least busy by requests."""
        return min(self.replicas, key=lambda replica: (replica.requests, replica.sent)).number


class LeastTokens(Router):
    """The one whose unfinished requests have the fewest tokens; among equals the one that was sent fewest so far."""

    name = "least-tokens"

    def pick(self, request: Request) -> int:
        """The least busy by tokens."""
        return min(self.replicas, key=lambda replica: (replica.tokens, replica.sent)).number


class PrefixAffinity(LeastRequests):
    """The one that was sent the longest part of this prompt before, unless that part is short or the load is lopsided.

    The rule and its three thresholds are those of SGLang's cache-aware router (defaults ``cache_threshold`` 0.3,
    ``balance_abs_threshold`` 64, ``balance_rel_threshold`` 1.5); in both exceptions it falls back on the fewest
    requests. It remembers, for each replica, the most recent prompt blocks, as many as the replica's KV cache holds.
    """

    name = "prefix-affinity"
    needs_contents = True
    least_match: ClassVar[float] = 0.3
    most_difference: ClassVar[int] = 64
    most_ratio: ClassVar[float] = 1.5

    def __init__(self, replicas: Sequence[Replica], config: SchedulerConfig, seed: int = 0) -> None:
        super().__init__(replicas, config, seed)
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in replicas]

    def pick(self, request: Request) -> int:
        """By prefix, or by load."""
        size = self.config.block_size
        hashes = hash_blocks(request, request.num_prompt_tokens // size, size)
        number = self._by_prefix(hashes)
        if number is None:
            number = super().pick(request)
        self._remember(number, hashes)
        return number

    def _by_prefix(self, hashes: list[bytes]) -> int | None:
        loads = [replica.requests for replica in self.replicas]
        if max(loads) - min(loads) > self.most_difference and max(loads) > self.most_ratio * min(loads):
            return None
        lengths = [self._match(known, hashes) for known in self._known]
        longest = max(lengths)
        if not longest or longest < self.least_match * len(hashes):
            return None
        best = [replica for replica, length in zip(self.replicas, lengths, strict=True) if length == longest]
        return min(best, key=lambda replica: (replica.requests, replica.sent)).number

    @staticmethod
    def _match(known: OrderedDict[bytes, None], hashes: list[bytes]) -> int:
        for length, digest in enumerate(hashes):
            if digest not in known:
                return length
        return len(hashes)

    def _remember(self, number: int, hashes: list[bytes]) -> None:
        known = self._known[number]
        for digest in reversed(hashes):  # a prefix must not be forgotten before what builds on it
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > self.config.usable_blocks:
            known.popitem(last=False)


BUILT_IN: dict[str, type[Router]] = {
    router.name: router for router in (RoundRobin, Random, LeastRequests, LeastTokens, PrefixAffinity)
}


def find_router(name: str) -> type[Router]:
    """The router class called `name` (built in or ``module:Class``); raises ConfigError."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        raise unknown_name("router", name, BUILT_IN)
    return class_of_module(name, Router, "router")


class FrontInbox(Inbox):
    """Where clients send when there are several replicas: hands each request to the replica that the router picks.

    Args:
        env: the simulation.
        inboxes: the replicas'.
        router: decides.
    """

    def __init__(self, env: simpy.Environment, inboxes: Sequence[Inbox], router: Router) -> None:
        super().__init__(env)
        self._inboxes = inboxes
        self._router = router

    def open(self, senders: int) -> None:
        """Each replica may hear from all of them."""
        for inbox in self._inboxes:
            inbox.open(senders)

    def close(self) -> None:
        """No replica will hear from this sender again."""
        for inbox in self._inboxes:
            inbox.close()

    def put(self, request: Request) -> None:
        """A request arrives and goes on to a replica."""
        self.put_and_watch(request)

    def put_and_watch(self, request: Request) -> Event:
        """The same; the event returned fires when it has ended."""
        number = self._router.pick(request)
        if not 0 <= number < len(self._inboxes):
            raise ConfigError(
                f"router {self._router.name} picked replica {number}; expected 0 to {len(self._inboxes) - 1}"
            )
        replica = self._router.replicas[number]
        replica.begin(request)
        done = self._inboxes[number].put_and_watch(request)
        assert done.callbacks is not None
        done.callbacks.append(lambda _: replica.end(request))
        return done

    def abort(self, request_id: str | int) -> None:
        """A client gives up; its replica hears of it."""
        for replica in self._router.replicas:
            if request_id in replica.unfinished:
                self._inboxes[replica.number].abort(request_id)
