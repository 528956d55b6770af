"""Service level objectives: limits on latency figures, read from text and held against a run's record."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.errors import ConfigError
from scheduler.policies import find_policy

METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
FIGURES = ("mean", "p50", "p90", "p95", "p99")
NAMES = tuple(f"{metric}_{figure}" for metric in METRICS for figure in FIGURES)
"""Everything that can be limited; see `traces.metrics` for what the figures mean."""
STREAMED = ("tpot", "itl")
"""Metrics that do not exist where all tokens are delivered at once."""
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3}
_SECONDS = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ms|s|)", re.IGNORECASE)


@dataclass(frozen=True)
class Figure:
    """A latency figure by name, as ``ttft_p99``: a metric and its mean or a percentile. Raises ConfigError."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            near = difflib.get_close_matches(self.name, NAMES, n=1, cutoff=0.5)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ConfigError(
                f"unknown latency figure {self.name!r}{hint}; expected METRIC_FIGURE with a metric of "
                f"{', '.join(METRICS)} and a figure of {', '.join(FIGURES)}"
            )

    @property
    def metric(self) -> str:
        """The part before the underscore."""
        return self.name.partition("_")[0]

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Its value in a run's record, seconds; None where no request has one."""
        metric, _, figure = self.name.partition("_")
        spread = record[f"{metric}_s"]
        return None if spread is None else float(spread[figure])


@dataclass(frozen=True)
class Slo:
    """Limits that must all hold: latency figures and the most seconds each may take."""

    limits: tuple[tuple[Figure, float], ...]

    @classmethod
    def parse(cls, text: str) -> Slo:
        """From ``ttft_p99=1.0,tpot_p99=50ms`` (seconds unless it says ms); raises ConfigError."""
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        if any(not equals for _, equals, _ in pairs):
            raise ConfigError(f"slo is {text!r}; expected limits such as ttft_p99=1.0,tpot_p99=0.05")
        limits = {name.strip(): value.strip() for name, _, value in pairs}
        if len(limits) < len(pairs):
            raise ConfigError(f"slo is {text!r}; expected one limit for each figure")
        return cls.of(limits)

    @classmethod
    def of(cls, limits: Mapping[str, float | str]) -> Slo:
        """From figure names and seconds; raises ConfigError for an unknown name or a limit that is none."""
        if not limits:
            raise ConfigError("slo is empty; expected limits such as ttft_p99=1.0,tpot_p99=0.05")
        return cls(tuple((Figure(name), _seconds(name, value)) for name, value in limits.items()))

    def as_dict(self) -> dict[str, float]:
        """Figure name -> limit in seconds."""
        return {figure.name: limit_s for figure, limit_s in self.limits}

    def check_policy(self, policy: str) -> None:
        """Raise ConfigError when it limits a figure that does not exist under the policy."""
        if not find_policy(policy).holds:
            return
        for figure, _ in self.limits:
            if figure.metric in STREAMED:
                raise ConfigError(
                    f"slo limits {figure.name}, but policy {policy} delivers all tokens of a request at once and has "
                    f"no {figure.metric}; limit ttft or e2e"
                )

    def misses(self, record: Mapping[str, Any]) -> list[str]:
        """Why a run does not meet it, one short reason each; none: it does.

        A run that is saturated, or that left requests without an answer, meets nothing: its figures would be worse
        had it gone on. A figure that no request has (TPOT where all outputs are one token) meets its limit.
        """
        reasons = []
        if record["saturated"]:
            reasons.append("saturated")
        if record["finished"] < record["requests"]:
            reasons.append(f"{record['requests'] - record['finished']} requests not served")
        for figure, limit_s in self.limits:
            value = figure.of(record)
            if value is not None and value > limit_s:
                reasons.append(f"{figure.name} {value:.4g} s > {limit_s:g} s")
        return reasons

    def strain(self, record: Mapping[str, Any]) -> float:
        """The worst figure as a multiple of its limit; at most 1 where the limits hold."""
        return max((figure.of(record) or 0.0) / limit_s for figure, limit_s in self.limits)


def _seconds(name: str, value: float | str) -> float:
    match = _SECONDS.fullmatch(str(value))
    try:
        seconds = float(match[1]) * _UNITS[match[2].lower()] if match else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"slo limit {name} is {value}; expected seconds > 0, as in {name}=0.5 or {name}=500ms")
    return seconds
