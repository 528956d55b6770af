from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboard.data.run import TraceRun
from dashboard.panels.block_map import HUES, MOST_CELLS, NO_PLANS, PANEL, SHADES, Pool, _cells, _scale
from dashboard.panels.frame import Frame
from traces.trace import Trace

from .runs import HOSTILE, LOOKS, SAMPLES, MemoryRun, array_of, random_run, sample, scene, simulated_run, texts


def pool_at(run: Any, step: int) -> Pool:
    return Pool.of(run, step)


@pytest.mark.parametrize("name", ["static", "slots", "orca", "prefill-first", "chunked", "chunked-simulated"])
def test_blocks_held_are_those_that_the_step_counts_as_in_use(name: str) -> None:
    run = sample(name)
    used, cached, total = (run.column("steps", f"blocks_{kind}") for kind in ("used", "cached", "total"))
    for row in range(0, run.num_steps, 37):
        pool = pool_at(run, row)
        assert pool.held == used[row]
        assert (pool.cached, len(pool.holder)) == (cached[row], total[row])
        assert pool.free == total[row] - used[row] - cached[row]


def test_each_cell_is_what_the_block_table_says(tmp_path: Path) -> None:
    run = simulated_run(tmp_path, requests=20, enable_prefix_caching=False)
    assert run.trace is not None
    for step in range(0, run.num_steps, 29):
        pool, tables = pool_at(run, step), run.trace.block_table_at(step)
        tokens = {request: computed + new for request, _, computed, new, _ in run.trace.plan_at(step)}
        assert pool.held == sum(len(blocks) for blocks in tables.values())
        for request, blocks in tables.items():
            at = np.asarray(blocks) - 1
            assert (pool.holder[at] == request).all()
            assert pool.logical[at].tolist() == list(range(len(blocks)))
            if request in tokens:
                assert pool.written[at].sum() == tokens[request]


def test_shared_blocks_are_counted_once_with_their_sharers() -> None:
    run = sample("chunked")
    assert run.trace is not None
    shared = 0
    for step in range(run.num_steps):
        pool, tables = pool_at(run, step), run.trace.block_table_at(step)
        assert pool.sharers.sum() == sum(len(blocks) for blocks in tables.values())
        shared += int((pool.sharers > 1).sum())
    assert shared


def test_the_map_follows_the_cursor_and_without_one_shows_the_fullest_step() -> None:
    run = sample("chunked-simulated")
    assert "step 60: " in texts(PANEL.draw(scene(run, step=60)))
    fullest = int(run.column("steps", "blocks_used").argmax())
    assert f"step {fullest}: " in texts(PANEL.draw(scene(run)))
    assert set(PANEL.table(scene(run, step=60))["step"]) == {60}


def test_a_run_without_plans_says_how_to_get_them() -> None:
    figure = PANEL.draw(scene(random_run(5)))
    assert NO_PLANS in texts(figure)
    assert not figure["data"]
    both = PANEL.draw(scene(sample("chunked"), random_run(5)))
    assert NO_PLANS in texts(both)
    assert both["data"]


def test_a_view_without_steps_or_runs_is_a_sentence() -> None:
    assert "No step is in view" in texts(PANEL.draw(scene(MemoryRun({}, meta=sample("chunked").meta, trace=_trace()))))
    assert "No run is chosen" in texts(PANEL.draw(scene()))
    assert PANEL.table(scene()).empty


def _trace() -> Trace:
    return Trace.open(SAMPLES / "chunked.trace")


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_in_both_themes_and_each_code_has_a_colour(look: Any) -> None:
    go.Figure(PANEL.draw(scene(sample("static"), sample("chunked"), random_run(2), look=look, step=50)))
    scale = _scale(look)
    assert [stop for stop, _ in scale] == sorted(stop for stop, _ in scale)
    assert len(scale) == 2 * (HUES * SHADES + 1)


@pytest.mark.parametrize("runs", [1, 4])
def test_a_pool_of_a_hundred_thousand_blocks_stays_small_and_says_that_it_is_cut(runs: int) -> None:
    whole = np.arange(100_000)
    pool = Pool(7, whole // 50, np.ones(100_000, dtype=np.int64), whole % 50, np.full(100_000, 9), 16, 0)
    frame = Frame(scene(*[random_run(3, key=str(i)) for i in range(runs)]))
    for row in range(runs):
        _cells(frame, row, pool, random_run(3))
    figure = frame.figure()
    go.Figure(figure)
    assert len(json.dumps(figure)) < 500_000
    assert f"blocks 1 to {MOST_CELLS // runs:,} of 100,000 drawn" in texts(figure)
    assert array_of(figure["data"][0]["customdata"])[0, 3].tolist() == [4, 0, 3, 9]


def test_hostile_names_of_requests_and_runs_stay_text() -> None:
    class Named(TraceRun):
        def names(self) -> dict[int, str]:
            return dict.fromkeys(range(100), HOSTILE)

    run = Named("x", HOSTILE, _trace())
    said = texts(PANEL.draw(scene(run, sample("static"), step=100)))
    assert "&lt;script&gt;" in said
    assert "<script" not in said
    assert "<a " not in said
