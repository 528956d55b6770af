"""One run from the command line or from Python: what it refuses, what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from scheduler.errors import ConfigError, InputError
from simulator import simulate
from tests.conftest import ROOT
from traces.record import record_of
from traces.run_table import run_table
from traces.trace import Trace
from traces.workload import Workload

COMMAND = [sys.executable, "-m", "batchscope"]


def test_the_first_request_that_can_never_run_is_named_before_anything_is_written(tmp_path: Path) -> None:
    long = Workload(np.zeros(3), np.array([10, 500, 600]), np.array([5, 5, 5]), name="long.csv")
    with pytest.raises(
        InputError, match=r"long\.csv: request 2 of 3: its prompt of 500 tokens .* shorten it to 255 or raise"
    ):
        simulate(long, max_model_len=256, out=tmp_path / "x.trace")
    assert not list(tmp_path.iterdir())


def test_meta_says_what_was_run_and_that_it_is_simulated() -> None:
    meta = simulate("default", requests=5, policy="orca", seed=3).meta
    assert meta["source"] == "simulated"
    assert (meta["policy"], meta["layout"], meta["seed"]) == ("orca", "ragged", 3)
    assert meta["config"]["max_num_seqs"] == 256
    assert meta["cost_model"]["name"] == "roofline"
    assert meta["workload"]["requests"] == 5
    assert len(meta["workload"]["digest"]) == 64


def test_a_cost_model_used_outside_its_range_says_so_in_the_trace() -> None:
    trace = simulate(Workload(np.zeros(2), np.array([40_000] * 2), np.array([2, 2])), policy="static")
    assert trace.meta["extrapolation"]["steps"] > 0
    assert simulate("default", requests=5).meta["extrapolation"] is None


def test_a_card_that_nothing_was_measured_on_is_named_in_trace_record_and_table() -> None:
    measured, generic = (simulate("default", requests=5, hardware=name) for name in ("a100-80gb", "h100"))
    assert measured.meta["cost_model"]["caveat"] is None
    told = generic.meta["cost_model"]["caveat"]
    assert told == "nothing was measured on h100: how near its kernels come to its peaks is generic"
    records = [record_of(trace) for trace in (measured, generic, generic)]
    assert [record["caveat"] for record in records] == [None, told, told]
    printed = StringIO()
    run_table(records, Console(file=printed, width=200))
    assert printed.getvalue().count(f"all prices: {told}") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"think_s": -1.0}, "think_s is -1.0"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"rate": -2.0}, "rate is -2.0"),
    ],
)
def test_a_wrong_load_gets_a_sentence(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        simulate("default", requests=3, **options)


def test_more_clients_than_requests_is_fine() -> None:
    assert simulate("default", requests=3, concurrency=50).summary()["finished"] == 3


def test_json_is_one_document_and_out_holds_the_same(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    command = [*COMMAND, "simulate", "--requests", "5", "--json", "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(result.stdout) == json.loads(out.read_text())


def test_flags_win_over_the_yaml_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("policy: static\nmax_num_seqs: 4\nrequests: 6\n")
    command = [*COMMAND, "simulate", "--config", str(config), "--policy", "slots", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    record = json.loads(result.stdout)
    assert (record["policy"], record["requests"]) == ("slots", 6)


def test_a_yaml_typo_gets_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("max_num_sex: 4\n")
    result = subprocess.run([*COMMAND, "simulate", "--config", str(config)], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 2
    assert "max_num_sex" in result.stderr
    assert "max-num-seqs" in result.stderr


def test_ctrl_c_keeps_a_readable_partial_trace(tmp_path: Path) -> None:
    path = tmp_path / "partial.trace"
    command = [*COMMAND, "simulate", "azure-conv", "--requests", "200000", "--trace", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    rows = path / "steps.rows"
    for _ in range(600):
        if rows.exists() and rows.stat().st_size > 0:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    trace = Trace.open(path)
    assert trace.status == "stopped"
    assert len(trace.steps) > 0
    assert trace.summary()["finished"] > 0


def test_a_full_disk_gets_one_sentence(tmp_path: Path) -> None:
    command = f"ulimit -f 64; exec {' '.join(COMMAND)} simulate --requests 200 --trace {tmp_path}/full.trace"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "full.trace" in result.stderr
