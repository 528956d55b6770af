"""The recorded cost model: replays the durations of a recorded run, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.config import Layout
from scheduler.errors import ConfigError
from scheduler.plan import StepShape

from .base import CostModel, StepCost

FloatArray = npt.NDArray[np.float64]


class RecordedCost(CostModel):
    """The n-th step priced takes as long as the n-th recorded one, whatever its shape.

    Args:
        device_s: device seconds of each recorded step, ``(steps,)``.
        host_s: host seconds of each, ``(steps,)``; default 0.
        on_end: what follows the last recorded step: ``error`` (default), or ``mean`` prices at the mean and counts the
            step as extrapolated.
        setup: model, hardware and tensor_parallel; the price does not depend on them.

    Raises:
        ConfigError: no steps, unequal lengths, a negative or non-finite duration; in `step_cost` a run that is longer
            than the recording.
    """

    name = "recorded"
    out_of_range = "the run has more steps than the recording; those steps are priced at its mean"

    def __init__(
        self,
        *,
        device_s: Sequence[float] | FloatArray,
        host_s: Sequence[float] | FloatArray | None = None,
        on_end: str = "error",
        **setup: Any,
    ) -> None:
        super().__init__(**setup)
        device = _durations("device_s", device_s)
        host = np.zeros_like(device) if host_s is None else _durations("host_s", host_s)
        if len(device) != len(host):
            raise ConfigError(f"recorded host_s has {len(host)} steps, device_s {len(device)}; expected as many")
        if on_end not in ("error", "mean"):
            raise ConfigError(f"recorded on_end is {on_end!r}; expected 'error' or 'mean'")
        self.on_end = on_end
        self._digest = hashlib.sha256(device.tobytes() + host.tobytes()).hexdigest()
        self._mean = StepCost(float(device.mean()), float(host.mean()))
        self._costs = [StepCost(d, h) for d, h in zip(device.tolist(), host.tolist(), strict=True)]
        self._next = 0

    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of the next recorded step; the shape is not looked at."""
        if self._next == len(self._costs):
            return self._beyond()
        self._next += 1
        return self._costs[self._next - 1]

    def padding_s(self, cost: StepCost, real: StepShape, layout: Layout) -> float:
        """0: a recording says nothing of rows that were not there."""
        return 0.0

    def options(self) -> dict[str, Any]:
        """How many steps were recorded, and the SHA-256 of their durations (the durations stay in their trace)."""
        return {"steps": len(self._costs), "on_end": self.on_end, "sha256": self._digest}

    def reset(self) -> None:
        """Start again at the first recorded step."""
        super().reset()
        self._next = 0

    def _beyond(self) -> StepCost:
        if self.on_end == "error":
            raise ConfigError(
                f"the recording has {len(self._costs)} steps and the run needs more; expected the workload and "
                "settings that were recorded, or on_end=mean"
            )
        self.extrapolated_steps += 1
        return self._mean


def _durations(name: str, values: Sequence[float] | FloatArray) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ConfigError(f"recorded {name} has shape {array.shape}; expected one duration a step")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ConfigError(f"recorded {name} of step {wrong[0]} is {array[wrong[0]]}; expected seconds >= 0")
    return array
