"""Exports: Chrome JSON keeps its format's rules, CSV reads back as it was."""

from __future__ import annotations

import errno
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scheduler.errors import UserError
from traces.export import export_chrome, export_csv
from traces.trace import Trace

from .plans import cut_short, plan, request, run_scheduler, two_requests
from .test_recorder import small_config, some_requests

REQUIRED = {"X": {"pid", "tid", "ts", "dur", "name"}, "C": {"pid", "ts", "name", "args"}, "M": {"pid", "name", "args"},
            "b": {"pid", "ts", "id", "cat", "name"}, "e": {"pid", "ts", "id", "cat", "name"},
            "i": {"pid", "tid", "ts", "name", "s"}}  # fmt: skip


def chrome(trace: Trace, folder: Path) -> list[dict[str, Any]]:
    export_chrome(trace, folder / "trace.json")
    events: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return events


@pytest.mark.parametrize("policy", ["chunked", "static", "slots", "orca", "prefill-first"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_chrome_events_have_their_keys_and_slices_of_a_slot_do_not_overlap(
    policy: str, async_scheduling: bool, tmp_path: Path
) -> None:
    config = small_config(policy, async_scheduling).replaced(num_blocks=14)
    events = chrome(run_scheduler(config, some_requests(), aborts=[(0.1, 9)]), tmp_path)
    assert {event["ph"] for event in events} >= {"X", "C", "M", "b", "e"}
    ends: dict[int, float] = defaultdict(float)
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        if event["ph"] == "X":
            assert event["ts"] >= ends[event["tid"]] - 1e-6, event  # microseconds, rounded once
            assert event["dur"] >= 0
            ends[event["tid"]] = event["ts"] + event["dur"]


def test_chrome_tracks_are_named_slots_and_waits_are_paired(tmp_path: Path) -> None:
    events = chrome(two_requests(), tmp_path)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "slot 0", 1: "slot 1"}
    slices = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, "prefill 0", 1e6, 1e6), (0, "decode 0", 2e6, 2e6), (1, "prefill 1", 2e6, 1e6), (1, "decode 1", 3e6, 1e6),
    ]  # fmt: skip
    waits = [(e["ph"], e["id"], e["ts"]) for e in events if e["ph"] in "be"]
    assert waits == [("b", 0, 0.0), ("e", 0, 1e6), ("b", 1, 5e5), ("e", 1, 2e6)]


def test_chrome_counters_follow_the_steps_in_order_of_time(tmp_path: Path) -> None:
    events = chrome(two_requests(), tmp_path)
    tokens = [(e["ts"], e["args"]["prefill_tokens"]) for e in events if e["ph"] == "C" and e["name"] == "tokens"]
    assert tokens == [(1e6, 4), (2e6, 3), (3e6, 0), (4e6, 0)]


def test_chrome_shows_a_trace_that_did_not_end(tmp_path: Path) -> None:
    with cut_short(tmp_path / "run.trace") as record:
        a = request(0, slot=0)
        record.arrived(a, 0.0)
        record.arrived(request(1), 0.0)
        record.step(plan(0, tail=[(a, 0, 4, True)], admitted=[a]), 0.0, 1.0, 1.0, 0.0, 0.0)
    events = chrome(Trace.open(tmp_path / "run.trace"), tmp_path)
    assert [e["ts"] for e in events if e["ph"] == "e"] == [1e6]


@pytest.mark.parametrize("path", [None, "run.trace"])
def test_csv_reads_back_as_the_tables_were(path: str | None, tmp_path: Path) -> None:
    config = small_config("chunked", False)
    trace = run_scheduler(config, some_requests(), path=tmp_path / path if path else None, plans=True)
    export_csv(trace, tmp_path / "csv")
    assert sorted(file.stem for file in (tmp_path / "csv").iterdir()) == [
        "blocks", "gaps", "plans", "requests", "spans", "steps",
    ]  # fmt: skip
    for table in ("steps", "spans", "requests", "gaps"):
        read = pd.read_csv(tmp_path / "csv" / f"{table}.csv")
        frame = getattr(trace, table)
        for name in read.columns:
            if frame[name].dtype == "category":
                assert read[name].tolist() == frame[name].tolist()
            else:
                np.testing.assert_array_equal(read[name], frame[name])
    export_csv(trace, tmp_path / "csv")


def test_csv_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the folder"):
        export_csv(two_requests(), tmp_path / "file")


def test_a_disk_too_full_for_any_table_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("traces.export._write_csv", full)
    with pytest.raises(UserError, match="no space left on device"):
        export_csv(two_requests(), tmp_path / "tables")
    assert not list(tmp_path.iterdir())
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine").touch()
    with pytest.raises(UserError, match="no space left on device"):
        export_csv(two_requests(), tmp_path / "tables")
    assert [file.name for file in (tmp_path / "tables").iterdir()] == ["mine"]
