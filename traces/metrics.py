"""The figures of a run, the same for simulated and measured ones.

Definitions:

- **TTFT** first delivered token - arrival. **Queue** first seat - arrival. **E2E** finish - arrival.
- **ITL** pools the gaps between deliveries of one request: N tokens give N - 1.
- **TPOT** (last - first delivery) / (N - 1) of each request with N >= 2 tokens. ITL and TPOT are null where a policy
  delivers all at once.
- TTFT and queue are taken over all requests for which they happened, TPOT and E2E over those that ended by themselves
  (``stop`` or ``length``).
- **Makespan** first arrival to last end; to the end of the last step where some requests had not ended.
- **Slot occupancy** time-weighted unfinished requests in seats / (slots x makespan).
- **Padding fraction** padded rows / rows computed.
- **Goodput** requests per second that ended by themselves and met every limit given.
- Percentiles interpolate linearly between the two nearest ranks (numpy's ``linear``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError, unknown_name

from .schema import FINISH_REASONS, PADDING_COLUMNS

if TYPE_CHECKING:
    from .store import Columns
    from .trace import Trace

Floats = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99)
SLO_FIELDS = ("ttft_s", "tpot_s", "e2e_s")

_STEP_SUMS = ("preempted", "recomputed_tokens", "cached_tokens", "computed_tokens", "padding_s", "padding_context")
_STEP_COLUMNS = ("t_start_s", "t_end_s", "running", "slots_total", "blocks_used", "blocks_total")
_SERVED = (FINISH_REASONS.index("stop"), FINISH_REASONS.index("length"))


def summarize(trace: Trace, slo: Mapping[str, float] | None = None) -> dict[str, Any]:
    """All metrics of a trace; times in seconds, null where a figure does not exist.

    Args:
        trace: what to sum up.
        slo: limits each request must meet, seconds: any of ``ttft_s``, ``tpot_s``, ``e2e_s``; adds ``goodput_per_s``
            and ``goodput_requests``. A request without a TPOT (one token, or all at once) meets any limit of it.

    Raises:
        ConfigError: a limit of another name, or not above 0.
    """
    check_slo(slo or {})
    steps = _StepTotals.of(trace)
    times = RequestTimes.of(trace)
    makespan_s = _makespan(times, steps)
    return {
        "requests": len(times.arrival_s),
        "finished": int(times.served.sum()),
        "finish_reasons": times.reasons,
        "steps": steps.count,
        "makespan_s": makespan_s,
        "ttft_s": spread(times.ttft_s),
        "tpot_s": spread(times.tpot_s),
        "itl_s": _gap_spread(trace),
        "e2e_s": spread(times.e2e_s),
        "queue_s": spread(times.queue_s),
        "requests_per_s": _ratio(times.served.sum(), makespan_s),
        "prompt_tokens_per_s": _ratio(times.prompt_tokens[times.output_tokens > 0].sum(), makespan_s),
        "output_tokens_per_s": _ratio(times.output_tokens.sum(), makespan_s),
        **({} if slo is None else _goodput(times, slo, makespan_s)),
        **steps.figures(makespan_s),
    }


@dataclass(frozen=True)
class RequestTimes:
    """Times of each request, ``(requests,)``; nan where they did not happen."""

    arrival_s: Floats
    finished_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    queue_s: Floats
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    served: npt.NDArray[np.bool_]
    """Ended by itself."""
    reasons: dict[str, int]
    """Finish reason -> requests; only those that occur."""

    @classmethod
    def of(cls, trace: Trace) -> RequestTimes:
        """Read them from a trace's requests."""
        return cls.of_columns(trace.columns("requests"), streams=bool(trace.meta.get("streams", True)))

    @classmethod
    def of_columns(cls, columns: Columns, *, streams: bool) -> RequestTimes:
        """From columns of `requests`, each ``(requests,)``.

        Args:
            columns: all of the schema, or some of its rows.
            streams: tokens were delivered as they came; else there is no TPOT.
        """
        arrival, finished, first = (columns[name] for name in ("arrival_s", "finished_s", "first_token_s"))
        output = columns["output_tokens"].astype(np.int64)
        served = np.isin(columns["finish_reason"], _SERVED)
        timed = served & (output >= 2) & streams
        counts = np.bincount(columns["finish_reason"], minlength=len(FINISH_REASONS)).tolist()
        return cls(
            arrival_s=arrival,
            finished_s=finished,
            ttft_s=first - arrival,
            tpot_s=np.where(timed, (finished - first) / np.maximum(output - 1, 1), np.nan),
            e2e_s=np.where(served, finished - arrival, np.nan),
            queue_s=columns["scheduled_s"] - arrival,
            prompt_tokens=columns["prompt_tokens"].astype(np.int64),
            output_tokens=output,
            served=served,
            reasons={name: count for name, count in zip(FINISH_REASONS, counts, strict=True) if count},
        )


def spread(values: Floats) -> dict[str, float] | None:
    """Mean and percentiles of the values that are not nan; None where there is none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    return _named(float(known.mean()), np.percentile(known, PERCENTILES).tolist())


def weighted_spread(values: Floats, counts: npt.NDArray[np.integer[Any]]) -> dict[str, float] | None:
    """The same for values of which each stands for ``counts`` equal ones."""
    total = int(counts.sum(dtype=np.int64))
    if not total:
        return None
    return _named(float((values * counts).sum() / total), weighted_percentiles(values, counts, PERCENTILES))


def weighted_percentiles(
    values: Floats, counts: npt.NDArray[np.integer[Any]], percentiles: Sequence[float]
) -> list[float]:
    """`numpy.percentile` of the list in which each value stands as often as its count says, without making that list.

    Args:
        values: shape ``(n,)``, finite.
        counts: shape ``(n,)``, not negative, at least one positive.
        percentiles: each from 0 to 100.
    """
    order = np.argsort(values, kind="stable")
    ranked, below = values[order], np.cumsum(counts[order], dtype=np.int64)
    place = (int(below[-1]) - 1) * np.true_divide(np.asarray(percentiles, dtype=np.float64), 100)
    lower = np.floor(place).astype(np.int64)
    upper = np.minimum(lower + 1, int(below[-1]) - 1)
    at_lower, at_upper = (ranked[np.searchsorted(below, rank, side="right")] for rank in (lower, upper))
    return [float(value) for value in _interpolate(at_lower, at_upper, place - lower)]


def _interpolate(lower: Floats, upper: Floats, part: Floats) -> Floats:
    """Between two values, rounded as numpy.percentile does: from the nearer of the two."""
    step = upper - lower
    return np.asarray(np.where(part >= 0.5, upper - step * (1 - part), lower + step * part), dtype=np.float64)


def _named(mean: float, percentiles: Iterable[float]) -> dict[str, float]:
    return {"mean": mean, **{f"p{p}": value for p, value in zip(PERCENTILES, percentiles, strict=True)}}


def _gap_spread(trace: Trace) -> dict[str, float] | None:
    gaps = trace.columns("gaps", ["gap_s", "count"])
    return weighted_spread(gaps["gap_s"], gaps["count"])


def _makespan(times: RequestTimes, steps: _StepTotals) -> float | None:
    if not len(times.arrival_s):
        return None
    ends = [steps.end_s] if np.isnan(times.finished_s).any() and steps.count else []
    known = times.finished_s[~np.isnan(times.finished_s)]
    if len(known):
        ends.append(float(known.max()))
    return max(ends) - float(times.arrival_s.min()) if ends else None


class _StepTotals:
    """Sums over all steps, taken piece by piece."""

    def __init__(self) -> None:
        self.count = 0
        self.end_s = -np.inf
        self._sums: dict[str, Any] = dict.fromkeys([*_STEP_SUMS, *PADDING_COLUMNS.values()], 0)
        self._busy_s = self._blocks_s = 0.0
        self._peaks = dict.fromkeys(("slots_total", "blocks_total", "blocks_used"), 0)

    @classmethod
    def of(cls, trace: Trace) -> _StepTotals:
        """Add up the steps of a trace."""
        totals = cls()
        for steps in trace.chunks("steps", list(dict.fromkeys([*_STEP_COLUMNS, *totals._sums]))):
            totals._add(steps)
        return totals

    def _add(self, steps: Columns) -> None:
        self.count += len(steps["t_end_s"])
        for name in self._sums:
            self._sums[name] += steps[name].sum().item()
        for name, peak in self._peaks.items():
            self._peaks[name] = max(peak, int(steps[name].max()))
        weights = step_weights(steps["t_start_s"], steps["t_end_s"], self.end_s)
        self._busy_s += float((weights * steps["running"]).sum())
        self._blocks_s += float((weights * steps["blocks_used"]).sum())
        self.end_s = float(steps["t_end_s"][-1])

    def figures(self, makespan_s: float | None) -> dict[str, Any]:
        """What `summarize` says about steps."""
        sums, peaks = self._sums, self._peaks
        padding = {cause: sums[name] for cause, name in PADDING_COLUMNS.items()}
        slots_s = None if makespan_s is None else makespan_s * peaks["slots_total"]
        return {
            "slot_occupancy": _ratio(self._busy_s, slots_s),
            "padding_fraction": _ratio(sum(padding.values()), sums["computed_tokens"]),
            "padding_tokens": {**padding, "context": sums["padding_context"]},
            "padding_s": float(sums["padding_s"]),
            "computed_tokens": sums["computed_tokens"],
            "preemptions": sums["preempted"],
            "recomputed_tokens": sums["recomputed_tokens"],
            "cached_tokens": sums["cached_tokens"],
            "blocks": {
                "total": peaks["blocks_total"],
                "peak_used": peaks["blocks_used"],
                "mean_used": _ratio(self._blocks_s, makespan_s),
            },
        }


def step_weights(t_start_s: Floats, t_end_s: Floats, before_s: float = -np.inf) -> Floats:
    """Seconds for which each step's state held: its own time, less what overlaps with the step before.

    Args:
        t_start_s: shape ``(steps,)``.
        t_end_s: shape ``(steps,)``.
        before_s: end of the step before the first.
    """
    before = np.concatenate([[before_s], t_end_s[:-1]])
    weights: Floats = np.maximum(t_end_s - np.maximum(t_start_s, before), 0.0)
    return weights


def _goodput(times: RequestTimes, slo: Mapping[str, float], makespan_s: float | None) -> dict[str, Any]:
    good = times.served.copy()
    for name, limit in slo.items():
        good &= ~(getattr(times, name) > limit)
    return {"goodput_requests": int(good.sum()), "goodput_per_s": _ratio(good.sum(), makespan_s)}


def check_slo(slo: Mapping[str, float]) -> None:
    """Raise ConfigError for a limit that `summarize` does not know, or that is no number of seconds above 0."""
    for name, limit in slo.items():
        if name not in SLO_FIELDS:
            raise unknown_name("limit", name, SLO_FIELDS)
        if not 0 < limit < float("inf"):
            raise ConfigError(f"limit {name} is {limit!r}; expected seconds > 0")


def _ratio(part: float | np.integer[Any], whole: float | None) -> float | None:
    return float(part / whole) if whole else None
