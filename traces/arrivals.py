"""When synthetic requests arrive: random processes over seconds, all with the same one-method face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.errors import ConfigError

from .specs import check_range, parse_spec
from .workload import FloatArray


class Arrivals(Protocol):
    """A way for requests to arrive."""

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """The first `n` arrival times from second 0 on, ``(n,)``, never decreasing."""


@dataclass(frozen=True)
class AllAtOnce:
    """Everything arrives at second 0."""

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """``n`` zeros."""
        return np.zeros(n)


@dataclass(frozen=True)
class Constant:
    """One request every ``1 / rate`` seconds, the first at 0."""

    rate: float

    def __post_init__(self) -> None:
        check_range("arrival rate", self.rate, above=0)

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Multiples of the gap."""
        return np.arange(n) / self.rate


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals: exponential gaps with mean ``1 / rate`` seconds."""

    rate: float

    def __post_init__(self) -> None:
        check_range("arrival rate", self.rate, above=0)

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Cumulated gaps."""
        return np.cumsum(rng.exponential(1 / self.rate, size=n))


@dataclass(frozen=True)
class Gamma:
    """Gamma gaps with mean ``1 / rate`` and coefficient of variation `cv` (1: Poisson; above: bursty)."""

    rate: float
    cv: float

    def __post_init__(self) -> None:
        check_range("arrival rate", self.rate, above=0)
        check_range("arrival cv", self.cv, above=0)

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Cumulated gaps: shape ``1 / cv**2``, scale ``cv**2 / rate``."""
        return np.cumsum(rng.gamma(self.cv**-2, self.cv**2 / self.rate, size=n))


@dataclass(frozen=True)
class Bursts:
    """Poisson at `rate` for `on` seconds, then at `off_rate` for `off` seconds, over and over."""

    rate: float
    on: float
    off: float
    off_rate: float = 0.0

    def __post_init__(self) -> None:
        check_range("burst rate", self.rate, above=0)
        check_range("burst on", self.on, above=0)
        check_range("burst off", self.off, least=0)
        check_range("burst off_rate", self.off_rate, least=0)

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Unit-rate Poisson arrivals, mapped through the inverse of the cumulated rate."""
        work = np.cumsum(rng.exponential(size=n))
        on_work, off_work = self.rate * self.on, self.off_rate * self.off
        cycles, rest = np.divmod(work, on_work + off_work)
        late = self.on + (rest - on_work) / (self.off_rate or np.inf)
        return cycles * (self.on + self.off) + np.where(rest <= on_work, rest / self.rate, late)


@dataclass(frozen=True)
class Ramp:
    """Poisson whose rate goes in a line from `start` to `end` over `seconds`, and stays there."""

    start: float
    end: float
    seconds: float

    def __post_init__(self) -> None:
        check_range("ramp start", self.start, least=0)
        check_range("ramp end", self.end, above=0)
        check_range("ramp seconds", self.seconds, above=0)

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Unit-rate Poisson arrivals through the inverse of ``start t + slope t**2 / 2``, linear after the ramp."""
        work = np.cumsum(rng.exponential(size=n))
        slope = (self.end - self.start) / self.seconds
        ramp_work = (self.start + self.end) / 2 * self.seconds
        early = np.minimum(work, ramp_work)
        # the root written so that a flat ramp (slope 0) divides by no zero
        rising = 2 * early / (self.start + np.sqrt(np.maximum(self.start**2 + 2 * slope * early, 0)))
        return np.where(work <= ramp_work, rising, self.seconds + (work - ramp_work) / self.end)


@dataclass(frozen=True)
class GapQuantiles:
    """Independent gaps from a distribution given by points ``(u, seconds)``, log-linear between them.

    Attributes:
        u: rising quantiles, the first 0, the last 1.
        seconds: the gaps there, above 0, never decreasing.
    """

    u: tuple[float, ...]
    seconds: tuple[float, ...]

    def times_s(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Cumulated gaps."""
        return np.cumsum(np.exp(np.interp(rng.random(n), self.u, np.log(self.seconds))))


ARRIVALS: dict[str, type[Arrivals]] = {
    "all-at-once": AllAtOnce,
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "bursts": Bursts,
    "ramp": Ramp,
}
"""Name in a spec -> class."""


def parse_arrivals(spec: str) -> Arrivals:
    """Arrivals from a spec like ``gamma:rate=5,cv=2``; raises ConfigError."""
    return parse_spec("arrivals", spec, ARRIVALS)


def check_times(times: FloatArray) -> FloatArray:
    """Times rounded to the microsecond: finer than a serving clock, and it hides the last bits in which machines'
    mathematical libraries differ. Raises ConfigError when a process has run past any sensible time.
    """
    if not np.isfinite(times).all() or (len(times) and times[-1] > 1e10):
        raise ConfigError("these arrivals reach past 10^10 seconds; expected a higher rate or fewer requests")
    return np.round(times, 6)
