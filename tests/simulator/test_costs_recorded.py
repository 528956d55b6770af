"""Tests of the recorded cost model."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.errors import ConfigError
from scheduler.plan import StepShape
from simulator.costs import make_cost_model

SHAPE = StepShape.of("ragged", [1], [10])


def test_durations_come_back_exactly_in_order_and_again_after_reset() -> None:
    device, host = np.array([0.1, 0.2, 0.3]), [0.01, 0.02, 0.03]
    cost = make_cost_model("recorded", device_s=device, host_s=host)
    for _ in range(2):
        prices = [cost.step_cost(SHAPE) for _ in device]
        assert [price.device_s for price in prices] == device.tolist()
        assert [price.host_s for price in prices] == host
        cost.reset()


def test_longer_run_than_recording_is_an_error() -> None:
    cost = make_cost_model("recorded", device_s=[0.1])
    cost.step_cost(SHAPE)
    with pytest.raises(ConfigError, match="has 1 steps and the run needs more"):
        cost.step_cost(SHAPE)


def test_longer_run_is_priced_at_the_mean_and_counted_when_asked_for() -> None:
    cost = make_cost_model("recorded", device_s=[0.1, 0.3], on_end="mean")
    prices = [cost.step_cost(SHAPE).device_s for _ in range(4)]
    assert prices == pytest.approx([0.1, 0.3, 0.2, 0.2])
    extrapolation = cost.extrapolation()
    assert extrapolation is not None
    assert extrapolation["steps"] == 2
    assert "more steps than the recording" in extrapolation["reason"]
    cost.reset()
    assert cost.extrapolation() is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device_s": []}, "expected one duration a step"),
        ({"device_s": [[0.1]]}, "expected one duration a step"),
        ({"device_s": [0.1, -0.1]}, "of step 1 is -0.1"),
        ({"device_s": [float("nan")]}, "of step 0 is nan"),
        ({"device_s": [0.1], "host_s": [0.1, 0.2]}, "host_s has 2 steps, device_s 1"),
        ({"device_s": [0.1], "on_end": "loop"}, "expected 'error' or 'mean'"),
        ({}, "needs device_s"),
    ],
)
def test_wrong_recordings_get_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_cost_model("recorded", **options)  # type: ignore[arg-type]  # wrong on purpose


def test_description_tells_recordings_apart() -> None:
    one, other = (make_cost_model("recorded", device_s=[seconds]).options() for seconds in (0.1, 0.2))
    assert one["steps"] == other["steps"] == 1
    assert one["sha256"] != other["sha256"]
