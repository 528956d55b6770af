from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError, InputError, UserError
from scheduler.policies.chunked import Chunked
from simulator.runlog import HEAD, open_log
from simulator.sweep import Sweep, pareto_front, sweep
from tests.conftest import ROOT

from .cases import even, one_slot

GRID = {"max_num_seqs": [1, 4], "rate": [0.5, 2.0]}
SERVER = one_slot(max_num_batched_tokens=64)
del SERVER["max_num_seqs"]


class Mine(Chunked):
    name = "mine"


def small(out: Path | None = None, *, grid: Any = GRID, prompt: int = 8, **more: Any) -> Sweep:
    return sweep(even(12, 1.0, prompt=prompt), grid=grid, out=out, jobs=1, **{**SERVER, **more})


def figures(swept: Sweep) -> list[dict[str, Any]]:
    """The runs without how long they took here."""
    return [{name: value for name, value in row.items() if name != "wall_s"} for row in swept.result["runs"]]


def test_runs_come_in_the_order_of_the_grid_with_their_points() -> None:
    swept = small()
    assert [row["point"] for row in swept.result["runs"]] == [
        {"max_num_seqs": seqs, "rate": rate} for seqs in (1, 4) for rate in (0.5, 2.0)
    ]
    assert swept.runs["max_num_seqs"].tolist() == [1, 1, 4, 4]
    # a request takes 1 s: one slot keeps up with 0.5/s and not with 2/s (the last of 12 waits 11 x 0.5 s), four do;
    # who comes while a step runs waits for its end, 0.1 s at most
    expected = [1.0, 1.0 + 11 * 0.5 / 2, 1.0, 1.0]
    assert swept.runs["e2e_s.mean"].tolist() == pytest.approx(expected, abs=0.1)


def test_the_number_of_processes_changes_nothing() -> None:
    grid = {"max_num_seqs": [4, 8, 16], "policy": ["static", "chunked"]}
    one, two = (sweep("default", grid=grid, requests=40, rate=20.0, jobs=jobs) for jobs in (1, 2))
    assert figures(one) == figures(two)


def test_a_second_sweep_runs_nothing_again(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    first = small(log)
    before = log.read_bytes()
    second = small(log)
    assert (first.result["reused"], second.result["reused"]) == (0, 4)
    assert second.result["runs"] == first.result["runs"]
    assert log.read_bytes() == before


def test_a_wider_grid_runs_only_what_is_new(tmp_path: Path) -> None:
    small(tmp_path / "runs.jsonl")
    wider = small(tmp_path / "runs.jsonl", grid={"max_num_seqs": [1, 2, 4], "rate": [0.5, 2.0]})
    assert wider.result["reused"] == 4
    assert len(wider.result["runs"]) == 6


@pytest.mark.parametrize(
    "changed",
    [
        {"cost": "linear:step_s=0.2"},
        {"prompt": 9},
        {"seed": 1},
        {"policy": "orca"},
        {"block_size": 8},
        {"concurrency": 2, "grid": {"max_num_seqs": [1, 4]}},
    ],
)
def test_a_change_of_anything_that_matters_runs_everything(tmp_path: Path, changed: dict[str, Any]) -> None:
    small(tmp_path / "runs.jsonl")
    assert small(tmp_path / "runs.jsonl", **changed).result["reused"] == 0


def test_a_change_in_a_policys_own_code_runs_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from scheduler.policies.chunked import Chunked\n\n\nclass Own(Chunked):\n    name = 'own'\n    lines = %d\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_policy.py").write_text(source % 1)
    run = {"grid": {"rate": [1.0]}, "policy": "own_policy:Own", "max_num_seqs": 1}
    assert small(tmp_path / "runs.jsonl", **run).result["reused"] == 0
    assert small(tmp_path / "runs.jsonl", **run).result["reused"] == 1
    (tmp_path / "own_policy.py").write_text(source % 2)
    assert small(tmp_path / "runs.jsonl", **run).result["reused"] == 0


@pytest.mark.parametrize("kept", [1, 10, 200, -1])
def test_a_torn_last_line_is_redone(tmp_path: Path, kept: int) -> None:
    log = tmp_path / "runs.jsonl"
    whole = small(log)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    again = small(log)
    assert again.result["reused"] == 3
    assert figures(again) == figures(whole)
    assert small(log).result["reused"] == 4


@pytest.mark.parametrize(
    "content", [b"arrival_s,prompt\n0,1\n", b"my notes", b'{"key": "a"}\n', HEAD.encode() + b"x}\n"]
)
def test_somebody_elses_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "notes.jsonl"
    log.write_bytes(content)
    with pytest.raises(InputError, match="expected a new file or one of a sweep"):
        small(log)
    assert log.read_bytes() == content


def test_a_folder_holds_the_log_and_is_made(tmp_path: Path) -> None:
    small(tmp_path / "night")
    assert (tmp_path / "night" / "runs.jsonl").is_file()
    assert small(tmp_path / "night").result["reused"] == 4


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected NAME.jsonl, NAME.json, NAME.csv or a folder"):
        small(tmp_path / "runs.txt")


def test_two_sweeps_do_not_share_a_log(tmp_path: Path) -> None:
    with open_log(tmp_path / "runs.jsonl"), pytest.raises(UserError, match="another sweep is writing"):
        small(tmp_path / "runs.jsonl")


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    command = [sys.executable, "batchscope.py", "sweep", "--requests", "50", "--jobs", "2", "--out", str(log),
               "--grid", "rate=1:10:1", "--grid", "policy=static,chunked"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    while not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = log.read_bytes().count(b"\n")
    grid = {"rate": [float(rate) for rate in range(1, 11)], "policy": ["static", "chunked"]}
    resumed = sweep("default", requests=50, grid=grid, out=log, jobs=2)
    assert resumed.result["reused"] >= done >= 3
    whole = sweep("default", requests=50, grid=grid, jobs=2)
    assert figures(resumed) == figures(whole)


def test_a_full_disk_stops_the_sweep_and_is_no_result(tmp_path: Path) -> None:
    command = [sys.executable, "batchscope.py", "sweep", "--requests", "10", "--jobs", "1", "--grid", "rate=1,2",
               "--out", str(tmp_path / "night")]  # fmt: skip
    full = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    limited = [sys.executable, "-c", full, *command]
    stopped = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert stopped.returncode == 2
    assert re.fullmatch(r"error: .*(no space left|File too large).*\n", stopped.stderr)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 runs: 2 new, 0 known before, 0 failed" in again.stdout


def test_what_cannot_run_is_a_row_with_the_sentence() -> None:
    swept = sweep(even(3, 1.0), grid={"model": ["llama-3.1-70b", "llama-3.1-8b"]}, jobs=1)
    broken, fine = swept.result["runs"]
    assert "does not fit on 1 x a100-80gb" in broken["error"]
    assert (fine["error"], fine["finished"]) == (None, 3)
    assert swept.result["errors"] == 1
    assert [row["pareto"] for row in swept.result["runs"]] == [False, True]


def test_a_request_that_could_never_run_is_a_row_too() -> None:
    swept = small(grid={"max_model_len": [8, 100]})
    assert "leaves no room for output" in swept.result["runs"][0]["error"]
    assert swept.result["runs"][1]["error"] is None


def test_failed_rows_are_known_again(tmp_path: Path) -> None:
    for skipped in (0, 2):
        swept = sweep(even(3, 1.0), grid={"model": ["llama-3.1-70b", "opt-13b"]}, out=tmp_path / "a.jsonl",
                      hardware="l4", jobs=1)  # fmt: skip
        assert (swept.result["reused"], swept.result["errors"]) == (skipped, 2)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"grid": {"max_num_sqs": [1]}}, "did you mean 'max_num_seqs'"),
        ({"max_num_sqs": 1}, "did you mean 'max_num_seqs'"),
        ({"max_num_seqs": 1}, "max_num_seqs is given as a setting and in the grid"),
        ({"latency": "e2e_p98"}, "unknown latency figure"),
        ({"grid": {"seed": [1, 2]}}, "do not depend on it"),
        ({"grid": {"rate": [0.0]}}, "expected a number > 0"),
    ],
)
def test_mistakes_stop_before_anything_runs(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        small(tmp_path / "runs.jsonl", **more)
    assert not (tmp_path / "runs.jsonl").exists()


def test_seeds_and_clients_can_be_swept() -> None:
    seeds = sweep("default", requests=10, grid={"seed": [1, 2, 3]}, jobs=1)
    assert len({row["makespan_s"] for row in seeds.result["runs"]}) == 3
    clients = small(grid={"concurrency": [1, 2, 4], "max_num_seqs": [4]})
    assert [round(row["makespan_s"], 6) for row in clients.result["runs"]] == [12.0, 6.0, 3.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_is_what_no_other_point_beats(values: list[tuple[int, int]]) -> None:
    front = pareto_front([float(gain) for gain, _ in values], [float(cost) for _, cost in values])
    for (gain, cost), on_front in zip(values, front, strict=True):
        beaten = any(g >= gain and c <= cost and (g, c) != (gain, cost) for g, c in values)
        assert on_front is not beaten


def test_rows_are_flat_and_json_can_hold_the_result() -> None:
    swept = small(grid={"cudagraph_capture_sizes": [[1, 2, 4], []], "max_num_seqs": [1]})
    assert json.loads(json.dumps(swept.result, allow_nan=False)) == swept.result
    assert swept.runs["cudagraph_capture_sizes"].tolist() == ["1+2+4", ""]
    assert all(kind != "O" or not isinstance(value, (dict, list)) for kind, value in
               zip(swept.runs.dtypes, swept.runs.iloc[0], strict=True))  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_a_local_ray_gives_the_same_runs(tmp_path: Path) -> None:
    grid = {"max_num_seqs": [4, 16], "policy": ["static", "chunked"]}
    here = sweep("default", grid=grid, requests=40, jobs=1)
    there = sweep("default", grid=grid, requests=40, ray="local", out=tmp_path / "ray.jsonl")
    assert figures(here) == figures(there)
    assert sweep("default", grid=grid, requests=40, jobs=1, out=tmp_path / "ray.jsonl").result["reused"] == 4
