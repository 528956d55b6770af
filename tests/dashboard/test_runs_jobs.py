"""Runs in real worker processes: bounded, cancelled, cut short, and told in one sentence."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.runs import worker
from dashboard.runs.folders import UnknownId
from dashboard.runs.jobs import Jobs
from dashboard.runs.sandbox import Limits
from dashboard.runs.store import CUT_SHORT, RunStore, StoredRun
from dashboard.runs.uploads import Uploads
from scheduler.errors import ConfigError, UserError
from simulator.run import simulate
from simulator.sweep import sweep
from tests.conftest import ROOT
from traces.trace import Trace

SMALL = {"kind": "preset", "name": "default", "requests": 12}
LONG = {"kind": "generate", "requests": 60_000, "arrivals": "poisson:rate=8", "output": "constant:300"}
PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs")
    yield opened
    opened.close()


@pytest.fixture
def jobs(store: RunStore) -> Iterator[Jobs]:
    opened = Jobs(store)
    yield opened
    opened.close()


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def ended(store: RunStore, run_id: str) -> StoredRun:
    until(lambda: not store.get(run_id).active)
    return store.get(run_id)


def test_a_simulation_gives_the_trace_of_the_simulator_with_its_plans(jobs: Jobs, store: RunStore) -> None:
    settings = {"max_num_seqs": 4, "cudagraph_capture_sizes": [1, 2, 4]}
    run = ended(store, jobs.submit("anna", {"workload": SMALL, "settings": settings, "seed": 5, "label": "A"}))
    assert (run.state, run.sentence) == ("done", "")
    assert run.trace_path is not None
    trace = Trace.open(run.trace_path)
    expected = simulate("default", requests=12, seed=5, max_num_seqs=4, cudagraph_capture_sizes=(1, 2, 4))
    assert trace.status == "finished"
    assert trace.steps.equals(expected.steps)
    assert trace.plan_at(0)
    assert run.explanation is None
    assert jobs.progress(run.id).sentence == "Done."


def test_an_explanation_comes_with_the_run_when_asked_for(jobs: Jobs, store: RunStore) -> None:
    request = {"workload": SMALL, "settings": {"cost": "linear:step_s=0.01", "max_num_seqs": 1}, "explain": True}
    told = ended(store, jobs.submit("anna", request)).explanation
    assert told is not None
    assert told["bound"] == "seqs"
    assert told["knob"]["name"] == "max_num_seqs"


def test_closed_loop_clients_wait_for_their_answers(jobs: Jobs, store: RunStore) -> None:
    request = {"workload": SMALL, "concurrency": 2, "think_s": 0.5}
    run = ended(store, jobs.submit("anna", request))
    assert run.trace_path is not None
    assert Trace.open(run.trace_path).column("steps", "running").max() == 2


def test_a_sweep_gives_the_result_of_the_simulator(jobs: Jobs, store: RunStore) -> None:
    grid = {"max_num_seqs": [2, 4], "rate": "1,2"}
    run = ended(store, jobs.submit("anna", {"kind": "sweep", "workload": SMALL, "grid": grid}))
    expected = sweep("default", requests=12, grid=grid, jobs=1).result
    assert run.state == "done", run.sentence
    assert run.result is not None
    for got, wanted in zip(run.result["runs"], expected["runs"], strict=True):
        assert {**got, "wall_s": None} == {**wanted, "wall_s": None}


def test_an_uploaded_workload_is_run(store: RunStore, tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads")
    upload = uploads.add_workload("anna", "my.csv", b"arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,20,5\n")
    jobs = Jobs(store, uploads)
    run = ended(store, jobs.submit("anna", {"workload": {"kind": "upload", "id": upload.id}}))
    assert run.trace_path is not None, run.sentence
    assert Trace.open(run.trace_path).meta["workload"]["name"] == "my.csv"
    jobs.close()
    uploads.close()


def test_a_wrong_setting_takes_no_place_in_the_queue(jobs: Jobs, store: RunStore) -> None:
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        jobs.submit("anna", {"workload": SMALL, "settings": {"max_num_seqs": 0}})
    assert store.own("anna") == []


def test_what_only_the_run_can_tell_has_the_sentence_of_the_command_line(
    jobs: Jobs, store: RunStore, tmp_path: Path
) -> None:
    file = tmp_path / "listed requests"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,900,5\n")
    command = [sys.executable, str(ROOT / "batchscope.py"), "simulate", file.name, "--max-model-len", "512"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert printed.returncode == 2
    spec = {"kind": "list", "arrival_s": [0, 1], "prompt_tokens": [10, 900], "output_tokens": [3, 5]}
    run = ended(store, jobs.submit("anna", {"workload": spec, "settings": {"max_model_len": 512}}))
    assert run.state == "failed"
    assert run.sentence in printed.stderr
    assert run.trace_path is None


def test_a_model_of_a_folders_name_is_unknown_to_the_worker(
    jobs: Jobs, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("secret")
    monkeypatch.chdir(tmp_path)
    run = ended(store, jobs.submit("anna", {"workload": SMALL, "settings": {"model": "my-model"}}))
    assert run.sentence.startswith("unknown model 'my-model'")


def test_workers_are_bounded_and_the_queue_keeps_its_order(store: RunStore) -> None:
    jobs = Jobs(store, workers=2, most_of_one=8)
    ids = [jobs.submit("anna", {"workload": SMALL, "settings": {"max_num_seqs": 1 + i}}) for i in range(4)]
    most, order = 0, []
    while any(run.active for run in store.own("anna")):
        states = {run_id: store.get(run_id).state for run_id in ids}
        most = max(most, sum(state == "running" for state in states.values()))
        order += [run_id for run_id in ids if states[run_id] == "running" and run_id not in order]
        time.sleep(0.005)
    assert most == 2
    assert order == [run_id for run_id in ids if run_id in order]
    assert [store.get(run_id).state for run_id in ids] == ["done"] * 4
    jobs.close()


def test_nobody_fills_the_queue(store: RunStore) -> None:
    jobs = Jobs(store, most_of_one=2, most_queued=3)
    running = jobs.submit("anna", {"workload": LONG})
    until(lambda: store.get(running).state == "running")
    waiting = jobs.submit("anna", {"workload": SMALL})
    assert jobs.progress(waiting).sentence == "Waiting: 1 run to end first."
    with pytest.raises(UserError, match="2 of your runs have not ended yet"):
        jobs.submit("anna", {"workload": SMALL})
    jobs.submit("berta", {"workload": SMALL})
    jobs.submit("clara", {"workload": SMALL})
    with pytest.raises(UserError, match="3 runs are waiting already"):
        jobs.submit("dora", {"workload": SMALL})
    jobs.close()


def test_a_running_run_tells_how_far_it_is_and_ends_when_cancelled(jobs: Jobs, store: RunStore) -> None:
    run_id = jobs.submit("anna", {"workload": LONG})
    seen: list[int] = []

    def progressed() -> bool:
        seen.append(jobs.progress(run_id).done)
        return 0 < seen[-1] < 60_000

    until(progressed)
    assert jobs.progress(run_id).total == 60_000
    assert seen == sorted(seen)
    assert jobs.progress(run_id).sentence.endswith("of 60,000 requests have ended.")
    with pytest.raises(UnknownId):
        jobs.cancel(run_id, "berta")
    assert jobs.cancel(run_id, "anna")
    run = ended(store, run_id)
    assert (run.state, run.sentence, run.trace_path) == ("cancelled", "Cancelled.", None)
    assert not jobs.cancel(run_id, "anna")


def test_what_a_worker_needs_for_a_while_lies_in_the_runs_folder_and_goes_when_it_is_cancelled(
    jobs: Jobs, store: RunStore
) -> None:
    grid = {"max_num_seqs": [4, 8, 16, 32]}
    run_id = jobs.submit("anna", {"kind": "sweep", "workload": {**LONG, "requests": 20_000}, "grid": grid})
    folder = store.get(run_id).folder
    until(lambda: any((folder / "tmp").glob("*.trace")))
    jobs.cancel(run_id, "anna")
    assert ended(store, run_id).state == "cancelled"
    assert not (folder / "tmp").exists()


def test_a_waiting_run_that_is_cancelled_never_starts(jobs: Jobs, store: RunStore) -> None:
    running = jobs.submit("anna", {"workload": LONG})
    waiting = jobs.submit("anna", {"workload": SMALL})
    assert jobs.cancel(waiting, "anna")
    assert store.get(waiting).state == "cancelled"
    jobs.cancel(running, "anna")
    ended(store, running)
    after = jobs.submit("anna", {"workload": SMALL})
    assert ended(store, after).state == "done"
    assert not (store.get(waiting).folder / "worker.log").exists()


def workers_alive(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line and "dashboard.runs.worker" in line:
            found.append(line)
    return found


def test_closing_ends_every_child_and_fails_what_had_not_ended(store: RunStore) -> None:
    jobs = Jobs(store)
    running, waiting = (jobs.submit("anna", {"workload": LONG}) for _ in range(2))
    folder = store.get(running).folder
    until(lambda: store.get(running).trace_path is not None)
    assert workers_alive(folder)
    jobs.close()
    assert not workers_alive(folder)
    assert [store.get(run_id).sentence for run_id in (running, waiting)] == [CUT_SHORT] * 2
    assert store.get(running).trace_path is None
    with pytest.raises(UserError, match="closing"):
        jobs.submit("anna", {"workload": SMALL})


KILLED = """
import os, sys, time
sys.path.insert(0, {root!r})
from dashboard.runs.jobs import Jobs
from dashboard.runs.store import RunStore
store = RunStore({runs!r})
run_id = Jobs(store).submit("anna", {{"workload": {workload!r}}})
while store.get(run_id).trace_path is None:
    time.sleep(0.02)
print(run_id, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_dashboard_takes_its_workers_along_and_its_runs_are_told_as_failed(tmp_path: Path) -> None:
    program = KILLED.format(root=str(ROOT), runs=str(tmp_path), workload=LONG)
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    run_id = printed.stdout.strip()
    until(lambda: not workers_alive(tmp_path / run_id))
    store = RunStore(tmp_path)
    assert (store.get(run_id).state, store.get(run_id).sentence) == ("failed", CUT_SHORT)
    assert store.get(run_id).trace_path is None
    store.close()


@pytest.mark.parametrize(
    ("limits", "workload", "sentence"),
    [
        (Limits(cpu_s=2), LONG, "this takes more than 2 s of computing, the limit here; fewer requests take less"),
        (Limits(file_bytes=2**20), LONG, "this writes a file of more than 0.000977 GiB"),
        (
            Limits(memory_bytes=400 * 2**20),
            {"kind": "generate", "requests": 100_000, "prefixes": "groups=100,length=2500"},
            "GiB of memory, the limit here",
        ),
    ],
)
def test_a_run_that_would_take_the_machine_ends_with_one_sentence(
    store: RunStore, limits: Limits, workload: dict[str, Any], sentence: str
) -> None:
    jobs = Jobs(store, limits=limits)
    run = ended(store, jobs.submit("anna", {"workload": workload}))
    assert run.state == "failed"
    assert sentence in run.sentence
    assert run.trace_path is None
    jobs.close()


def test_a_crash_of_ours_is_told_with_its_kind_and_its_traceback_goes_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*arguments: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(worker, "_do", crash)
    told = worker._outcome(tmp_path, "", [], Limits())
    assert told == ("failed", "the run failed inside batchscope: ZeroDivisionError: division by zero")
    assert "Traceback" in capsys.readouterr().err


def test_a_script_in_a_label_stays_text(jobs: Jobs, store: RunStore) -> None:
    run_id = jobs.submit("anna", {"workload": SMALL, "label": "<script>alert(1)</script>"})
    assert ended(store, run_id).label == "<script>alert(1)</script>"
