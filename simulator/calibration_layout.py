"""One layout's part of a fitted cost: terms, residuals, range of validity and cross-validated error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .calibration_fit import CUT, SLOWER, Ints, design, fit, prices
from .costs.fit_terms import DEVICE, HOST, KINDS, REACH, Floats, Terms, kinds_of

Mask = npt.NDArray[np.bool_]

FOLDS = 5
LEAST_STEPS = 20
"""Fewer steps say nothing of a spread."""
QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Steps:
    """Recorded steps of one layout.

    Attributes:
        told: feature -> its value in each step, ``(steps,)``.
        device_s, host_s: seconds of each, ``(steps,)``.
        traces: number of the trace that each is of, ``(steps,)``.
        slower: how a step counts that took longer than its price (`calibration_fit.EVEN` or `SLOWER`).
    """

    told: dict[str, Ints]
    device_s: Floats
    host_s: Floats
    traces: Ints
    slower: float = SLOWER

    def __len__(self) -> int:
        return len(self.device_s)

    def only(self, which: Mask) -> Steps:
        """Those of a mask."""
        told = {name: values[which] for name, values in self.told.items()}
        return Steps(told, self.device_s[which], self.host_s[which], self.traces[which], self.slower)


@dataclass(frozen=True)
class Part:
    """Device or host seconds of a layout.

    Attributes:
        terms: of steps that nothing held up.
        mean_over_fit: seconds measured (each cut at `CUT` times its fit) per second fitted.
        cut: which steps were cut, ``(steps,)``.
    """

    terms: Terms
    mean_over_fit: float
    cut: Mask

    def prices(self, told: dict[str, Ints]) -> Floats:
        """Mean seconds of steps with these features, ``(steps,)``."""
        return prices(told, self.terms) * self.mean_over_fit


def fit_layout(steps: Steps) -> dict[str, Any]:
    """What a cost file says of one layout, as JSON values."""
    device, host = _parts(steps)
    price = device.prices(steps.told) + host.prices(steps.told)
    measured = steps.device_s + steps.host_s
    cut = device.cut | host.cut
    return {
        "steps": len(steps),
        "device": device.terms.as_dict(),
        "host": host.terms.as_dict(),
        "mean_over_fit": {"device": device.mean_over_fit, "host": host.mean_over_fit},
        "cut": {"over": CUT, "steps": _share(cut), "time": float(measured[cut].sum() / measured.sum())},
        "kinds": {name: int((kinds_of(steps.told) == kind).sum()) for kind, name in enumerate(KINDS)},
        "range": _reach(steps.told),
        "residuals": _residuals(price / measured - 1, kinds_of(steps.told)),
        "cross_validation": _cross_validation(steps),
    }


def enough(steps: Steps) -> str | None:
    """Why so few steps cannot be fitted; None where they can."""
    if len(steps) < LEAST_STEPS:
        return f"has {len(steps)} steps; expected at least {LEAST_STEPS}"
    shapes = len(np.unique(np.stack(list(steps.told.values())), axis=1).T)
    if shapes < 2:
        return "has steps of one shape only; expected steps of different shapes, which tell what a row costs"
    terms = design(steps.told, DEVICE).matrix.shape[1]
    return f"has {len(steps)} steps for {terms} terms; expected more" if len(steps) <= terms else None


def _parts(steps: Steps) -> tuple[Part, Part]:
    return _part(steps, DEVICE, steps.device_s), _part(steps, HOST, steps.host_s)


def _part(steps: Steps, names: tuple[str, ...], seconds: Floats) -> Part:
    terms = fit(design(steps.told, names), seconds, steps.slower)
    fitted = prices(steps.told, terms)
    total = float(fitted.sum())
    mean = float(np.minimum(seconds, CUT * fitted).sum()) / total if total else 1.0
    return Part(terms, mean, seconds > CUT * fitted)


def _share(which: Mask) -> float:
    return float(np.count_nonzero(which)) / len(which)


def _reach(told: dict[str, Ints]) -> dict[str, list[float]]:
    """Feature -> least and greatest value among the steps that have any of it; what no step has is left out."""
    decodes = told["decodes"] > 0
    mean = told["decode_context"][decodes] / told["decodes"][decodes]
    values = {**told, "mean_decode_context": mean}
    some = {name: values[name][values[name] > 0] for name in REACH}
    return {name: [found.min().item(), found.max().item()] for name, found in some.items() if len(found)}


def _residuals(errors: Floats, kinds: Ints) -> dict[str, Any]:
    """Price / measured - 1 of the steps: quantiles and median size, of all and of each kind."""
    of = {"all": errors, **{name: errors[kinds == kind] for kind, name in enumerate(KINDS)}}
    return {name: _spread(found) for name, found in of.items() if len(found)}


def _spread(errors: Floats) -> dict[str, float]:
    quantiles = {f"p{q}": float(value) for q, value in zip(QUANTILES, np.percentile(errors, QUANTILES), strict=True)}
    return {**quantiles, "median_size": float(np.median(np.abs(errors)))}


def _cross_validation(steps: Steps) -> dict[str, Any] | None:
    """Each fold priced by a fit to the others: median size of a step's error, and errors of the folds' seconds.

    Folds are the traces where there are several, else blocks of consecutive steps: neighbours share the machine's mood.
    None where the others are too few to be fitted.
    """
    by_trace = len(np.unique(steps.traces)) > 1
    folds = steps.traces if by_trace else np.arange(len(steps)) * FOLDS // len(steps)
    errors, totals = [], []
    for fold in np.unique(folds):
        rest, held = steps.only(folds != fold), steps.only(folds == fold)
        if enough(rest) is not None:
            return None
        price = sum((part.prices(held.told) for part in _parts(rest)), np.zeros(len(held)))
        measured = held.device_s + held.host_s
        errors.append(np.abs(price / measured - 1))
        totals.append(float(price.sum() / measured.sum() - 1))
    return {
        "folds": "traces" if by_trace else "blocks",
        "median_size": float(np.median(np.concatenate(errors))),
        "total": totals,
    }


def joined(parts: list[Steps]) -> Steps:
    """Steps of several traces, one after the other; the traces are numbered in their order."""
    first = parts[0]
    told = {name: np.concatenate([part.told[name] for part in parts]) for name in first.told}
    numbers = np.concatenate([np.full(len(part), number, dtype=np.int64) for number, part in enumerate(parts)])
    device_s, host_s = (np.concatenate([getattr(part, name) for part in parts]) for name in ("device_s", "host_s"))
    return Steps(told, device_s, host_s, numbers, min(part.slower for part in parts))
