"""The preemption log: each loss in view once, the largest never dropped, names stay text."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboard.panels.preemptions import MOST_POINTS, PANEL
from traces.schema import DECODE, PREEMPTED, PREFILL

from .runs import HOSTILE, LOOKS, MemoryRun, array_of, random_run, sample, scene, steps_of, texts, traces_named


@pytest.mark.parametrize("axis", ["time", "step"])
def test_the_table_has_a_row_for_each_preemption_of_the_run(axis: str) -> None:
    run = sample("chunked")
    assert run.trace is not None
    frame = PANEL.table(scene(run, axis=axis))
    assert len(frame) == run.trace.summary()["preemptions"]
    assert frame["step"].tolist() == np.repeat(run.trace.steps["step"], run.trace.steps["preempted"]).tolist()


def test_only_those_in_view_are_drawn() -> None:
    run = sample("chunked")
    steps = PANEL.table(scene(run, axis="step"))["step"].to_numpy()
    figure = PANEL.draw(scene(run, axis="step", start=220, end=270))
    drawn = array_of(traces_named(figure, "loses its seat")[0]["customdata"])
    assert drawn.tolist() == steps[(steps >= 220) & (steps <= 270)].tolist()


def many(number: int, seed: int = 0) -> MemoryRun:
    """A run in which `number` requests lose their seat once each."""
    draw = np.random.default_rng(seed)
    step = np.sort(draw.integers(1, 900, number))
    kinds = np.tile([DECODE, PREEMPTED, PREFILL], number)
    first = (step[:, None] + [-1, 0, 1]).ravel()
    spans = {
        "request": np.repeat(np.arange(number), 3), "slot": np.tile([2, -1, 3], number), "kind": kinds,
        "first_step": first, "last_step": first, "start_s": first / 100, "end_s": (first + 1) / 100,
        "tokens": np.stack([draw.integers(1, 5000, number), np.zeros(number), np.ones(number)], axis=1).ravel(),
    }  # fmt: skip
    return MemoryRun(steps_of(1000), spans=spans, names=dict.fromkeys(range(number), HOSTILE))


def test_of_too_many_the_one_with_the_most_tokens_stays() -> None:
    run = many(20_000)
    figure = PANEL.draw(scene(run, axis="step"))
    drawn = array_of(traces_named(figure, "loses its seat")[0]["y"])
    assert len(drawn) <= MOST_POINTS
    assert drawn.max() == run.column("spans", "tokens").max()
    assert f"{MOST_POINTS:,} of 20,000 drawn" in texts(figure)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_hostile_names_stay_text(look: object) -> None:
    figure = PANEL.draw(scene(many(5), look=look, axis="step"))  # type: ignore[arg-type]  # a parameter of pytest
    go.Figure(figure)
    assert "<script" not in texts(figure)
    assert "&lt;script&gt;" in texts(figure)


def test_a_run_without_preemptions_says_so() -> None:
    shown = scene(random_run(10))
    assert "No request lost its seat" in texts(PANEL.draw(shown))
    assert len(PANEL.table(shown)) == 0
