"""A workload: which requests arrive when, with how many tokens. Plain arrays; requests are made one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError, InputError
from scheduler.request import Request

from .tokens import TokenSource

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Covers = Literal["prompt", "sequence"]

_OPTIONAL = ("max_tokens", "priority", "request_ids", "session", "turn")
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in order of arrival, as columns of one length `n`. Compare two by `digest()`.

    Attributes:
        arrival_s: ``(n,)`` seconds, never decreasing; equal times keep the order of the file.
        prompt_tokens, output_tokens: ``(n,)``, at least 1.
        max_tokens: ``(n,)`` the limit each request was sent with, at least its `output_tokens`. None where a source
            gives lengths only: then a request's limit is its output and it ends by length.
        priority: ``(n,)``, smaller runs first.
        request_ids: ``(n,)`` names or numbers; None: a request's id is its place, from 0.
        session, turn: ``(n,)``, which conversation (-1: none) and its how-many-eth request, from 0.
        hash_ids: units of content of all requests, one after the other; None where contents do not matter. Equal ids
            are equal content.
        hash_offsets: ``(n + 1,)``: request `i` has ``hash_ids[hash_offsets[i]:hash_offsets[i + 1]]``.
        hash_block: tokens a unit.
        hash_covers: the ids describe the ``prompt`` alone, or the ``sequence`` of prompt and output.
        name: where it comes from, for people.
        skipped: reason -> rows that the reader left out.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray | None = None
    priority: IntArray | None = None
    request_ids: npt.NDArray[Any] | None = None
    session: IntArray | None = None
    turn: IntArray | None = None
    hash_ids: IntArray | None = None
    hash_offsets: IntArray | None = None
    hash_block: int = 0
    hash_covers: Covers = "prompt"
    name: str = "workload"
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_columns(self)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def request(self, i: int) -> Request:
        """Request `i`, made anew. It ends after its `output_tokens`: by length, or by EOS when its limit is higher."""
        output = int(self.output_tokens[i])
        limit = output if self.max_tokens is None else int(self.max_tokens[i])
        return Request(
            i if self.request_ids is None else self.request_ids[i].item(),
            int(self.prompt_tokens[i]),
            limit,
            ignore_eos=limit == output,
            eos_at=output if limit > output else None,
            priority=0 if self.priority is None else int(self.priority[i]),
            arrival_s=float(self.arrival_s[i]),
            script=None if self.hash_ids is None else self.script(i),
        )

    def requests(self) -> Iterator[Request]:
        """All requests in order of arrival, each made when it is asked for."""
        for i in range(len(self)):
            yield self.request(i)

    def script(self, i: int) -> npt.NDArray[np.int32]:
        """The tokens of request `i`, prompt and output, shape ``(prompt + output,)``; needs `hash_ids`."""
        return self._tokens.script(i)

    @cached_property
    def _tokens(self) -> TokenSource:
        if self.hash_ids is None or self.hash_offsets is None:
            raise LookupError(f"workload {self.name} gives lengths only; it has no contents")
        return TokenSource(
            self.prompt_tokens,
            self.output_tokens,
            self.hash_ids,
            self.hash_offsets,
            self.hash_block,
            covers_output=self.hash_covers == "sequence",
        )

    def digest(self) -> str:
        """SHA-256 of the content (the name is left out); the same on every machine."""
        sha = hashlib.sha256(b"batchscope workload 1\n")
        for name in ("arrival_s", "prompt_tokens", "output_tokens", *_OPTIONAL, "hash_ids", "hash_offsets"):
            column = getattr(self, name)
            if column is not None:
                sha.update(f"{name} {len(column)}\n".encode())
                sha.update(_canonical_bytes(column))
        if self.hash_ids is not None:
            sha.update(f"hash_block {self.hash_block} {self.hash_covers}\n".encode())
        return sha.hexdigest()

    def take(self, rows: npt.NDArray[np.intp]) -> Workload:
        """The requests at `rows` (rising), arrival times as they are."""
        columns = {name: getattr(self, name) for name in ("arrival_s", "prompt_tokens", "output_tokens", *_OPTIONAL)}
        changed = {name: column[rows] for name, column in columns.items() if column is not None}
        if self.hash_ids is not None and self.hash_offsets is not None:
            changed["hash_ids"], changed["hash_offsets"] = take_ragged(self.hash_ids, self.hash_offsets, rows)
        return replace(self, **changed)

    def slice(self, start: int, stop: int | None = None) -> Workload:
        """Requests `start` to `stop` (Python's rules), arrival times as they are."""
        return self.take(np.arange(len(self))[start:stop])

    def head(self, n: int) -> Workload:
        """The first `n` requests, or all if there are fewer. Raises ConfigError for `n` below 1."""
        if n < 1:
            raise ConfigError(f"requests is {n}; expected a whole number >= 1")
        return self.slice(0, n)

    def sample(self, n: int, seed: int = 0) -> Workload:
        """`n` different requests drawn at random, in order of arrival, times as they are (so the rate falls)."""
        if not 1 <= n <= len(self):
            raise ConfigError(f"sample size is {n}; expected 1 to {len(self)}, the requests of {self.name}")
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.take(np.sort(rng.choice(len(self), size=n, replace=False)))

    def between(self, start_s: float, end_s: float) -> Workload:
        """The requests that arrive in ``[start_s, end_s)``, with `start_s` as the new zero."""
        first, last = np.searchsorted(self.arrival_s, [start_s, end_s])
        part = self.slice(int(first), int(last))
        # nanoseconds are kept; the bits that a subtraction adds below are not
        return replace(part, arrival_s=np.round(part.arrival_s - start_s, 9))

    def scaled_rate(self, factor: float) -> Workload:
        """The same requests arriving `factor` times as fast. Raises ConfigError unless ``0 < factor < inf``."""
        if not 0 < factor < float("inf"):
            raise ConfigError(f"rate factor is {factor}; expected a number > 0")
        return replace(self, arrival_s=self.arrival_s / factor)

    @property
    def rate_per_s(self) -> float | None:
        """Mean arrival rate: gaps per second between the first and the last arrival; None if there is no such time."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span > 0 else None

    def stats(self) -> dict[str, Any]:
        """Counts, rate, lengths and burstiness, as JSON can hold them; None where a figure is not defined."""
        return {
            "name": self.name,
            "digest": self.digest(),
            "requests": len(self),
            "first_arrival_s": float(self.arrival_s[0]),
            "last_arrival_s": float(self.arrival_s[-1]),
            "rate_per_s": self.rate_per_s,
            "interarrival_cv": _interarrival_cv(self.arrival_s),
            "prompt_tokens": _length_stats(self.prompt_tokens),
            "output_tokens": _length_stats(self.output_tokens),
            "max_sequence_tokens": int((self.prompt_tokens + self.output_tokens).max()),
            "sessions": None if self.session is None else len(np.unique(self.session[self.session >= 0])),
            "hash_block": self.hash_block or None,
            "prefix_share": self.prefix_share(),
            "skipped": dict(self.skipped),
        }

    def prefix_share(self) -> float | None:
        """Fraction of prompt tokens that an unbounded prefix cache with blocks of `hash_block` would hold: leading
        whole units that an earlier request has filled. None where contents do not matter.
        """
        if self.hash_ids is None or self.hash_offsets is None:
            return None
        counts = np.diff(self.hash_offsets)
        owner = np.repeat(np.arange(len(self)), counts)
        unit = np.arange(len(owner)) - np.repeat(self.hash_offsets[:-1], counts)
        # the last sampled token is never computed, so it fills no block
        stored = self.prompt_tokens + (self.output_tokens - 1 if self.hash_covers == "sequence" else 0)
        full = (unit + 1) * self.hash_block <= stored[owner]
        new = _first_owner(self.hash_ids, owner, full) >= owner
        leading = np.minimum(counts, self.prompt_tokens // self.hash_block)
        np.minimum.at(leading, owner[new], unit[new])
        return float(leading.sum() * self.hash_block / self.prompt_tokens.sum())


def _first_owner(ids: IntArray, owner: IntArray, full: npt.NDArray[np.bool_]) -> IntArray:
    """For each entry, the first owner with its id in a `full` entry; a number past all owners if there is none."""
    known, first = np.unique(ids[full], return_index=True)
    owners = np.append(owner[full][first], np.iinfo(np.int64).max)
    place = np.searchsorted(known, ids)
    found = np.append(known, 0)[place] == ids
    found &= place < len(known)
    result: IntArray = owners[np.where(found, place, len(known))]
    return result


def take_ragged(values: IntArray, offsets: IntArray, rows: npt.NDArray[np.intp]) -> tuple[IntArray, IntArray]:
    """The chosen `rows` of a ragged column: ``(values, offsets)`` of the result."""
    counts = np.diff(offsets)[rows]
    taken = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    place = np.arange(taken[-1]) + np.repeat(offsets[:-1][rows] - taken[:-1], counts)
    return values[place], taken


def _check_columns(workload: Workload) -> None:
    """Hold the shape that the rest relies on; readers and generators have told the user before, so this is our bug."""
    n = len(workload.arrival_s)
    if n == 0:
        raise ValueError("a workload needs at least one request")
    if np.any(np.diff(workload.arrival_s) < 0) or not np.isfinite(workload.arrival_s).all():
        raise ValueError("arrival_s must be finite and never decrease")
    for name in ("arrival_s", "prompt_tokens", "output_tokens", *_OPTIONAL, "hash_ids", "hash_offsets"):
        column = getattr(workload, name)
        if column is None:
            continue
        if name not in ("hash_ids", "hash_offsets") and len(column) != n:
            raise ValueError(f"{name} has {len(column)} rows, arrival_s has {n}")
        column.flags.writeable = False
    if min(workload.prompt_tokens.min(), workload.output_tokens.min()) < 1:
        raise ValueError("lengths must be at least 1")
    if workload.max_tokens is not None and np.any(workload.max_tokens < workload.output_tokens):
        raise ValueError("max_tokens must be at least output_tokens")
    if workload.hash_ids is not None:
        _check_hashes(workload, n)


def _check_hashes(workload: Workload, n: int) -> None:
    offsets = workload.hash_offsets
    assert workload.hash_ids is not None
    if offsets is None or len(offsets) != n + 1 or offsets[-1] != len(workload.hash_ids) or workload.hash_block < 1:
        raise ValueError("hash_ids need n + 1 hash_offsets that end at their number, and a hash_block")


def _canonical_bytes(column: npt.NDArray[Any]) -> bytes:
    if column.dtype.kind == "U":
        return "\0".join(column.tolist()).encode()
    return column.astype("<f8" if column.dtype.kind == "f" else "<i8").tobytes()


def _interarrival_cv(arrival_s: FloatArray) -> float | None:
    gaps = np.diff(arrival_s)
    if len(gaps) < 2 or gaps.mean() == 0:
        return None
    return float(gaps.std() / gaps.mean())


def _length_stats(lengths: IntArray) -> dict[str, float]:
    quantiles = {name: float(np.quantile(lengths, q)) for name, q in _QUANTILES}
    extremes = {"total": int(lengths.sum()), "min": int(lengths.min()), "max": int(lengths.max())}
    return {"mean": float(lengths.mean()), **quantiles, **extremes}


def cut(workload: Workload, span_s: tuple[float, float]) -> Workload:
    """The requests in the span ``[start, end)`` seconds, `start` as the new zero; raises InputError if none is."""
    start, end = span_s
    if not 0 <= start < end:
        raise ConfigError(f"the span is {start:g} to {end:g} s; expected 0 <= start < end")
    if not np.any((workload.arrival_s >= start) & (workload.arrival_s < end)):
        raise InputError(f"no request arrives between {start:g} and {end:g} s", path=workload.name)
    return workload.between(start, end)


def load_name(path: str | Path) -> str:
    """What people call the workload in the file `path`: its name without the folder."""
    return Path(path).name or str(path)
