"""Looks at a server's ``/metrics`` as a run to compare with: one, or several with the times at which they were taken.

Several stand in one file, each behind a line ``# scraped SECONDS`` (of the Unix epoch), which Prometheus text takes for
a comment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from scheduler.errors import InputError
from traces.metric_names import DIALECTS
from traces.quantiles import QuantileRange, quantile_range
from traces.scrape import Counts, Scrape
from traces.workload import Workload

from .measured import MeasuredRun, StateSeries

PREFIXES = tuple(dialect.prefix for dialect in DIALECTS)
_SCRAPED = re.compile(r"^# scraped (\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_TYPE = re.compile(r"^# TYPE (\S+)", re.MULTILINE)
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
BUCKETS = "the server counts latencies in buckets: a percentile is known as lying between two bounds"
SINCE_START = "there is one look: latencies are of all requests since the server's start"
BETWEEN = "latencies are of what the server counted between the first look and the last"


def looks_like_metrics(head: str) -> bool:
    """Whether a text begins as the metrics of a server that we know."""
    return any(line.startswith(PREFIXES) or _SCRAPED.match(line) for line in head.splitlines())


def read_metrics(path: Path, workload: Workload) -> MeasuredRun:
    """The run in a file of scrapes.

    Args:
        path: Prometheus text.
        workload: what was sent: metrics do not say.

    Raises:
        InputError: it is none, looks go back in time, or the server was started anew between two.
    """
    looks = _looks(path)
    latencies = _latencies(looks)
    rate = _tokens_per_s(looks)
    return MeasuredRun(
        path=path,
        name=f"{looks[-1].dialect.server}'s metrics",
        workload=workload,
        settings=None,
        model=looks[-1].model or None,
        hardware=None,
        tensor_parallel=1,
        times=None,
        itl_s=None,
        series=_series(looks),
        cost=None,
        planned=False,
        by=looks[-1].dialect.server,
        figures={f"{name}_s": {"mean": mean} for name, each in latencies.items() if (mean := _mean(each)) is not None},
        ranges={f"{name}_s": found for name, each in latencies.items() if (found := _ranges(each))},
        totals={} if rate is None else {"output_tokens_per_s": rate},
        slack_s=float(np.median(np.diff([look.time_s for look in looks]))) if len(looks) > 1 else 0.0,
        notes=(BUCKETS, SINCE_START) if len(looks) == 1 else (BUCKETS, BETWEEN),
    )


def _looks(path: Path) -> list[Scrape]:
    text = path.read_text(encoding="utf-8", errors="replace")
    marks = list(_SCRAPED.finditer(text))
    if not marks:
        if len(found := _TYPE.findall(text)) > len(set(found)):  # a look names the type of each metric once
            raise InputError("holds several looks without times; expected '# scraped SECONDS' before each", path=path)
        return [Scrape.of(text, 0.0, str(path))]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    looks = [
        Scrape.of(text[mark.end() : end], float(mark[1]), f"{path}, scraped {mark[1]}")
        for mark, end in zip(marks, ends, strict=True)
        if text[mark.end() : end].strip()  # the server did not answer yet, or any more
    ]
    for before, after in pairwise(looks):
        if after.time_s <= before.time_s:
            raise InputError(f"look {after.time_s:.3f} does not come after the one before it", path=path)
        if after.restarted_since(before):
            raise InputError(f"the server was started anew before look {after.time_s:.3f}; expected one run", path=path)
    if not looks:
        raise InputError("holds no look at which the server answered", path=path)
    return looks


def _latencies(looks: list[Scrape]) -> dict[str, Counts]:
    """Histograms over the whole recording."""
    if len(looks) == 1:
        return dict(looks[0].latencies)
    first, last = looks[0].latencies, looks[-1].latencies
    gained = {name: last[name].since(first[name]) if name in first else last[name] for name in last}
    return {name: counts for name, counts in gained.items() if counts is not None}


def _mean(counts: Counts) -> float | None:
    values = float(counts.counts.sum())
    mean = counts.sum_s / values if values else math.nan
    return mean if math.isfinite(mean) else None


def _ranges(counts: Counts) -> dict[str, QuantileRange]:
    found = {name: quantile_range(counts, share) for name, share in PERCENTILES.items()}
    return {name: each for name, each in found.items() if each is not None}


def _tokens_per_s(looks: list[Scrape]) -> float | None:
    """Output tokens a second between the first and the last look at which their number moved; None: not known."""
    tokens = np.array([look.values.get("generation_tokens", math.nan) for look in looks])
    moved = np.flatnonzero(np.diff(tokens) > 0)
    if not len(moved):
        return None
    first, last = int(moved[0]), int(moved[-1]) + 1
    return float((tokens[last] - tokens[first]) / (looks[last].time_s - looks[first].time_s))


def _series(looks: list[Scrape]) -> StateSeries | None:
    if len(looks) == 1:
        return None
    table = np.array([_state(look.values) for look in looks])
    busy = np.flatnonzero(np.nansum(table[:, :2], axis=1) > 0)
    if not len(busy):
        return None
    t_s = np.array([look.time_s for look in looks])[busy[0] :]
    running, waiting, kv_use = table[busy[0] :].T
    return StateSeries(t_s - t_s[0], running, waiting, 100.0 * kv_use)


def _state(values: Mapping[str, float]) -> list[float]:
    return [values.get(name, math.nan) for name in ("running", "waiting", "kv_use")]
