from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings

from dashboard.panels.waste import PANEL, Ledger
from traces.schema import PADDING_COLUMNS

from .runs import HOSTILE, LOOKS, MemoryRun, array_of, random_run, runs, sample, scene, texts, views

COLUMNS = ["prefill_tokens", "decode_tokens", "recomputed_tokens", *PADDING_COLUMNS.values()]


def drawn_rows(figure: dict[str, Any]) -> int:
    return sum(int(array_of(trace["x"]).sum()) for trace in figure["data"])


@pytest.mark.parametrize("name", ["static", "chunked", "orca"])
def test_bars_and_table_are_the_sums_over_a_recorded_run(name: str) -> None:
    run = sample(name)
    assert run.trace is not None
    steps: pd.DataFrame = run.trace.steps
    figure = PANEL.draw(scene(run))
    assert drawn_rows(figure) == steps["computed_tokens"].sum() == steps[COLUMNS].to_numpy().sum()
    amount = PANEL.table(scene(run)).set_index("entry")["amount"]
    assert amount["padding: prompt"] == steps["padding_prompt"].sum()
    assert amount["cached"] == steps["cached_tokens"].sum()
    assert amount["padding time"] == pytest.approx(steps["padding_s"].sum())
    assert amount["step time"] == pytest.approx((steps["device_s"] + steps["host_s"]).sum())


@settings(max_examples=25, deadline=None)
@given(runs(), views())
def test_parts_add_up_to_the_rows_computed_in_view(run: MemoryRun, view: dict[str, Any]) -> None:
    shown = scene(run, **view)
    ledger = Ledger.of(shown.windows[0])
    assert sum(ledger.parts.values()) == ledger.rows == int(shown.windows[0].values("computed_tokens").sum())
    assert 0 <= ledger.idle_slot_s <= ledger.slot_s
    assert drawn_rows(PANEL.draw(shown)) == ledger.rows


def test_slots_that_are_empty_between_steps_count_as_empty() -> None:
    columns: dict[str, Any] = {"t_start_s": [0.0, 3.0], "t_end_s": [1.0, 4.0], "slots_busy": [2, 1], "step": [0, 1]}
    ledger = Ledger.of(scene(MemoryRun(columns, meta={"slots_total": 2})).windows[0])
    assert ledger.slot_s == 8.0
    assert ledger.idle_slot_s == 8.0 - 2 - 1


def test_overlapping_steps_are_not_counted_twice() -> None:
    columns: dict[str, Any] = {"t_start_s": [0.0, 0.5], "t_end_s": [1.0, 2.0], "slots_busy": [1, 1], "step": [0, 1]}
    ledger = Ledger.of(scene(MemoryRun(columns, meta={"slots_total": 1})).windows[0])
    assert (ledger.slot_s, ledger.idle_slot_s) == (2.0, 0.0)


def test_padding_seconds_of_a_measured_run_are_called_an_estimate() -> None:
    assert "(estimate)" in texts(PANEL.draw(scene(sample("static"))))
    assert "(estimate)" not in texts(PANEL.draw(scene(sample("chunked-simulated"))))


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_in_both_themes_with_one_to_four_runs(look: Any) -> None:
    several = [random_run(count, seed, key=str(seed)) for seed, count in enumerate((1, 700, 0, 3))]
    for count in range(1, 5):
        go.Figure(PANEL.draw(scene(*several[:count], look=look)))


def test_a_view_without_work_says_so() -> None:
    assert "No step in view" in texts(PANEL.draw(scene(random_run(0))))
    assert "no step in view" in PANEL.words(scene(random_run(0)))


def test_hostile_names_of_runs_stay_text() -> None:
    figure = PANEL.draw(scene(random_run(3, name=HOSTILE), random_run(3, key="b")))
    assert "<script" not in texts(figure)
    assert "<a " not in texts(figure)
