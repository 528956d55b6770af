"""The same kind of traffic drawn several times: what repeated seeds mean for a preset and for a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import ConfigError
from traces.presets import at_rate, resolve_workload
from traces.workload import FloatArray, Workload, take_ragged

MOST_REQUESTS = 100_000_000
"""No run has more; it would not fit into memory."""
_COLUMNS = ("prompt_tokens", "output_tokens", "max_tokens", "priority", "request_ids", "session", "turn")


def resolve(
    source: Workload | str | Path,
    *,
    seed: int = 0,
    requests: int | None = None,
    rate: float | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Workload:
    """A workload from what a user may give: a Workload, a file or a preset's name; see `resolve_workload`."""
    if requests is not None and requests > MOST_REQUESTS:
        raise ConfigError(f"requests is {requests}; expected a whole number from 1 to {MOST_REQUESTS:,}")
    if not isinstance(source, Workload):
        return resolve_workload(source, seed=seed, requests=requests, rate=rate, **(reading or {}))
    workload = source if requests is None else source.head(requests)
    return workload if rate is None else at_rate(workload, rate)


def draws(source: Workload | str | Path, count: int, *, seed: int = 0, **options: Any) -> list[Workload]:
    """`count` draws of the same traffic, the first of them what `resolve` gives for `seed`.

    A preset (or a ServeGen folder) is drawn anew with the seeds that follow. A file, whose requests do not depend on a
    seed, is turned: each further draw begins at another place of it, drawn from its seed, and goes round to there.

    Raises what `resolve` does; `options` are its.
    """
    first = resolve(source, seed=seed, **options)
    found = [first]
    for number in range(1, count):
        again = resolve(source, seed=seed + number, **options)
        found.append(_turned_by(first, seed + number) if again.digest() == first.digest() else again)
    return found


def turned(workload: Workload, start: int) -> Workload:
    """The same requests from request `start` on, then those before it; each keeps the gap that came before it.

    Bursts, lengths and what follows on what stay as they are, but for the one place where end and start meet: there
    the gap is the mean one.
    """
    n = len(workload)
    rows = (np.arange(n) + start) % n
    span = float(workload.arrival_s[-1] - workload.arrival_s[0])
    mean_gap = span / (n - 1) if n > 1 else 0.0
    gaps = np.diff(workload.arrival_s, prepend=workload.arrival_s[0] - mean_gap)[rows]
    gaps[0] = 0.0
    columns = {name: getattr(workload, name) for name in _COLUMNS}
    changed: dict[str, Any] = {name: column[rows] for name, column in columns.items() if column is not None}
    if workload.hash_ids is not None and workload.hash_offsets is not None:
        changed["hash_ids"], changed["hash_offsets"] = take_ragged(workload.hash_ids, workload.hash_offsets, rows)
    arrival_s: FloatArray = np.add.accumulate(gaps).round(9)
    return replace(workload, arrival_s=arrival_s, **changed)


def _turned_by(workload: Workload, seed: int) -> Workload:
    rng = np.random.Generator(np.random.PCG64(seed))
    return turned(workload, int(rng.integers(1, len(workload)))) if len(workload) > 1 else workload
