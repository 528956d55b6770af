"""The command line as a whole: names, exit codes, one sentence for a mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import batchscope
from tests.conftest import ROOT


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "batchscope", *args], capture_output=True, text=True, cwd=ROOT)


def test_every_command_in_the_table_exists_and_has_help() -> None:
    context = batchscope.cli.make_context("batchscope", ["compare", "--help"], resilient_parsing=True)
    for name in batchscope.COMMANDS:
        command = batchscope.FrontDoor.get_command(batchscope.cli, context, name)
        assert command is not None
        assert command.help


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["comapre"], "unknown command 'comapre' (did you mean 'compare'?)"),
        (["simulate", "--policy", "chunkd"], "unknown policy 'chunkd' (did you mean 'chunked'?)"),
        (["simulate", "--max-num-seqs", "0"], "max_num_seqs is 0; expected a whole number >= 1"),
        (["simulate", "--max-num-seqs", "many"], "is not a valid integer"),
        (["simulate", "no-such-file.csv"], "no-such-file.csv"),
        (["simulate", "--model", "lama-3-8b"], "unknown model 'lama-3-8b' (did you mean"),
        (["simulate", "--hardware", "a1000"], "unknown hardware 'a1000' (did you mean"),
        (["compare", "--policies", "static,orka"], "did you mean 'orca'?"),
        (["simulate", "--num-blocks", "20"], "KV blocks"),
        (["simulate", "--cost", "fitted:path=none.json"], "none.json: cannot be read"),
        (["calibrate", "none.trace"], "none.trace"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(args: list[str], sentence: str) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


def test_version_and_help_succeed() -> None:
    assert run("--version").returncode == 0
    shown = run("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in batchscope.COMMANDS)


def test_a_reader_that_goes_away_is_no_error() -> None:
    pipe = subprocess.run(
        f"{sys.executable} -m batchscope simulate --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert pipe.returncode == 0
    assert "Traceback" not in pipe.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["--help", "workload info --help", "--version", "workload info default"])
def test_a_full_standard_output_is_one_sentence(command: str) -> None:
    with open("/dev/full", "w") as full:
        arguments = [sys.executable, "-m", "batchscope", *command.split()]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "error: no space left on device while writing standard output\n"


def test_ctrl_c_during_the_first_imports_shows_no_stack_trace() -> None:
    code = (
        "import sys\nclass Stop:\n    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\nimport batchscope\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def interrupted(*args: str, until: Path) -> str:
    """What a command that is stopped as soon as `until` has content says."""
    command = [sys.executable, "-m", "batchscope", *args]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    patience_s = time.monotonic() + 30
    while not (until.exists() and until.stat().st_size) and time.monotonic() < patience_s:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=30)
    assert running.returncode in (130, -signal.SIGINT)
    return told.strip()


def test_ctrl_c_says_which_trace_was_kept(tmp_path: Path) -> None:
    trace = tmp_path / "r.trace"
    told = interrupted("simulate", "--requests", "50000", "--trace", str(trace), until=trace / "steps.rows")
    assert told == f"interrupted; partial trace kept in {trace}"
    assert run("trace", "check", str(trace)).returncode == 0


def test_ctrl_c_says_that_the_runs_of_a_sweep_were_kept(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    grid = "max_num_seqs=" + ",".join(map(str, range(1, 200)))
    told = interrupted("sweep", "--requests", "300", "--jobs", "1", "--grid", grid, "--out", str(log), until=log)
    assert told == f"interrupted; results so far kept in {log}"


@pytest.mark.parametrize("args", [
    ["simulate", "w.csv", "--out", "w.csv"], ["compare", "w.csv", "--config", "run.yaml", "--out", "run.yaml"],
    ["sweep", "w.csv", "--grid", "max_num_seqs=1,2", "--out", "w.csv"], ["explain", "w.csv", "--out", "w.csv"],
    ["capacity", "w.csv", "--slo", "e2e_p99=1", "--out", "w.csv"],
])  # fmt: skip
def test_no_experiment_writes_over_what_it_reads(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "w.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,2\n1,6,3\n")
    (tmp_path / "run.yaml").write_text("seed: 1\n")
    result = run(*(str(tmp_path / arg) if arg in ("w.csv", "run.yaml") else arg for arg in args))
    assert result.returncode == 2
    assert "which this command reads; expected another name" in result.stderr
    assert (tmp_path / "w.csv").read_text().count("\n") == 3
    assert (tmp_path / "run.yaml").read_text() == "seed: 1\n"
