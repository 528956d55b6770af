from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings

from dashboard.panels.kv import PANEL, Tail

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
    texts,
    time_means,
    traces_named,
    views,
)  # fmt: skip

SIZED = {"config": {"block_size": 16}}


@settings(max_examples=25, deadline=None)
@given(runs(), views())
def test_the_layers_add_up_to_the_pool_and_the_fullest_step_is_drawn(run: MemoryRun, view: dict[str, Any]) -> None:
    shown = scene(run, **view)
    window, figure = shown.windows[0], PANEL.draw(shown)
    if not window.num_steps:
        return
    layers = [array_of(traces_named(figure, name)[0]["y"]) for name in ("in use", "cached", "free")]
    np.testing.assert_allclose(sum(layers), window.outline.y(time_means(window, "blocks_total")))
    line = traces_named(figure, "in use" if window.exact else "in use: most of a step")[0]
    assert array_of(line["y"]).max() == window.values("blocks_used").max()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "static", "num_blocks": 400},
        {"policy": "chunked"},
        {"policy": "chunked", "async_scheduling": True},
        {"policy": "slots", "kv_memory": "reserve-max-tokens", "num_blocks": 400},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_tail_is_what_the_block_tables_hold_beyond_what_is_written(tmp_path: Path, options: dict[str, Any]) -> None:
    run = simulated_run(tmp_path, requests=20, enable_prefix_caching=False, max_model_len=512, **options)
    trace = run.trace
    assert trace is not None
    tail = Tail.of(scene(run).windows[0])
    known = np.flatnonzero(~np.isnan(tail.tokens))
    assert len(known) > 10
    for step in known[:: max(1, len(known) // 40)].tolist():
        allocated = 16 * sum(len(blocks) for blocks in trace.block_table_at(step).values())
        written = sum(computed + new for _, _, computed, new, _ in trace.plan_at(step))
        assert tail.tokens[step] == allocated - written


def test_the_tail_of_a_run_with_shared_blocks_is_not_told() -> None:
    shown = scene(sample("chunked"))
    assert np.isnan(Tail.of(shown.windows[0]).tokens).all()
    assert "tail not known: blocks are shared" in texts(PANEL.draw(shown))
    assert "The tail is not known" in PANEL.words(shown)


def test_table_holds_every_step_of_a_recorded_run() -> None:
    run = sample("static")
    assert run.trace is not None
    table, steps = PANEL.table(scene(run)), run.trace.steps
    assert table["blocks_used"].tolist() == steps["blocks_used"].tolist()
    assert table["tail_tokens"].max() <= (steps["blocks_used"] * 16).max()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_in_both_themes_with_one_to_four_runs(look: Any) -> None:
    several = [random_run(count, seed, key=str(seed), meta=SIZED) for seed, count in enumerate((1, 700, 0, 3))]
    for count in range(1, 5):
        go.Figure(PANEL.draw(scene(*several[:count], look=look)))
        assert PANEL.words(scene(*several[:count])).count("memory (simulated)") == count


@pytest.mark.parametrize("config", [None, "x", {}, {"block_size": "16"}, {"block_size": 0}], ids=str)
def test_a_meta_without_a_block_size_leaves_the_tail_out(config: Any) -> None:
    shown = scene(random_run(5, meta={"config": config}))
    assert "does not tell its block size" in texts(PANEL.draw(shown))
    assert PANEL.words(shown)


def test_hostile_names_of_runs_stay_text() -> None:
    assert "<script" not in texts(PANEL.draw(scene(random_run(3, name=HOSTILE), random_run(3, key="b"))))
