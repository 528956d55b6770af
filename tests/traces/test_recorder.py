"""What the recorder writes: spans, request times and gaps from closed forms; crashes, full disks, old traces."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.config import SchedulerConfig
from scheduler.errors import UserError
from scheduler.request import FinishReason, Request, RequestStatus
from traces.trace import Trace

from .plans import cut_short, end, plan, recorder, request, run_scheduler, two_requests

ROOT = Path(__file__).resolve().parents[2]


def spans_of(trace: Trace, index: int) -> list[tuple[Any, ...]]:
    rows = trace.spans[trace.spans["request"] == index]
    names = ["kind", "slot", "first_step", "last_step", "tokens", "start_s", "end_s"]
    return [tuple(row) for row in rows[names].itertuples(index=False)]


@pytest.mark.parametrize("steady", [True, False])
def test_two_requests_give_the_spans_worked_out_by_hand(steady: bool) -> None:
    trace = two_requests(steady=steady)
    assert spans_of(trace, 0) == [
        ("queued", -1, 0, -1, 0, 0.0, 1.0),
        ("prefill", 0, 0, 0, 4, 1.0, 2.0),
        ("decode", 0, 1, 2, 2, 2.0, 4.0),
    ]
    assert spans_of(trace, 1) == [
        ("queued", -1, 0, 0, 0, 0.5, 2.0),
        ("prefill", 1, 1, 1, 3, 2.0, 3.0),
        ("decode", 1, 2, 2, 1, 3.0, 4.0),
    ]


@pytest.mark.parametrize("steady", [True, False])
def test_two_requests_give_their_times_and_gaps(steady: bool) -> None:
    trace = two_requests(steady=steady)
    row = trace.requests.iloc[1]
    times = ("arrival_s", "queued_s", "scheduled_s", "first_token_s", "finished_s")
    assert [row[name] for name in times] == [0.5, 0.5, 2.0, 3.0, 4.0]
    assert (row["prompt_tokens"], row["output_tokens"], row["finish_reason"]) == (3, 2, "length")
    assert [tuple(gap) for gap in trace.gaps.itertuples(index=False)] == [(1, 1.0, 1), (2, 1.0, 2)]


@pytest.mark.parametrize("policy", ["chunked", "static", "slots", "orca", "prefill-first"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_steady_prefix_and_explicit_rows_write_the_same_tables(policy: str, async_scheduling: bool) -> None:
    config = small_config(policy, async_scheduling)
    fast, plain = (
        run_scheduler(config, some_requests(), aborts=[(0.05, 5), (0.2, 20)], plain=plain, token_times=True)
        for plain in (False, True)
    )
    for table in ("steps", "spans", "requests", "gaps"):
        left, right = fast.columns(table), plain.columns(table)
        for name, values in left.items():
            np.testing.assert_array_equal(values, right[name], err_msg=f"{table}.{name}")


@pytest.mark.parametrize("policy", ["chunked", "prefill-first"])
def test_token_times_are_what_gaps_and_first_tokens_come_from(policy: str) -> None:
    trace = run_scheduler(small_config(policy, False), some_requests(), token_times=True)
    times = trace.token_times()
    assert times is not None
    frame = trace.requests
    for index, first, last, count in zip(
        frame["request"], frame["first_token_s"], frame["finished_s"], frame["output_tokens"], strict=True
    ):
        assert len(times[index]) == count
        assert times[index][0] == first
        assert times[index][-1] == last
    gaps = np.sort(np.concatenate([np.diff(values) for values in times.values()]))
    recorded = trace.columns("gaps")
    np.testing.assert_array_equal(np.sort(np.repeat(recorded["gap_s"], recorded["count"])), gaps)


def test_preempted_request_loses_its_seat_before_the_step_that_took_it() -> None:
    a = request(0, 4, 4)
    with recorder() as record:
        record.arrived(a, 0.0)
        a.slot = 1
        record.step(plan(0, tail=[(a, 0, 4, True)], admitted=[a]), 0.0, 1.0, 1.0, 0.0, 0.0)
        record.step(plan(1, tail=[(a, 4, 1, True)]), 1.0, 2.0, 1.0, 0.0, 0.0)
        other = request(1, 9, 1, slot=0)
        record.arrived(other, 1.5)
        record.step(plan(2, tail=[(other, 0, 9, True)], admitted=[other], preempted=[a], finished=[end(other)]),
                    2.0, 3.0, 1.0, 0.0, 0.0)  # fmt: skip
        record.step(plan(3, tail=[(a, 0, 6, True)], admitted=[a]), 3.0, 4.0, 1.0, 0.0, 0.0)
        record.step(plan(4, tail=[(a, 6, 1, True)], finished=[end(a)]), 4.0, 5.0, 1.0, 0.0, 0.0)
        trace = record.close()
    assert spans_of(trace, 0) == [
        ("prefill", 1, 0, 0, 4, 0.0, 1.0),
        ("decode", 1, 1, 1, 1, 1.0, 2.0),
        ("preempted", -1, 2, 2, 0, 2.0, 3.0),
        ("prefill", 1, 3, 3, 6, 3.0, 4.0),
        ("decode", 1, 4, 4, 1, 4.0, 5.0),
    ]
    row = trace.requests.iloc[0]
    assert (row["preemptions"], row["output_tokens"], row["scheduled_s"]) == (1, 4, 0.0)
    assert sorted(trace.gaps["gap_s"]) == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("steady", [True, False])
def test_held_rows_burn_until_their_batch_ends_and_get_all_tokens_then(steady: bool) -> None:
    a, b = request(0, 2, 2, slot=0), request(1, 2, 4, slot=1)
    with recorder(streams=False) as record:
        record.arrived(a, 0.0)
        record.arrived(b, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True), (b, 0, 2, True)], admitted=[a, b]), 0.0, 1.0, 1.0, 0.0, 0.0)
        a.status, a.finish_reason, a.stored_tokens = RequestStatus.HELD, FinishReason.LENGTH, 4
        if steady:
            steps = [plan(1, steady=2, joined=[a, b]), plan(2, steady=1), plan(3, steady=1)]
        else:
            steps = [plan(1, tail=[(a, 2, 1, True), (b, 2, 1, True)]), plan(2, tail=[(b, 3, 1, True)]),
                     plan(3, tail=[(b, 4, 1, True)])]  # fmt: skip
        for made in steps[:-1]:
            record.step(made, float(made.step), made.step + 1.0, 1.0, 0.0, 0.0)
        steps[-1].finished = [end(a), end(b)]
        record.step(steps[-1], 3.0, 4.0, 1.0, 0.0, 0.0)
        trace = record.close()
    assert spans_of(trace, 0)[1:] == [("decode", 0, 1, 1, 1, 1.0, 2.0), ("padding", 0, 2, 3, 0, 2.0, 4.0)]
    assert spans_of(trace, 1)[1:] == [("decode", 1, 1, 3, 3, 1.0, 4.0)]
    assert trace.requests["first_token_s"].tolist() == trace.requests["finished_s"].tolist() == [4.0, 4.0]
    assert trace.requests["output_tokens"].tolist() == [2, 4]
    assert len(trace.gaps) == 0


def test_results_released_one_by_one_leave_rows_that_burn_until_the_next_batch() -> None:
    config = small_config("static", False).replaced(release="request")
    trace = run_scheduler(config, some_requests())
    spans = trace.spans
    padding = spans[spans["kind"] == "padding"]
    steps = trace.steps
    assert (padding["last_step"] - padding["first_step"] + 1).sum() == steps["padding_finished_row"].sum() > 0


def test_dropped_rows_deliver_nothing_and_leave_the_shared_gap() -> None:
    a, b = request(0, 2, 9, slot=0), request(1, 2, 9, slot=1)
    with recorder() as record:
        record.arrived(a, 0.0)
        record.arrived(b, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True), (b, 0, 2, True)], admitted=[a, b]), 0.0, 1.0, 1.0, 0.0, 0.0)
        record.step(plan(1, steady=2, joined=[a, b], finished=[end(b, FinishReason.STOP)]), 1.0, 2.0, 1.0, 0.0, 0.0)
        record.step(plan(2, steady=2, dropped=[b]), 2.0, 3.0, 1.0, 0.0, 0.0)
        record.step(plan(3, steady=1, finished=[end(a)]), 3.0, 4.0, 1.0, 0.0, 0.0)
        trace = record.close()
    assert trace.requests["output_tokens"].tolist() == [4, 2]
    assert trace.gaps["count"].tolist() == [2, 1, 1]


def test_abort_ends_waiting_and_running_requests_where_they_are() -> None:
    a, b = request(0, 2, 9, slot=0), request(1, 2, 9)
    with recorder() as record:
        record.arrived(a, 0.0)
        record.arrived(b, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True)], admitted=[a], waiting=1), 0.0, 1.0, 1.0, 0.0, 0.0)
        for victim in (a, b):
            record.aborted(end(victim, FinishReason.ABORT), 1.5)
        trace = record.close()
    assert trace.requests["finish_reason"].tolist() == ["abort", "abort"]
    assert trace.requests["finished_s"].tolist() == [1.5, 1.5]
    assert trace.requests["output_tokens"].tolist() == [1, 0]
    assert [span[0] for span in spans_of(trace, 0)] == ["prefill"]
    assert spans_of(trace, 1) == [("queued", -1, 0, 0, 0, 0.0, 1.5)]


def test_abort_that_the_scheduler_puts_off_ends_the_request_with_the_step_in_flight() -> None:
    a = request(0, 2, 9, slot=0)
    with recorder() as record:
        record.arrived(a, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True)], admitted=[a]), 0.0, 1.0, 1.0, 0.0, 0.0)
        record.aborted(a, 1.2)
        end(a, FinishReason.ABORT)
        record.step(plan(1, tail=[(a, 2, 1, True)]), 1.0, 2.0, 1.0, 0.0, 0.0)
        record.step(plan(2, tail=[(a, 3, 1, True)], dropped=[a]), 2.0, 3.0, 1.0, 0.0, 0.0)
        trace = record.close()
    row = trace.requests.iloc[0]
    assert (row["finish_reason"], row["finished_s"], row["output_tokens"]) == ("abort", 2.0, 2)
    assert spans_of(trace, 0)[-1] == ("decode", 0, 1, 1, 1, 1.0, 2.0)


def test_empty_plan_made_while_a_step_is_in_flight_counts_after_it() -> None:
    a = request(0, 2, 9, slot=0)
    with recorder() as record:
        record.arrived(a, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True)], admitted=[a]), 0.0, 1.0, 1.0, 0.0, 0.0)
        record.idle(plan(2, preempted=[a]), 1.5)
        record.step(plan(1, tail=[(a, 2, 1, True)]), 1.0, 2.0, 1.0, 0.0, 0.0)
        trace = record.close()
    assert [span[0] for span in spans_of(trace, 0)] == ["prefill", "decode"]
    assert trace.requests["output_tokens"].tolist() == [2]
    assert trace.requests["preemptions"].tolist() == [1]


def test_request_that_can_never_fit_ends_with_an_error_before_the_step() -> None:
    a, b = request(0, 2, 9, slot=0), request(1, 2, 9, slot=0)
    with recorder() as record:
        record.arrived(a, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True)], admitted=[a]), 0.0, 1.0, 1.0, 0.0, 0.0)
        record.arrived(b, 0.5)
        failed = end(a, FinishReason.ERROR)
        made = plan(1, tail=[(b, 0, 2, True)], admitted=[b], preempted=[a], finished=[failed])
        record.step(made, 1.0, 2.0, 1.0, 0.0, 0.0)
        trace = record.close()
    assert [span[0] for span in spans_of(trace, 0)] == ["prefill"]
    assert trace.requests["finish_reason"].tolist() == ["error", "none"]


def test_requests_that_never_ended_are_written_at_the_end() -> None:
    a, b = request(0, 2, 9, slot=0), request(1, 2, 9)
    with recorder() as record:
        record.arrived(a, 0.0)
        record.arrived(b, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True)], admitted=[a], waiting=1), 0.0, 1.0, 1.0, 0.0, 0.0)
        trace = record.close()
    assert trace.requests["finish_reason"].tolist() == ["none", "none"]
    assert trace.requests["first_token_s"].fillna(-1).tolist() == [1.0, -1]
    assert trace.columns("spans")["last_step"].tolist() == [0, 0]


def test_names_are_kept_where_they_are_not_the_number(tmp_path: Path) -> None:
    for path in (None, tmp_path / "run.trace"):
        with recorder(path) as record:
            for index, name in enumerate([0, "bench-é", "2"]):
                made = Request(name, 2, 1)
                made.index = index
                record.arrived(made, 0.0)
            trace = record.close()
        assert trace.names() == {1: "bench-é"}
        assert trace.requests["name"].tolist() == ["0", "bench-é", "2"]


def test_exception_leaves_a_readable_trace_that_says_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with cut_short(path, KeyboardInterrupt) as record:
        record.arrived(request(0), 0.0)
        record.step(plan(0), 0.0, 1.0, 1.0, 0.0, 0.0)
    trace = Trace.open(path)
    assert trace.status == "stopped"
    assert (len(trace.steps), len(trace.requests)) == (1, 1)


def test_full_disk_is_one_sentence_and_the_trace_before_it_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    sentence = f"no space left on device while writing {path / 'steps.rows'}"
    with pytest.raises(UserError, match=sentence):
        record_until_full(path)
    assert len(Trace.open(path).steps) == 2


def test_temporary_trace_goes_with_the_last_who_holds_it() -> None:
    trace = two_requests()
    path = trace.path
    assert path.is_dir()
    del trace
    gc.collect()
    assert not path.exists()


def test_old_trace_is_replaced_but_nothing_else_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    two_requests(path)
    with recorder(path) as record:
        with pytest.raises(UserError, match="another run is recording there"):
            recorder(path)
        record.step(plan(0), 0.0, 1.0, 1.0, 0.0, 0.0)
    assert len(Trace.open(path).steps) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="is not empty and holds no step trace"):
        recorder(tmp_path / "mine")
    with pytest.raises(UserError, match="a file of that name exists"):
        recorder(tmp_path / "mine" / "letter.txt")
    with pytest.raises(UserError, match="there is no folder"):
        recorder(tmp_path / "no" / "run.trace")


CHILD = """
import sys, time
from tests.traces.plans import plan, recorder
record = recorder(__import__("pathlib").Path(sys.argv[1]), flush_every=1)
for step in range(10_000):
    record.step(plan(step), float(step), step + 1.0, 1.0, 0.0, 0.0)
    time.sleep(0.001)
"""


def test_running_trace_can_be_tailed_and_a_killed_one_keeps_every_write(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT)
    try:
        seen = 0
        deadline = time.monotonic() + 20
        while seen < 20 and time.monotonic() < deadline:
            time.sleep(0.02)
            if (path / "steps.rows").exists():
                running = Trace.open(path)
                seen += len(running.columns("steps", ["step"], start=seen)["step"])
        assert running.status == "running"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    killed = Trace.open(path)
    assert killed.status == "killed"
    assert len(killed.steps) >= seen >= 20
    assert killed.steps["step"].tolist() == list(range(len(killed.steps)))


def test_torn_last_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with cut_short(path) as record:
        record.step(plan(0), 0.0, 1.0, 1.0, 0.0, 0.0)
    with open(path / "steps.rows", "ab") as file:
        file.write(b"\x01\x02\x03")
    assert len(Trace.open(path).steps) == 1


def test_meta_describes_the_rows_well_enough_to_read_them_with_numpy_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with cut_short(path) as record:
        record.step(plan(0, waiting=7), 0.0, 1.5, 1.0, 0.0, 0.0)
    meta = json.loads((path / "meta.json").read_text())
    rows = np.fromfile(path / "steps.rows", dtype=[tuple(field) for field in meta["row_files"]["steps"]])
    assert (rows["t_end_s"][0], rows["waiting"][0]) == (1.5, 7)


def record_until_full(path: Path) -> None:
    with recorder(path, flush_every=2) as record:
        for step in range(5):
            if step == 2:
                full = os.open("/dev/full", os.O_WRONLY)
                os.dup2(full, record._files["steps"].fileno())
                os.close(full)
            record.step(plan(step), float(step), step + 1.0, 1.0, 0.0, 0.0)


def small_config(policy: str, async_scheduling: bool) -> SchedulerConfig:
    return SchedulerConfig(
        policy=policy, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=40, max_model_len=160,
        async_scheduling=async_scheduling,
    )  # fmt: skip


def some_requests(count: int = 40) -> list[Request]:
    draw = np.random.default_rng(7)
    arrivals = np.cumsum(draw.exponential(0.01, count))
    return [
        Request(index, int(draw.integers(1, 100 if index % 3 else 20)), int(draw.integers(1, 30)),
                arrival_s=float(arrivals[index]), eos_at=int(draw.integers(1, 30)) if index % 2 else None)
        for index in range(count)
    ]  # fmt: skip
