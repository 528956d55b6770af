"""Latency: curves are the percentiles that numpy gives for the requests in view, extremes included."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.panels.latency import METRICS, PANEL, Curve, curves

from .runs import HOSTILE, LOOKS, MemoryRun, random_run, sample, scene, steps_of, texts

SECONDS = st.floats(1e-6, 1e3)


@given(st.lists(SECONDS, min_size=1, max_size=1000))
@settings(max_examples=50, deadline=None)
def test_a_curve_holds_numpys_percentiles_and_both_extremes(values: list[float]) -> None:
    curve = Curve.of(np.sort(values))
    assert curve is not None
    assert curve.value_s == pytest.approx(np.percentile(values, curve.percent))
    assert (curve.at(0), curve.at(100)) == (min(values), max(values))
    assert {50.0, 99.0} <= set(curve.percent.tolist())


@given(st.lists(st.tuples(SECONDS, st.integers(1, 900)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_counted_values_count_as_often_as_they_say(pairs: list[tuple[float, int]]) -> None:
    pairs = sorted(pairs)
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    curve = Curve.of(values, counts)
    assert curve is not None
    assert curve.value_s == pytest.approx(np.percentile(np.repeat(values, counts), curve.percent))


@pytest.mark.parametrize("name", ["chunked", "slots", "chunked-simulated"])
@pytest.mark.parametrize("axis", ["time", "step"])
def test_p50_and_p99_of_a_whole_run_are_those_of_its_summary(name: str, axis: str) -> None:
    run = sample(name)
    assert run.trace is not None
    known = run.trace.summary()
    for metric, curve in curves(scene(run, axis=axis).windows[0]).items():
        assert curve is not None
        for percent in (50, 99):
            assert curve.at(percent) == pytest.approx(known[f"{metric.lower()}_s"][f"p{percent}"])


def test_a_view_takes_what_was_delivered_in_it_be_it_a_first_token_a_gap_or_an_end() -> None:
    run = sample("chunked")
    assert run.trace is not None
    window = scene(run, start=1.0, end=2.5).windows[0]
    requests, gaps = run.trace.requests, run.trace.gaps
    origin = requests["arrival_s"].min()
    part = requests[(requests["first_token_s"] - origin).between(1.0, 2.5)]
    ended = requests[(requests["finished_s"] - origin).between(1.0, 2.5)]
    found = curves(window)
    assert found["TTFT"] is not None
    assert found["ITL"] is not None
    ttft = (part["first_token_s"] - part["arrival_s"]).to_numpy()
    assert found["TTFT"].value_s == pytest.approx(np.percentile(ttft, found["TTFT"].percent))
    assert found["E2E"] is not None
    e2e = (ended["finished_s"] - ended["arrival_s"]).to_numpy()
    assert found["E2E"].value_s == pytest.approx(np.percentile(e2e, found["E2E"].percent))
    inside = gaps[gaps["step"].isin(window.values("step"))]
    itl = np.repeat(inside["gap_s"], inside["count"])
    assert found["ITL"].value_s == pytest.approx(np.percentile(itl, found["ITL"].percent))


def test_where_all_is_delivered_at_once_the_axes_say_so() -> None:
    shown = scene(sample("static"))
    found = curves(shown.windows[0])
    assert [name for name in METRICS if found[name] is None] == ["ITL", "TPOT"]
    assert texts(PANEL.draw(shown)).count("delivered at once") == 2


def test_x_is_logarithmic_where_values_spread_over_more_than_a_hundred_times() -> None:
    layout = PANEL.draw(scene(sample("chunked"), sample("static")))["layout"]
    assert layout["xaxis"]["type"] == "log"
    assert "type" not in layout["xaxis4"]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_with_and_without_anything_in_view(look: Any) -> None:
    empty = random_run(0)
    for shown in (scene(sample("slots"), sample("static"), look=look), scene(empty, look=look), scene(look=look)):
        go.Figure(PANEL.draw(shown))
        PANEL.words(shown)
    assert len(PANEL.table(scene(empty))) == 0


def test_a_hostile_run_name_stays_text() -> None:
    requests = {"arrival_s": np.array([0.0]), "first_token_s": np.array([0.1])}
    run = MemoryRun(steps_of(3), requests=requests, name=HOSTILE)
    assert "<script" not in texts(PANEL.draw(scene(run)))
