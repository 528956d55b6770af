"""One look at a server's `/metrics`: the numbers we know, out of Prometheus text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from scheduler.errors import InputError

from .metric_names import DIALECTS, Dialect

Floats = npt.NDArray[np.float64]
PREFIXES = tuple(dialect.prefix for dialect in DIALECTS)


@dataclass(frozen=True, eq=False)
class Counts:
    """A histogram: how many values lie in each bucket.

    Attributes:
        bounds: upper ends of the buckets, seconds, the last infinite; ``(buckets,)``.
        counts: values in each bucket, not summed up; ``(buckets,)``.
        sum_s: of all values, seconds; nan where the server does not tell.
    """

    bounds: Floats
    counts: Floats
    sum_s: float = math.nan

    def since(self, before: Counts) -> Counts | None:
        """What came after an earlier look; None when that was of another run (fewer values, or other buckets)."""
        if not np.array_equal(self.bounds, before.bounds) or (self.counts < before.counts).any():
            return None
        return Counts(self.bounds, self.counts - before.counts, self.sum_s - before.sum_s)


@dataclass(frozen=True, eq=False)
class Scrape:
    """What a server said at one moment, summed over its engines.

    Attributes:
        dialect: its kind.
        model: the first model that it names; may be empty.
        time_s: when, seconds of the Unix epoch.
        values: gauges and counters that were there, by our names; `iterations` and `iteration_tokens` are counters.
        latencies: histograms that were there, by our names.
    """

    dialect: Dialect
    model: str
    time_s: float
    values: Mapping[str, float]
    latencies: Mapping[str, Counts]

    @classmethod
    def of(cls, text: str, time_s: float, where: str) -> Scrape:
        """From Prometheus text. Raises InputError when it is none, or none that we know."""
        samples = _samples(text, where)
        dialect = next((each for each in DIALECTS if any(name.startswith(each.prefix) for name in samples)), None)
        if dialect is None:
            raise InputError(f"{where} has metrics, but none of vLLM, SGLang or batchscope")
        model = next(
            (s.labels["model_name"] for all_ in samples.values() for s in all_ if "model_name" in s.labels), ""
        )
        return cls(dialect, model, time_s, _values(dialect, samples), _latencies(dialect, samples))

    def restarted_since(self, before: Scrape) -> bool:
        """Whether the server was started anew meanwhile: a counter went down, or the server is another one."""
        if self.dialect is not before.dialect:
            return True
        counters = [*self.dialect.counters, "iterations", "iteration_tokens"]
        fell = (
            self.values[name] < before.values[name] for name in counters if name in self.values.keys() & before.values
        )
        latencies = self.latencies.keys() & before.latencies
        return any(fell) or any(self.latencies[name].since(before.latencies[name]) is None for name in latencies)


_Samples = dict[str, list[Sample]]


def _samples(text: str, where: str) -> _Samples:
    """Samples by name. Other families and all comments are left out first: parsing is slow."""
    lines = [line for line in text.splitlines() if line.startswith(PREFIXES)]
    found: _Samples = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample)
    except (ValueError, KeyError, IndexError, TypeError) as error:  # what its parser raises on broken lines
        raise InputError(f"the metrics of {where} are no Prometheus text ({error})") from None
    return found


def _values(dialect: Dialect, samples: _Samples) -> dict[str, float]:
    named = {**dialect.gauges, **dialect.counters}
    found = {what: samples[name] for what, names in named.items() if (name := _first(names, samples))}
    values = {what: _total(each, mean=what == "kv_use") for what, each in found.items()}
    for name in dialect.histograms.get("iteration_tokens", ()):
        if f"{name}_count" in samples and f"{name}_sum" in samples:
            values["iterations"] = _total(samples[f"{name}_count"])
            values["iteration_tokens"] = _total(samples[f"{name}_sum"])
    return {what: value for what, value in values.items() if math.isfinite(value)}


def _latencies(dialect: Dialect, samples: _Samples) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for what, names in dialect.histograms.items():
        name = _first([f"{each}_bucket" for each in names], samples)
        counts = _counts(samples[name], samples.get(f"{name.removesuffix('_bucket')}_sum", [])) if name else None
        if counts is not None and what != "iteration_tokens":
            found[what] = counts
    return found


def _first(names: Iterable[str], there: Mapping[str, object]) -> str | None:
    return next((name for name in names if name in there), None)


def _total(samples: list[Sample], *, mean: bool = False) -> float:
    """Over engines; a fraction is their mean. Samples for parts of the whole (a priority) are left out."""
    whole = [sample for sample in samples if not sample.labels.get("priority")] or samples
    total = sum(sample.value for sample in whole)
    return total / len(whole) if mean else total


def _counts(samples: list[Sample], totals: list[Sample]) -> Counts | None:
    """Buckets and sums of all engines together; None when they make no histogram."""
    sums: dict[float, float] = {}
    for sample in samples:
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            return None
        sums[bound] = sums.get(bound, 0.0) + sample.value
    bounds = np.array(sorted(sums))
    cumulative = np.array([sums[bound] for bound in bounds.tolist()])
    counts = np.diff(cumulative, prepend=0.0)
    if bounds[-1] != math.inf or not np.isfinite(cumulative).all() or (counts < 0).any():
        return None
    return Counts(bounds, counts, sum(sample.value for sample in totals) if totals else math.nan)
