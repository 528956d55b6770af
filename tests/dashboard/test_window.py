"""The steps in view, in pieces: nothing is lost between them, and no extreme goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.data.window import Outline, Window, row_at, row_of_step, span_in_view, step_edges
from dashboard.view import View

from .runs import MemoryRun, random_run, runs, views


def window(run: MemoryRun, most: int = 480, **fields: Any) -> Window:
    view = View(**fields)
    return Window.of(run, view, span_in_view((run,), view), most)


@given(runs(), views(), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_pieces_cover_each_step_in_view_once_and_keep_sums_and_extremes(
    run: MemoryRun, fields: dict[str, Any], most: int
) -> None:
    shown = window(run, most, **fields)
    left, right = step_edges(run, shown.axis)
    in_view = (right > shown.start) & (left < shown.end)
    values = run.column("steps", "computed_tokens")[in_view]
    assert shown.num_steps == in_view.sum() == shown.counts.sum()
    assert len(shown) <= 3 * max(most, 1)  # a step as wide as a piece is one of its own
    assert shown.total("computed_tokens").sum() == values.sum()
    if len(values):
        assert shown.most("computed_tokens").max() == values.max()
        assert shown.least("computed_tokens").min() == values.min()
        assert (shown.left[1:] >= shown.right[:-1] - 1e-9).all()


@given(runs(most=100))
@settings(max_examples=30, deadline=None)
def test_where_there_is_room_each_piece_is_a_step(run: MemoryRun) -> None:
    shown = window(run)
    assert shown.exact
    assert shown.mean("decode_tokens").tolist() == run.column("steps", "decode_tokens").tolist()
    assert shown.grain == ""


def test_the_peak_of_one_step_in_a_million_still_shows() -> None:
    count = 1_000_000
    tokens = np.ones(count)
    tokens[777_777] = 4096
    ends = np.arange(1, count + 1) * 0.01
    run = MemoryRun({"step": np.arange(count), "t_start_s": ends - 0.01, "t_end_s": ends, "computed_tokens": tokens})
    assert window(run).most("computed_tokens").max() == 4096


def test_a_long_step_is_not_mixed_with_the_short_ones_beside_it() -> None:
    widths = np.concatenate([np.full(500, 0.01), [22.0], np.full(500, 0.01)])
    ends = np.cumsum(widths)
    waiting = np.concatenate([np.full(500, 160), [4], np.full(500, 7)])
    run = MemoryRun({"step": np.arange(1001), "t_start_s": ends - widths, "t_end_s": ends, "waiting": waiting})
    shown = window(run, 100)
    piece = int(np.argmax(shown.right - shown.left))
    assert shown.right[piece] - shown.left[piece] == pytest.approx(22.0)
    assert shown.level("waiting")[piece] == 4
    assert shown.most("waiting")[piece] == 4


@given(runs(), views(), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_levels_times_widths_are_the_area_under_the_steps(run: MemoryRun, fields: dict[str, Any], most: int) -> None:
    shown = window(run, most, **fields)
    left, right = step_edges(run, shown.axis)
    low, high = shown.low, shown.high
    area = float((run.column("steps", "waiting")[low:high] * (right - left)[low:high]).sum())
    widths = shown.total((right - left)[low:high])
    assert float((shown.level("waiting") * widths).sum()) == pytest.approx(area)


def test_a_line_of_steps_falls_to_zero_where_no_step_runs() -> None:
    outline = Outline.of(np.array([0.0, 1.0, 5.0]), np.array([1.0, 2.0, 6.0]))
    assert outline.x.tolist() == [0.0, 1.0, 2.0, 5.0, 6.0]
    assert outline.y(np.array([7.0, 8.0, 9.0])).tolist() == [7.0, 8.0, 0.0, 9.0, 9.0]


@given(runs(most=50), st.floats(-1, 5))
@settings(max_examples=40, deadline=None)
def test_the_step_at_a_moment_is_the_last_that_had_begun(run: MemoryRun, x: float) -> None:
    left, _ = step_edges(run, "time")
    begun = np.flatnonzero(left <= x)
    expected = None if not len(left) else int(begun[-1]) if len(begun) else 0
    assert row_at(run, "time", x) == expected


def test_a_step_that_is_not_held_is_the_one_before_it() -> None:
    run = random_run(10)
    held = MemoryRun({name: run.column("steps", name)[[0, 1, 5, 6]] for name in ("step", "t_start_s", "t_end_s")})
    assert [row_of_step(held, step) for step in (0, 1, 3, 5, 99)] == [0, 1, 1, 2, 3]
