from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings

from dashboard.panels.cost import MOST_PRICED, PANEL, priced
from simulator import simulate
from traces.workload import Workload

from .runs import (
    HOSTILE,
    LOOKS,
    MemoryRun,
    array_of,
    random_run,
    runs,
    sample,
    scene,
    simulated_run,
    steps_of,
    texts,
    traces_named,
    views,
)  # fmt: skip

EIGHT_B_ON_A100 = simulate(Workload(np.zeros(2), np.full(2, 40), np.full(2, 5)), max_num_seqs=2, num_blocks=100).meta


def layers(figure: dict[str, Any]) -> Any:
    return sum(array_of(trace["y"]) for trace in figure["data"] if "stackgroup" in trace)


def test_parts_of_a_simulated_run_add_up_to_its_device_seconds(tmp_path: Path) -> None:
    run = simulated_run(tmp_path, requests=20)
    (found,) = priced(scene(run))
    assert found.window.exact
    np.testing.assert_allclose(sum(found.parts.values()), run.column("steps", "device_s"), rtol=1e-9)
    figure = PANEL.draw(scene(run))
    np.testing.assert_allclose(layers(figure), found.window.outline.y(1000 * found.device_s), rtol=1e-9)
    assert not traces_named(figure, "device, simulated")


def test_a_line_is_priced_in_its_own_words(tmp_path: Path) -> None:
    run = simulated_run(tmp_path, requests=20, cost="linear:step_s=0.008,token_s=1e-4")
    (found,) = priced(scene(run))
    told = found.pricing.model
    assert told is not None
    rows = found.window.values("computed_tokens")
    assert found.window.exact
    np.testing.assert_allclose(found.parts["gemm"], told.options()["token_s"] * rows)
    assert {"fixed", "per row"} <= {trace["name"] for trace in PANEL.draw(scene(run))["data"]}


def test_no_roof_is_above_the_price_and_together_they_cover_it(tmp_path: Path) -> None:
    """Each part is at most the sum of what it takes without arithmetic and without memory traffic."""
    run = simulated_run(tmp_path, requests=20)
    (found,) = priced(scene(run))
    memory, compute = found.roofs["memory_roof"], found.roofs["compute_roof"]
    assert (np.maximum(memory, compute) <= found.device_s * (1 + 1e-9)).all()
    assert (memory + compute >= found.device_s * (1 - 1e-9)).all()


def test_few_rows_are_bound_by_memory_and_long_prompts_by_arithmetic(tmp_path: Path) -> None:
    run = simulated_run(tmp_path, requests=20, max_num_batched_tokens=8192)
    (found,) = priced(scene(run))
    rows = found.window.values("computed_tokens")
    bound_by_memory = found.roofs["memory_roof"] > found.roofs["compute_roof"]
    assert bound_by_memory[rows <= 8].all()
    assert not bound_by_memory[rows >= 700].any()


def test_a_measured_run_shows_what_was_measured_over_parts_called_modelled() -> None:
    run = sample("chunked")
    figure = PANEL.draw(scene(run))
    assert "parts modelled, roofline of cpu" in texts(figure)
    lines = [*traces_named(figure, "device, measured"), *traces_named(figure, "device, dearest step")]
    most = max(array_of(line["y"]).max() for line in lines)
    assert most == pytest.approx(1000 * run.column("steps", "device_s").max())


@settings(max_examples=20, deadline=None)
@given(runs(), views())
def test_parts_are_those_of_a_typical_step_and_the_dearest_is_always_drawn(
    run: MemoryRun, view: dict[str, Any]
) -> None:
    shown = scene(run, **view)
    (found,) = priced(shown)
    if not found.window.num_steps:
        return
    window, device_s = found.window, run.column("steps", "device_s")
    assert len(found.rows) <= 3 * MOST_PRICED
    for row, mean, first, last in zip(
        found.rows, window.mean("device_s"), window.starts, [*window.starts[1:], window.num_steps], strict=True
    ):
        assert abs(device_s[row] - mean) == np.abs(window.values("device_s")[first:last] - mean).min()
    lines = traces_named(PANEL.draw(shown), "device, dearest step")
    drawn = array_of(lines[0]["y"]).max() if lines else layers(PANEL.draw(shown)).max()
    assert drawn == pytest.approx(1000 * window.values("device_s").max())
    table = PANEL.table(shown)
    assert table["device_s"].tolist() == run.column("steps", "device_s")[table["step"]].tolist()


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({}, "cannot be built again"),
        ({"cost_model": {"name": "recorded"}}, "durations are those of a recording"),
        ({"cost_model": {"name": "os:system"}}, "not one of the installed ones"),
        ({"cost_model": "roofline"}, "cannot be built again"),
        ({**EIGHT_B_ON_A100, "cost_model": {**EIGHT_B_ON_A100["cost_model"], "model": None}}, "cannot be built again"),
        ({"source": "measured", "hardware": "abacus", "dtype": "bfloat16"}, "no hardware sheet fits"),
        ({"source": "measured", "hardware": "NVIDIA H200", "dtype": "float32"}, "no rate for float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_nothing_prices_is_drawn_whole_and_says_why(meta: dict[str, Any], why: str) -> None:
    shown = scene(random_run(20, meta=meta))
    figure = PANEL.draw(shown)
    assert why in texts(figure)
    assert why in PANEL.words(shown)
    np.testing.assert_allclose(layers(figure).max(), 1000 * shown.windows[0].values("device_s").max())


@pytest.mark.parametrize("wrong", ["x", -1, 10**400, None, [], {}], ids=str)
@pytest.mark.parametrize("field", ["hidden", "layers", "kv_heads", "sliding_window"])
def test_a_broken_model_sheet_in_a_meta_breaks_nothing(field: str, wrong: Any) -> None:
    told = EIGHT_B_ON_A100["cost_model"]
    meta = {**EIGHT_B_ON_A100, "cost_model": {**told, "model": {**told["model"], field: wrong}}}
    shown = scene(random_run(20, meta=meta))
    go.Figure(PANEL.draw(shown))
    assert PANEL.words(shown)


def test_an_extrapolated_model_is_said_in_the_figure_and_in_words() -> None:
    meta = {**EIGHT_B_ON_A100, "extrapolation": {"steps": 12, "reason": "beyond what was measured"}}
    shown = scene(MemoryRun(steps_of(30), meta=meta))
    assert "extrapolated in 12 steps" in texts(PANEL.draw(shown))
    assert "beyond what was measured" in PANEL.words(shown)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_in_both_themes_with_one_to_four_runs(look: Any) -> None:
    several = [random_run(2000, meta=EIGHT_B_ON_A100), sample("static"), random_run(0, key="none"), sample("chunked")]
    for count in range(1, 5):
        go.Figure(PANEL.draw(scene(*several[:count], look=look)))
        PANEL.table(scene(*several[:count]))
    assert "no step in view" in PANEL.words(scene(several[2]))


def test_hostile_names_of_runs_stay_text() -> None:
    assert "<script" not in texts(PANEL.draw(scene(random_run(3, name=HOSTILE), random_run(3, key="b"))))
