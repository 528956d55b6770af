"""Synthetic workloads: arrivals, lengths, shared prefixes and conversations, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scheduler.errors import ConfigError

from .arrivals import Arrivals, check_times
from .lengths import Lengths
from .specs import check_range
from .workload import FloatArray, IntArray, Workload

UNIT = 16
"""Tokens that a unit of generated content stands for (`Workload.hash_block`)."""
MOST_UNITS = 400_000_000
"""More units of content than this would not fit in memory."""


@dataclass(frozen=True)
class Prefixes:
    """Prompts that begin alike (system prompts): a request, or a whole conversation, belongs to one of some groups.

    Attributes:
        groups: different prefixes.
        length: tokens of a prefix; they come on top of the drawn prompt. Content is shared in whole units of 16.
        zipf: the `g`-th group is chosen with a probability ~ ``g**-zipf`` (0: all alike).
        share: fraction of the requests (conversations) that have a prefix at all.
    """

    groups: int
    length: int
    zipf: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        check_range("prefix groups", self.groups, least=1)
        check_range("prefix length", self.length, least=1)
        check_range("prefix zipf", self.zipf, least=0)
        if not 0 < self.share <= 1:
            raise ConfigError(f"prefix share is {self.share}; expected 0 < share <= 1")

    def choose(self, n: int, rng: np.random.Generator) -> IntArray:
        """The group of each of `n`, -1 for none."""
        weights = np.arange(1, self.groups + 1, dtype=np.float64) ** -self.zipf
        cumulated = np.cumsum(weights) / weights.sum()
        group = np.minimum(np.searchsorted(cumulated, rng.random(n), side="right"), self.groups - 1)
        return np.where(rng.random(n) < self.share, group, -1)


@dataclass(frozen=True)
class Sessions:
    """Conversations: each next prompt is all that was said before plus a new message.

    The file fixes arrival times before anything runs, so a next turn comes a nominal service time
    (``ttft + tpot x output tokens``) and an exponential think time after the turn before, whatever the server does.

    Attributes:
        turns: mean number of turns, geometrically distributed, at least 1.
        think: mean think time, seconds.
        ttft: nominal time to first token, seconds.
        tpot: nominal time per output token, seconds.
        max_context: a conversation ends before a turn whose prompt + output would exceed this; 0: no limit.
    """

    turns: float
    think: float = 10.0
    ttft: float = 0.5
    tpot: float = 0.03
    max_context: int = 0

    def __post_init__(self) -> None:
        check_range("session turns", self.turns, least=1)
        for name in ("think", "ttft", "tpot", "max_context"):
            check_range(f"session {name}", getattr(self, name), least=0)


@dataclass(frozen=True)
class Generator:
    """What a synthetic workload is made of.

    Attributes:
        arrivals: of requests, or of conversations where there are `sessions`.
        prompt: prompt tokens; with `sessions`, tokens of each new message.
        output: output tokens.
        prefixes, sessions: see there.
        max_tokens: the limit that requests are sent with, outputs are cut to it; 0: each request's limit is its output.
        same_quantile: fraction of the requests whose output is drawn at the quantile of their prompt (the rest draw
            independently); it is the rank correlation of the two.
    """

    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    prefixes: Prefixes | None = None
    sessions: Sessions | None = None
    max_tokens: int = 0
    same_quantile: float = 0.0

    def __post_init__(self) -> None:
        check_range("max_tokens", self.max_tokens, least=0)
        if not 0 <= self.same_quantile <= 1:
            raise ConfigError(f"same_quantile is {self.same_quantile}; expected a fraction from 0 to 1")

    def workload(self, requests: int, *, seed: int = 0, name: str = "synthetic") -> Workload:
        """`requests` requests; same seed, same bytes. Raises ConfigError for settings that allow none."""
        if requests < 1 or seed < 0:
            raise ConfigError(f"requests is {requests}, seed is {seed}; expected requests >= 1 and seed >= 0")
        rng = np.random.Generator(np.random.PCG64(seed))
        if self.sessions is None:
            made = self._single(requests, rng)
        else:
            made = self._conversations(requests, self.sessions, rng)
        if self.max_tokens:
            made = replace(made, max_tokens=np.full(len(made), self.max_tokens, dtype=np.int64))
        return replace(made, name=name)

    def _lengths(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        u = rng.random(n)
        same = rng.random(n) < self.same_quantile
        output = self.output.at(np.where(same, u, rng.random(n)))
        return self.prompt.at(u), np.minimum(output, self.max_tokens) if self.max_tokens else output

    def _single(self, n: int, rng: np.random.Generator) -> Workload:
        times = check_times(self.arrivals.times_s(n, rng))
        prompt, output = self._lengths(n, rng)
        if self.prefixes is None:
            return Workload(times, prompt, output)
        group = self.prefixes.choose(n, rng)
        units = np.where(group >= 0, self.prefixes.length // UNIT, 0)
        offsets = _offsets(units)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], units)
        return Workload(
            times,
            prompt + np.where(group >= 0, self.prefixes.length, 0),
            output,
            hash_ids=np.repeat(group * (self.prefixes.length // UNIT), units) + place,
            hash_offsets=offsets,
            hash_block=UNIT,
            hash_covers="prompt",
        )

    def _conversations(self, n: int, sessions: Sessions, rng: np.random.Generator) -> Workload:
        turns = rng.geometric(1 / sessions.turns, size=n)
        # with a limit on the context turns fall out later, so draw them all; else draw no more than is needed
        count = n if sessions.max_context else int(np.searchsorted(np.cumsum(turns), n)) + 1
        turns = turns[:count]
        group = self.prefixes.choose(count, rng) if self.prefixes else np.full(count, -1)
        talk = _Talk(turns, np.where(group >= 0, self.prefixes.length if self.prefixes else 0, 0))
        prompt, output = self._talk_lengths(talk, rng)
        starts = self.arrivals.times_s(count, rng)
        service = sessions.ttft + sessions.tpot * output + sessions.think * rng.exponential(size=len(output))
        times = check_times(np.sort(starts))[talk.session] + talk.before(service)
        keep = np.flatnonzero(prompt + output <= (sessions.max_context or np.inf))[:n]
        if len(keep) < n:
            raise ConfigError(f"max_context {sessions.max_context} leaves {len(keep)} of {n} requests; raise it")
        order = keep[np.argsort(np.round(times[keep], 6), kind="stable")]
        total = prompt + output
        if -(-total[order] // UNIT).sum() > MOST_UNITS:
            raise ConfigError("these conversations are too much content to hold; expected fewer or shorter requests")
        ids, offsets = _conversation_units(talk, group, total, order, self.prefixes)
        return Workload(
            np.round(times[order], 6),
            prompt[order],
            output[order],
            session=talk.session[order],
            turn=talk.turn[order],
            hash_ids=ids,
            hash_offsets=offsets,
            hash_block=UNIT,
            hash_covers="sequence",
        )

    def _talk_lengths(self, talk: _Talk, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """``(prompt, output)`` of every turn, prompts with all that went before."""
        message, output = self._lengths(len(talk.session), rng)
        said = talk.before((message + output).astype(np.float64)).astype(np.int64)
        return talk.prefix[talk.session] + said + message, output


class _Talk:
    """The turns of all conversations, one conversation after the other.

    Args:
        turns: ``(sessions,)`` turns of each.
        prefix: ``(sessions,)`` tokens that each begins with.
    """

    def __init__(self, turns: IntArray, prefix: IntArray) -> None:
        self.offsets = _offsets(turns)
        self.session = np.repeat(np.arange(len(turns)), turns)
        self.turn = np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], turns)
        self.prefix = prefix

    def before(self, amounts: FloatArray) -> FloatArray:
        """The sum of `amounts` over the earlier turns of the same conversation, for each turn."""
        summed = np.cumsum(amounts) - amounts
        earlier: FloatArray = summed - summed[self.offsets[:-1]][self.session]
        return earlier


def _conversation_units(
    talk: _Talk, group: IntArray, total: IntArray, rows: IntArray, prefixes: Prefixes | None
) -> tuple[IntArray, IntArray]:
    """Unit ids of the turns `rows`: those of the prefix group, then the conversation's own, counted on as it grows."""
    prefix_units = prefixes.length // UNIT if prefixes else 0
    longest = np.zeros(len(talk.prefix), dtype=np.int64)
    np.maximum.at(longest, talk.session[rows], -(-total[rows] // UNIT))
    own_start = _offsets(longest)[:-1] + (prefixes.groups * prefix_units if prefixes else 0)
    units = -(-total[rows] // UNIT)
    offsets = _offsets(units)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], units)
    session = np.repeat(talk.session[rows], units)
    shared = (group[session] >= 0) & (place < prefix_units)
    return np.where(shared, group[session] * prefix_units + place, own_start[session] + place), offsets


def _offsets(counts: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
