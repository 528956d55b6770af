"""What a reader does to a view."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.board.gestures import after
from dashboard.data.window import span_in_view, whole_span
from dashboard.view import View

from .runs import MemoryRun, random_run, sample

RUN = sample("chunked")
RUNS = (RUN,)


def test_zooming_shows_that_part_and_all_of_it_comes_back() -> None:
    zoomed = after({"kind": "zoom", "from": 1.0, "to": 2.0}, View(), RUNS)
    assert span_in_view(RUNS, zoomed) == (1.0, 2.0)
    assert after({"kind": "whole"}, zoomed, RUNS) == View()


@pytest.mark.parametrize("by", [1, 10, -1, -10])
def test_arrows_move_the_cursor_by_steps_and_stop_at_the_ends(by: int) -> None:
    last = RUN.num_steps - 1
    for step in (0, 5, 100, last):
        assert after({"kind": "move", "by": by}, View(step=step), RUNS).step == max(0, min(last, step + by))


def test_the_view_follows_a_cursor_that_leaves_it() -> None:
    view = View(axis="step", start=0, end=50, step=49)
    moved = after({"kind": "move", "by": 10}, view, RUNS)
    start, end = span_in_view(RUNS, moved)
    assert moved.step == 59
    assert start <= 59 <= end
    assert end - start == 50


def test_a_click_sets_the_step_that_ran_then() -> None:
    row = 40
    x = float(RUN.column("steps", "t_start_s")[row] - RUN.origin_s) + 1e-6
    assert after({"kind": "cursor", "x": x}, View(), RUNS).step == row


def test_a_move_that_does_not_say_how_far_changes_nothing() -> None:
    view = View(step=3)
    assert after({"kind": "move", "step": RUN.num_steps}, view, RUNS) == view


JUNK = st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(max_size=5) | st.integers()


@given(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["zoom", "whole", "cursor", "move", "pan_to", "x"])},
        optional=dict.fromkeys(("from", "to", "x", "step", "by"), JUNK),
    )
)
@settings(max_examples=200, deadline=None)
def test_no_gesture_leaves_the_run_or_breaks(gesture: dict[str, Any]) -> None:
    moved = after(gesture, View(step=3), RUNS)
    start, end = span_in_view(RUNS, moved)
    first, last = whole_span(RUN, "time")
    assert first <= start < end <= last
    assert moved.step is None or 0 <= moved.step < RUN.num_steps


def test_a_run_without_steps_stays_as_it_is() -> None:
    empty: MemoryRun = random_run(0)
    assert after({"kind": "move", "by": 1}, View(), (empty,)) == View()
