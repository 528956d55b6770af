"""The frame that panels fill: what is said of a value is what it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.panels import PANELS
from dashboard.panels.frame import typed

from .runs import array_of, random_run, scene


@pytest.mark.parametrize("key", ["kv", "queue", "occupancy"])
def test_states_are_told_as_means_over_time_not_as_amounts_of_a_step(key: str) -> None:
    figure = PANELS[key].draw(scene(random_run(3000)))
    stacked = [trace["hovertemplate"] for trace in figure["data"] if "stackgroup" in trace]
    assert stacked
    assert not any("a step" in text for text in stacked)
    assert "mean over time" in str(figure["layout"]["annotations"])


def test_tokens_are_told_as_means_of_a_step() -> None:
    figure = PANELS["tokens"].draw(scene(random_run(3000)))
    assert all("a step" in trace["hovertemplate"] for trace in figure["data"] if "stackgroup" in trace)
    assert "mean of a step" in str(figure["layout"]["annotations"])


@given(st.lists(st.integers(-(2**52), 2**52), max_size=20))
def test_an_array_survives_the_way_to_the_browser(values: list[int]) -> None:
    assert array_of(typed(np.array(values, dtype=np.int64))).tolist() == values
