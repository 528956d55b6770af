"""Slot occupancy: shares agree with the metrics, ended rows are told apart, nothing is lost in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings

from dashboard.panels.occupancy import PANEL, occupancy

from .runs import LOOKS, MemoryRun, array_of, random_run, runs, sample, scene, traces_named, views

ALL = ["chunked", "orca", "prefill-first", "slots", "static", "chunked-simulated"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("axis", ["time", "step"])
def test_the_occupancy_of_a_whole_run_is_that_of_the_metrics(name: str, axis: str) -> None:
    run = sample(name)
    assert run.trace is not None
    shown = scene(run, axis=axis)
    assert occupancy(shown.windows[0]) == pytest.approx(run.trace.summary()["slot_occupancy"], rel=1e-3)


def test_a_shorter_run_beside_a_longer_one_keeps_its_occupancy() -> None:
    short, long = sample("chunked"), sample("static")
    assert occupancy(scene(short, long).windows[0]) == pytest.approx(occupancy(scene(short).windows[0]))


def test_rows_that_have_ended_are_counted_from_the_seats_they_hold() -> None:
    run = sample("static")
    assert run.trace is not None
    steps = run.trace.steps
    figure = PANEL.draw(scene(run, axis="step", start=0, end=400))
    drawn = array_of(traces_named(figure, "held by ended rows")[0]["y"])[:-1]
    assert drawn == pytest.approx((steps["slots_busy"] - steps["running"]).to_numpy()[: len(drawn)])


def test_a_step_cut_by_the_view_counts_with_the_part_in_view() -> None:
    columns = {"step": [0, 1], "t_start_s": [0.0, 1.0], "t_end_s": [1.0, 2.0], "running": [2, 0], "slots_total": [4, 4]}
    run = MemoryRun({name: np.asarray(column) for name, column in columns.items()}, meta={"slots_total": 4})
    assert occupancy(scene(run, start=0.5, end=2.0).windows[0]) == pytest.approx(0.5 * 2 / (1.5 * 4))


@given(runs(), views())
@settings(max_examples=40, deadline=None)
def test_the_fullest_step_is_in_the_figure_and_the_figure_is_one(run: MemoryRun, view: dict[str, Any]) -> None:
    shown = scene(run, **view)
    figure = PANEL.draw(shown)
    go.Figure(figure)
    window = shown.windows[0]
    if len(window):
        drawn = [array_of(t["y"]).max() for t in traces_named(figure, "fullest step")] or [
            array_of(traces_named(figure, "unfinished requests")[0]["y"]).max()
        ]
        assert max(drawn) == pytest.approx(window.values("slots_busy").max())
    assert len(PANEL.table(shown)) == window.num_steps


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_four_runs_are_drawn_in_both_themes(look: Any) -> None:
    shown = scene(*(random_run(30, seed) for seed in range(4)), look=look)
    go.Figure(PANEL.draw(shown))
    assert PANEL.words(shown).count("slots over time") == 4
