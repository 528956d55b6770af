"""How long synthetic prompts and outputs are: distributions over whole tokens, all with the same one-method face."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from scheduler.errors import ConfigError

from .specs import check_range, parse_spec
from .workload import FloatArray, IntArray

MOST_TOKENS = 10_000_000
"""No single prompt or output is longer."""


class Lengths(Protocol):
    """A distribution of token counts."""

    def at(self, u: FloatArray) -> IntArray:
        """Token counts at the quantiles `u` in [0, 1), same shape, each at least 1: the inverse distribution."""


@dataclass(frozen=True)
class ConstantLength:
    """Always `value` tokens."""

    value: int

    def __post_init__(self) -> None:
        check_range("length value", self.value, least=1)

    def at(self, u: FloatArray) -> IntArray:
        """`value` everywhere."""
        return np.full(u.shape, self.value, dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Every whole number from `low` to `high` alike."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_range("length low", self.low, least=1)
        check_range("length high", self.high, least=self.low)

    def at(self, u: FloatArray) -> IntArray:
        """Equal slices of [0, 1)."""
        return self.low + np.floor(u * (self.high - self.low + 1)).astype(np.int64)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal with arithmetic mean `mean` (before rounding and the limits) and log-scale deviation `sigma`."""

    mean: float
    sigma: float
    min: int = 1
    max: int = 131_072

    def __post_init__(self) -> None:
        check_range("length mean", self.mean, least=1)
        check_range("length sigma", self.sigma, least=0)
        check_range("length min", self.min, least=1)
        check_range("length max", self.max, least=self.min)

    def at(self, u: FloatArray) -> IntArray:
        """``exp(mu + sigma z)`` with ``mu = ln(mean) - sigma**2 / 2``, rounded, within the limits."""
        log_length = math.log(self.mean) - self.sigma**2 / 2 + self.sigma * normal_quantile(u)
        return np.clip(np.round(np.exp(np.minimum(log_length, 30.0))), self.min, self.max).astype(np.int64)


@dataclass(frozen=True)
class Zipf:
    """``P(k) ~ k**-a`` for k from `min` to `max` tokens: most are short, few are long."""

    a: float
    max: int
    min: int = 1

    def __post_init__(self) -> None:
        check_range("length a", self.a, least=0)
        check_range("length min", self.min, least=1)
        check_range("length max", self.max, least=self.min)
        if self.max > MOST_TOKENS:
            raise ConfigError(f"length max is {self.max}; expected at most {MOST_TOKENS}")

    @cached_property
    def _cumulated(self) -> FloatArray:
        weights = np.arange(self.min, self.max + 1, dtype=np.float64) ** -self.a
        cumulated: FloatArray = np.cumsum(weights / weights.sum())
        return cumulated

    def at(self, u: FloatArray) -> IntArray:
        """Search in the cumulated probabilities."""
        place = np.searchsorted(self._cumulated, u, side="right")
        return np.minimum(self.min + place, self.max).astype(np.int64)


@dataclass(frozen=True)
class Empirical:
    """The lengths in a workload `file`, column ``prompt`` or ``output``, each drawn as often as it is there."""

    file: str
    column: str = "prompt"

    def __post_init__(self) -> None:
        if self.column not in ("prompt", "output"):
            raise ConfigError(f"empirical column is {self.column!r}; expected prompt or output")

    @cached_property
    def _sorted(self) -> IntArray:
        from .formats import read_workload

        workload = read_workload(self.file)
        return np.sort(workload.prompt_tokens if self.column == "prompt" else workload.output_tokens)

    def at(self, u: FloatArray) -> IntArray:
        """Order statistics of the file."""
        return self._sorted[np.floor(u * len(self._sorted)).astype(np.int64)]


@dataclass(frozen=True)
class Quantiles:
    """A distribution given by points ``(u, tokens)``, log-linear between them: how the presets are kept.

    Attributes:
        u: rising quantiles, the first 0, the last 1.
        tokens: the lengths there, never decreasing.
    """

    u: tuple[float, ...]
    tokens: tuple[float, ...]

    def at(self, u: FloatArray) -> IntArray:
        """Interpolated in the logarithm, rounded."""
        logs = np.interp(u, self.u, np.log(self.tokens))
        return np.maximum(np.round(np.exp(logs)), 1).astype(np.int64)


LENGTHS: dict[str, type[Lengths]] = {
    "constant": ConstantLength,
    "uniform": Uniform,
    "lognormal": LogNormal,
    "zipf": Zipf,
    "empirical": Empirical,
}
"""Name in a spec -> class."""


def parse_lengths(spec: str, what: str = "length") -> Lengths:
    """Lengths from a spec like ``lognormal:mean=500,sigma=1``; raises ConfigError.

    `what` is ``prompt`` or ``output``: the column that ``empirical:file=...`` means unless it says so.
    """
    if spec.startswith("empirical:") and "column=" not in spec and what == "output":
        spec += ",column=output"
    return parse_spec(what, spec, LENGTHS)


def normal_quantile(u: FloatArray) -> FloatArray:
    """The inverse of the standard normal distribution, same shape as `u` (relative error below 1.2e-9).

    P. J. Acklam's rational approximation ("An algorithm for computing the inverse normal cumulative distribution
    function", 2003); numpy has none.
    """
    p = np.clip(u, 1e-16, 1 - 1e-16)
    tail = np.minimum(p, 1 - p)
    q = np.sqrt(-2 * np.log(tail))
    outer = np.polyval(_C, q) / np.polyval((*_D, 1.0), q)
    centre = p - 0.5
    r = centre * centre
    inner = centre * np.polyval(_A, r) / np.polyval((*_B, 1.0), r)
    return np.where(tail < 0.02425, np.where(p < 0.5, outer, -outer), inner)


_A = (
    -3.969683028665376e1, 2.209460984245205e2, -2.759285104469687e2,
    1.383577518672690e2, -3.066479806614716e1, 2.506628277459239,
)  # fmt: skip
_B = (-5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2, 6.680131188771972e1, -1.328068155288572e1)
_C = (
    -7.784894002430293e-3, -3.223964580411365e-1, -2.400758277161838,
    -2.549732539343734, 4.374664141464968, 2.938163982698783,
)  # fmt: skip
_D = (7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416)
