from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings

from dashboard.panels.queue import PANEL
from scheduler.plan import WAIT_REASONS

from .runs import (
    HOSTILE,
    LOOKS,
    MemoryRun,
    array_of,
    random_run,
    runs,
    sample,
    scene,
    texts,
    time_means,
    traces_named,
    views,
)


def stacked(figure: dict[str, Any]) -> Any:
    return sum(array_of(trace["y"]) for trace in figure["data"] if str(trace.get("name")).startswith("wait for"))


@settings(max_examples=25, deadline=None)
@given(runs(), views())
def test_the_layers_add_up_to_the_mean_over_time_of_waiting_and_the_peak_is_drawn(
    run: MemoryRun, view: dict[str, Any]
) -> None:
    shown = scene(run, **view)
    window, figure = shown.windows[0], PANEL.draw(shown)
    if window.num_steps and window.values("waiting").any():
        np.testing.assert_allclose(stacked(figure), window.outline.y(time_means(window, "waiting")), atol=1e-9)
    if not window.exact:
        (line,) = traces_named(figure, "most that wait")
        assert array_of(line["y"]).max() == window.values("waiting").max()
        (line,) = traces_named(figure, "most that run")
        assert array_of(line["y"]).max() == window.values("running").max()


def test_one_long_queue_among_many_steps_is_not_lost() -> None:
    waiting = np.zeros(200_000, dtype=np.int32)
    waiting[123_456] = 77
    steps = np.arange(200_000)
    run = MemoryRun({"step": steps, "t_start_s": steps, "t_end_s": steps + 1, "waiting": waiting})
    figure = PANEL.draw(scene(run, axis="step"))
    assert array_of(traces_named(figure, "most that wait")[0]["y"]).max() == 77


@pytest.mark.parametrize("name", ["static", "chunked", "prefill-first"])
def test_table_and_reasons_are_those_of_the_recorded_run(name: str) -> None:
    run = sample(name)
    assert run.trace is not None
    steps, table = run.trace.steps, PANEL.table(scene(run))
    assert table["wait_reason"].tolist() == steps["wait_reason"].astype(str).tolist()
    assert table["waiting"].sum() == steps["waiting"].sum()
    seen = set(steps.loc[steps["waiting"] > 0, "wait_reason"])
    layers = {str(t["name"]) for t in PANEL.draw(scene(run))["data"] if str(t["name"]).startswith("wait for")}
    assert len(layers) == len(seen)


def test_each_reason_has_its_colour_in_both_themes() -> None:
    assert all(reason in look.kinds for look in LOOKS for reason in WAIT_REASONS)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_in_both_themes_with_one_to_four_runs(look: Any) -> None:
    several = [random_run(count, seed, key=str(seed)) for seed, count in enumerate((1, 700, 0, 3))]
    for count in range(1, 5):
        go.Figure(PANEL.draw(scene(*several[:count], look=look)))
        assert PANEL.words(scene(*several[:count])).count("memory (simulated)") == count


def test_codes_that_do_not_exist_are_left_out() -> None:
    bad: dict[str, Any] = {"step": [0], "t_end_s": [1.0], "waiting": [1], "wait_reason": [99]}
    shown = scene(MemoryRun(bad))
    go.Figure(PANEL.draw(shown))
    assert PANEL.words(shown)
    assert len(PANEL.table(shown)) == 1


def test_hostile_names_of_runs_stay_text() -> None:
    assert "<script" not in texts(PANEL.draw(scene(random_run(3, name=HOSTILE), random_run(3, key="b"))))
