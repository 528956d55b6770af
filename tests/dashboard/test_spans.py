"""Spans in view, and slots as a raster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.data.spans import IDLE, SEATED, raster, spans_in_view
from dashboard.data.window import Window, span_in_view
from dashboard.view import View
from traces.schema import DECODE, PADDING, PREFILL

from .runs import MemoryRun, sample

SLOTS, COLUMNS = 3, 8


def run_of(rows: list[tuple[int, int, float, float]]) -> MemoryRun:
    """Spans ``(slot, kind, start_s, end_s)`` in a run of 16 s."""
    columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    step = np.arange(16)
    steps = {"step": step, "t_start_s": step, "t_end_s": step + 1, "slots_total": np.full(16, SLOTS)}
    spans = {"slot": columns[0], "kind": columns[1], "start_s": columns[2], "end_s": columns[3]}
    return MemoryRun(steps, spans=spans)


@st.composite
def seatings(draw: st.DrawFn) -> list[tuple[int, int, float, float]]:
    """Spans that follow each other in each slot."""
    rows = []
    for slot in range(SLOTS):
        cuts = sorted(draw(st.lists(st.integers(0, 64), max_size=8, unique=True)))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            rows.append((slot, draw(st.sampled_from(SEATED)), start / 4, end / 4))
    return rows


@given(seatings())
@settings(max_examples=80, deadline=None)
def test_each_cell_of_the_raster_is_what_its_slot_does_most_of_that_time(
    rows: list[tuple[int, int, float, float]],
) -> None:
    run = run_of(rows)
    window = Window.of(run, View(), span_in_view((run,), View()))
    cells = raster(spans_in_view(window), window, SLOTS, COLUMNS)
    for slot in range(SLOTS):
        for column in range(COLUMNS):
            begin, finish = column * 2.0, column * 2.0 + 2.0
            spent = {
                kind: sum(max(0.0, min(end, finish) - max(start, begin)) for s, k, start, end in rows
                          if (s, k) == (slot, kind))
                for kind in SEATED
            }  # fmt: skip
            if sum(spent.values()) < 1.0:
                assert cells[slot, column] == IDLE
            else:
                assert spent[int(cells[slot, column])] == pytest.approx(max(spent.values()))


def test_spans_outside_the_view_are_left_out() -> None:
    run = run_of([(0, PREFILL, 0, 2), (0, DECODE, 2, 9), (1, PADDING, 10, 16)])
    view = View(start=3.0, end=8.0)
    spans = spans_in_view(Window.of(run, view, (3.0, 8.0)))
    assert spans.kind.tolist() == [DECODE]
    assert (spans.left[0], spans.right[0]) == (2.0, 9.0)


@pytest.mark.parametrize("name", ["static", "chunked"])
def test_on_both_axes_a_recording_has_the_same_spans(name: str) -> None:
    run = sample(name)
    by = [spans_in_view(Window.of(run, view, span_in_view((run,), view))) for view in (View(), View(axis="step"))]
    assert len(by[0]) == len(by[1]) == len(run.column("spans", "slot"))
