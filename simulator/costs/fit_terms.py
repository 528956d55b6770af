"""Terms of a fitted price: the features of a step, and seconds as curves over them that never fall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from scheduler.plan import StepShape

Floats = npt.NDArray[np.float64]
Count = TypeVar("Count", int, npt.NDArray[np.int64])

SHAPE_COLUMNS: dict[str, str] = {
    "computed_tokens": "computed_tokens",
    "num_reqs": "rows",
    "logits_rows": "logits_rows",
    "decode_tokens": "decode_rows",
    "decode_context": "decode_context",
    "prefill_tokens": "prefill_rows",
    "prefill_context": "prefill_context",
    "prefill_pairs": "prefill_pairs",
}
"""Attribute of a `StepShape` -> column of a trace's `steps` that holds it, in the order of `StepShape`."""

DEVICE = ("rows", "logits_rows", "prefills", "decode_context", "prefill_pairs", "prefill_context", "decodes")
"""Features that device seconds may depend on; of those that the data cannot tell apart the first one stays."""
HOST = ("requests", "prefills", "rows")
"""Likewise for host seconds."""
CURVED = ("rows", "logits_rows")
"""Features of matrix products, whose time is no straight line in few rows: they may have several knots."""
REACH: dict[str, str] = {
    "rows": "rows",
    "requests": "requests",
    "logits_rows": "logits rows",
    "decodes": "decodes",
    "decode_context": "KV positions of decodes",
    "mean_decode_context": "KV positions a decode",
    "prefills": "prefilling requests",
    "prefill_tokens": "prefill rows",
    "prefill_context": "KV positions of prefills",
    "prefill_pairs": "prefill pairs",
}
"""Features whose range of validity is kept -> their name in a sentence."""
KINDS = ("decode", "mixed", "prefill")
"""Kinds of step: decodes alone, both, prefills alone."""


def features(
    computed_tokens: Count, num_reqs: Count, logits_rows: Count, decode_tokens: Count, decode_context: Count,
    prefill_tokens: Count, prefill_context: Count, prefill_pairs: Count,
) -> dict[str, Count]:  # fmt: skip
    """What a price depends on, of one step or of many; the arguments are attributes of `StepShape`.

    Each prefill is a call of its own in an engine that runs prompts one by one, so they are counted (`prefills`).
    """
    return {
        "rows": computed_tokens,
        "requests": num_reqs,
        "logits_rows": logits_rows,
        "decodes": decode_tokens,
        "decode_context": decode_context,
        "prefills": num_reqs - decode_tokens,
        "prefill_tokens": prefill_tokens,
        "prefill_context": prefill_context,
        "prefill_pairs": prefill_pairs,
    }


def features_of(shape: StepShape) -> dict[str, int]:
    """The features of one step's shape."""
    return features(*(getattr(shape, name) for name in SHAPE_COLUMNS))


def features_in(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.int64]]:
    """The features of recorded steps, each ``(steps,)``; `columns` are those of `SHAPE_COLUMNS`."""
    return features(*(columns[name].astype(np.int64) for name in SHAPE_COLUMNS.values()))


def kinds_of(told: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Index into `KINDS` of each step."""
    return np.where(told["prefill_tokens"] == 0, 0, np.where(told["decodes"] > 0, 1, 2))


@dataclass(frozen=True)
class Curve:
    """Seconds over a feature: straight between knots, the last slope goes on; 0 at 0.

    Attributes:
        knots: where slopes change, rising from 0.
        slopes_s: seconds a unit from each knot on, as many as there are knots, none negative.
    """

    knots: tuple[int, ...]
    slopes_s: tuple[float, ...]

    def seconds(self, value: float) -> float:
        """Seconds at a value >= 0."""
        total = 0.0
        for at, (knot, slope_s) in enumerate(zip(self.knots, self.slopes_s, strict=True)):
            if value <= knot:
                break
            end = self.knots[at + 1] if at + 1 < len(self.knots) else value
            total += slope_s * (min(value, end) - knot)
        return total

    def scaled(self, factor: float) -> Curve:
        """All seconds times `factor`."""
        return Curve(self.knots, tuple(slope_s * factor for slope_s in self.slopes_s))


def parts_between(values: npt.NDArray[np.int64], knots: tuple[int, ...]) -> Floats:
    """How much of each value lies in each piece of a curve, ``(steps, knots)``: seconds are its product with slopes."""
    starts = np.array(knots, dtype=np.float64)
    sizes = np.diff(np.append(starts, np.inf))
    found: Floats = np.clip(values[:, None] - starts, 0.0, sizes)
    return found


@dataclass(frozen=True)
class Terms:
    """Seconds of a step: ``step_s`` and the curves of its features.

    Attributes:
        step_s: seconds of every step.
        curves: feature -> its curve; what has none costs nothing.
    """

    step_s: float
    curves: Mapping[str, Curve]

    def seconds(self, told: Mapping[str, int]) -> float:
        """Seconds of a step with these features."""
        return self.step_s + sum(curve.seconds(told[name]) for name, curve in self.curves.items())

    def scaled(self, factor: float) -> Terms:
        """All seconds times `factor`."""
        return Terms(self.step_s * factor, {name: curve.scaled(factor) for name, curve in self.curves.items()})

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        curves = {name: {"knots": list(c.knots), "slopes_s": list(c.slopes_s)} for name, c in self.curves.items()}
        return {"step_s": self.step_s, "curves": curves}
