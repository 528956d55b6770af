"""Traces made to trip a page: each is refused with one sentence, and what real runs write never is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scheduler.errors import InputError
from simulator.run import simulate
from traces import schema
from traces.recorder import TraceRecorder
from traces.sound import check_sound, open_checked
from traces.trace import Trace


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "good.trace"
    simulate("default", requests=8, max_num_seqs=3, out=path, plans=True, token_times=True)
    return path


@pytest.fixture
def trace(good: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(good, tmp_path / "broken.trace"))


def rewrite(trace: Path, table: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a table anew with its columns, as numpy arrays, changed."""
    file = trace / f"{table}.parquet"
    read = pq.read_table(file, partitioning=None)
    columns = {name: read.column(name).combine_chunks() for name in read.column_names}
    for name in schema.table_named(table).names:
        columns[name] = columns[name].to_numpy(zero_copy_only=False).copy()
    change(columns)
    pq.write_table(pa.table(columns), file)


@pytest.mark.parametrize("policy", ["chunked", "static", "slots", "orca", "prefill-first"])
@pytest.mark.parametrize("plans", [True, False])
def test_what_the_recorder_writes_is_taken(tmp_path: Path, policy: str, plans: bool) -> None:
    options: dict[str, Any] = {"num_blocks": 300, "max_num_seqs": 8, "plans": plans, "policy": policy}
    simulate("default", requests=30, rate=50.0, out=tmp_path / "a.trace", **options)
    assert len(open_checked(tmp_path / "a.trace").steps)


def test_a_trace_that_was_cut_is_taken_too(good: Path, tmp_path: Path) -> None:
    rows = tmp_path / "cut.trace"
    meta = {"source": "measured", "policy": "chunked", "layout": "ragged"}
    recorder = TraceRecorder(rows, meta, slots_total=3)
    check_sound(Trace.open(rows))  # running, nothing written yet
    del recorder
    steps = Trace.open(good).columns("steps")
    records = np.zeros(len(steps["step"]), dtype=schema.STEPS.dtype)
    for name, values in steps.items():
        records[name] = values
    (rows / "steps.rows").write_bytes(records.tobytes()[:-7])  # a torn last row
    assert len(open_checked(rows).column("steps", "step")) == len(records) - 1


def test_the_recordings_of_real_engines_are_taken(data_dir: Path) -> None:
    for path in sorted(data_dir.rglob("*.trace")):
        check_sound(Trace.open(path))


def put(column: str, row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    """Change one value."""

    def change(columns: dict[str, Any]) -> None:
        columns[column][row] = value

    return change


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "sentence"),
    [
        ("steps", "step", 3, 2, "table steps: step is 2; expected steps numbered one by one"),
        ("steps", "step", -1, 10**15, "expected steps numbered one by one"),
        ("steps", "step", 0, -1, "step is -1; expected 0 to"),
        ("steps", "t_end_s", 2, np.inf, "t_end_s is inf; expected seconds"),
        ("steps", "t_start_s", 2, np.nan, "t_start_s is nan; expected seconds"),
        ("steps", "t_start_s", 0, 1e9, "expected times that never decrease"),
        ("steps", "device_s", 2, 1e300, "device_s is 1e\\+300; expected seconds"),
        ("steps", "wait_reason", 2, 99, "wait_reason is 99; expected 0 to 4"),
        ("steps", "waiting", 2, -5, "waiting is -5; expected 0 to"),
        ("steps", "slots_total", 2, 2**31 - 1, "slots_total is 2147483647; expected 0 to 1,000,000"),
        ("spans", "kind", 0, 7, "kind is 7; expected 0 to 4"),
        ("spans", "slot", 0, 10**6, "slot is 1000000; expected -1 to 2"),
        ("spans", "slot", 0, -2, "slot is -2"),
        ("spans", "last_step", 0, 2**62, "last_step is 4611686018427387904"),
        ("spans", "request", 0, 2**31 - 1, "table spans: request is 2147483647"),
        ("spans", "start_s", 0, -np.inf, "start_s is -inf"),
        ("requests", "request", 3, 2, "request is 2; expected each request once"),
        ("requests", "finish_reason", 0, -1, "finish_reason is -1"),
        ("requests", "arrival_s", 0, np.nan, "arrival_s is nan"),
        ("requests", "finished_s", 0, np.inf, "finished_s is inf"),
        ("gaps", "count", 0, -1, "table gaps: count is -1"),
        ("gaps", "gap_s", 0, np.nan, "gap_s is nan"),
        ("plans", "event", 0, 9, "table plans: event is 9; expected 0 to 8"),
        ("plans", "slot", 0, 500, "slot is 500"),
        ("blocks", "logical", 0, -1, "table blocks: logical is -1"),
    ],
)
def test_a_figure_that_cannot_be_is_named(
    trace: Path, table: str, column: str, row: int, value: Any, sentence: str
) -> None:
    rewrite(trace, table, put(column, row, value))
    with pytest.raises(InputError, match=sentence):
        open_checked(trace)


def test_a_column_of_another_type_is_named(trace: Path) -> None:
    def texts(columns: dict[str, Any]) -> None:
        columns["waiting"] = ["<script>"] * len(columns["step"])

    rewrite(trace, "steps", texts)
    with pytest.raises(InputError, match="table steps: waiting is string; expected int32"):
        open_checked(trace)


def test_a_missing_column_is_named(trace: Path) -> None:
    rewrite(trace, "spans", lambda columns: columns.pop("slot"))
    with pytest.raises(InputError, match="table spans: slot is missing; expected int32"):
        open_checked(trace)


def test_missing_values_are_named(trace: Path) -> None:
    def holes(columns: dict[str, Any]) -> None:
        columns["waiting"] = pa.array([None, *columns["waiting"][1:].tolist()], pa.int32())

    rewrite(trace, "steps", holes)
    with pytest.raises(InputError, match="waiting has values that are no int32"):
        open_checked(trace)


def test_a_table_that_is_gone_is_named(trace: Path) -> None:
    (trace / "gaps.parquet").unlink()
    with pytest.raises(InputError, match=r"broken\.trace: .*gaps"):
        open_checked(trace)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"slots_total": "many"}, "slots_total is 'many'; expected a whole number"),
        ({"slots_total": True}, "slots_total is 'True'; expected a whole number"),
        ({"slots_total": 10**12}, "slots_total is out of range"),
        ({"source": "dreamt"}, "source is 'dreamt'; expected simulated or measured"),
        ({"policy": ["x"]}, "expected a text"),
        ({"workload": 3}, "workload is '3'; expected an object"),
        ({"layout": None}, "layout is 'None'; expected a text"),
    ],
)
def test_a_description_that_cannot_be_is_named(trace: Path, change: dict[str, Any], sentence: str) -> None:
    meta = json.loads((trace / "meta.json").read_text())
    (trace / "meta.json").write_text(json.dumps({**meta, **change}))
    with pytest.raises(InputError, match=sentence):
        open_checked(trace)


def test_a_description_without_what_pages_need_is_named(trace: Path) -> None:
    (trace / "meta.json").write_text(json.dumps({"schema_version": 1, "closed": True, "complete": True}))
    with pytest.raises(InputError, match=r"meta\.json holds no source"):
        open_checked(trace)


def test_links_and_pipes_are_not_opened(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (trace / "steps.parquet").unlink()
    (trace / "steps.parquet").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"steps\.parquet is no plain file") as told:
        open_checked(trace)
    assert "secret" not in str(told.value)
    (trace / "steps.parquet").unlink()
    os.mkfifo(trace / "steps.rows")
    with pytest.raises(InputError, match=r"steps\.rows is no plain file"):
        open_checked(trace)


def test_rows_that_are_not_there_take_no_memory(trace: Path) -> None:
    (trace / "steps.parquet").unlink()
    with open(trace / "steps.rows", "wb") as file:
        file.truncate(10**12)  # sparse: no byte of it is on the disk
    with pytest.raises(InputError, match="rows; expected at most 50,000,000"):
        open_checked(trace)


def test_names_are_texts_of_sensible_length(tmp_path: Path) -> None:
    recorder = TraceRecorder(
        tmp_path / "a.trace", {"source": "measured", "policy": "chunked", "layout": "ragged"}, slots_total=1
    )
    for line in (
        '{"request": 0, "name": 5}\n',
        '{"request": 0}\n',
        "[]\n",
        '{"request": 0, "name": "' + "x" * 2000 + '"}\n',
    ):
        (tmp_path / "a.trace" / "names.jsonl").write_text(line)
        with pytest.raises(InputError):
            open_checked(tmp_path / "a.trace")
    del recorder


def test_a_trace_that_is_none_has_the_readers_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no such trace; expected a folder NAME\.trace"):
        open_checked(tmp_path / "none.trace")
