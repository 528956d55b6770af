"""The bounded buffers: what they hold, what they let go, and what they own up to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.ring import Ring
from dashboard.live.run_buffer import PRUNE_FROM, RunBuffer
from dashboard.live.wire import EventParser, FeedError, rows_of
from traces.schema import DECODE, GAPS, REQUESTS, SPAN_EVENTS, STEPS
from traces.store import Rows


def gap_rows(steps: list[int]) -> Rows:
    rows = np.zeros(len(steps), dtype=GAPS.dtype)
    rows["step"] = steps
    return rows


def step_rows(steps: list[int]) -> Rows:
    rows = np.zeros(len(steps), dtype=STEPS.dtype)
    rows["step"] = steps
    rows["t_start_s"], rows["t_end_s"] = np.array(steps) * 1.0, np.array(steps) + 1.0
    return rows


@given(capacity=st.integers(1, 9), batches=st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=30))
def test_a_ring_holds_the_last_rows_and_counts_the_others(capacity: int, batches: list[list[int]]) -> None:
    ring, all_rows, views = Ring(GAPS, capacity), [], []
    for batch in batches:
        ring.append(gap_rows(batch))
        all_rows += batch
        views.append((ring.rows(), ring.rows()["step"].tolist()))
    assert ring.snapshot(["step"])["step"].tolist() == all_rows[-capacity:]
    assert ring.dropped + len(ring) == len(all_rows)
    assert all(view["step"].tolist() == then for view, then in views)  # nothing was written over


@given(st.lists(st.lists(st.integers(0, 40), max_size=10), max_size=20))
def test_steps_held_are_new_ones_in_order_and_what_is_missing_is_a_gap(batches: list[list[int]]) -> None:
    buffer = RunBuffer("run", "a run", {}, capacity=1000)
    for batch in batches:
        buffer.add_steps(step_rows(batch))
    buffer.settle(100)
    run = buffer.snapshot("running")
    held = run.column("steps", "step").tolist()
    records: list[int] = []  # a step counts when it is higher than all before
    for step in (step for batch in batches for step in batch):
        if step > max(records, default=-1):
            records.append(step)
    assert held == records
    missing = [step for gap in run.gaps_in_feed for step in range(gap.first, gap.last + 1)]
    assert sorted(held + missing) == list(range(max(held, default=-1) + 1))
    assert buffer.lost == len(missing)
    assert buffer.doubled == sum(map(len, batches)) - len(held)


def test_a_snapshot_ends_with_the_last_step_of_which_all_is_known() -> None:
    buffer = RunBuffer("run", "a run", {}, capacity=100)
    buffer.add_steps(step_rows([0, 1, 2]))
    assert buffer.snapshot("running").num_steps == 0
    buffer.settle(1)
    assert buffer.snapshot("running").column("steps", "step").tolist() == [0, 1]


def spans_of(request: int, first: int, last: int) -> Rows:
    rows = np.zeros(2, dtype=SPAN_EVENTS.dtype)
    rows["request"], rows["kind"], rows["open"] = request, DECODE, [1, 0]
    rows["step"], rows["time_s"] = [first, last], [first, last + 1]
    return rows


def test_spans_requests_and_gaps_that_ended_before_the_first_step_are_let_go() -> None:
    buffer, steps = RunBuffer("run", "a run", {}, capacity=50), 50 * (PRUNE_FROM // 10)
    for step in range(0, steps, 50):
        buffer.add_steps(step_rows(list(range(step, step + 50))))
        for request in range(step, step + 50):
            buffer.add("spans", spans_of(request, request, request))
        ended = np.zeros(50, dtype=REQUESTS.dtype)
        ended["request"], ended["finished_s"] = np.arange(step, step + 50), np.arange(step, step + 50) + 1.0
        buffer.add("requests", ended)
        buffer.add("gaps", gap_rows(list(range(step, step + 50))))
        buffer.settle(step + 49)
    run = buffer.snapshot("running")
    assert all(len(rows) <= 2 * PRUNE_FROM for rows in run.rows.values())
    assert run.column("spans", "request").tolist() == list(range(steps - 50, steps))
    assert run.column("gaps", "step").tolist() == list(range(steps - 50, steps))
    assert run.column("requests", "request").tolist() == list(range(steps - 51, steps))  # one ended as it began


def test_a_request_whose_span_is_open_is_kept_however_old() -> None:
    buffer = RunBuffer("run", "a run", {}, capacity=10)
    buffer.add("spans", spans_of(0, 3, 3)[:1])
    for step in range(3 * PRUNE_FROM):
        buffer.add_steps(step_rows([step]))
        buffer.add("spans", spans_of(step + 1, step, step))
    buffer.settle(10**9)
    run = buffer.snapshot("running")
    assert run.column("spans", "first_step")[0] == 3
    assert run.column("spans", "last_step")[0] == run.last_step


@given(st.binary(max_size=200), st.lists(st.integers(1, 7), max_size=40))
def test_events_are_the_same_however_the_stream_is_cut(noise: bytes, cuts: list[int]) -> None:
    text = b'id: 1\ndata: {"a":1}\n\n: ping\n\nevent: end\ndata: {}\n\n' + noise.replace(b"\n\n", b"")
    whole = EventParser().feed(text)
    parser, found, rest = EventParser(), [], text
    for cut in cuts:
        found += parser.feed(rest[:cut])
        rest = rest[cut:]
    assert found + parser.feed(rest) == whole
    assert [(event.name, event.data) for event in whole[:2]] == [("message", b'{"a":1}'), ("end", b"{}")]


def test_a_stream_without_end_and_rows_that_are_none_are_refused_in_a_sentence() -> None:
    with pytest.raises(FeedError, match="without end"):
        EventParser().feed(b"data: " + b"x" * (2 << 20))
    nonsense: list[Any] = [{}, 1, None, "x", dict.fromkeys(GAPS.names, "?"), dict.fromkeys(GAPS.names, 10**30)]
    for wrong in nonsense:
        with pytest.raises(FeedError, match="no gaps"):
            rows_of(GAPS, [wrong])
