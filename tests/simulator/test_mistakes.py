"""Mistakes at the command line and in classes of the user's own: one sentence, exit code 2, never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from batchscope import main
from scheduler.errors import ConfigError, InputError
from simulator.capacity import capacity
from simulator.compare import compare
from simulator.explain import explain
from simulator.run import simulate
from simulator.sweep import sweep
from tests.conftest import ROOT
from traces.servable import NEVER
from traces.workload import Workload

from .cases import even

OWN = """
from scheduler import Policy
from scheduler.policies.chunked import Chunked
from simulator.costs import CostModel, StepCost

class NoPlan(Policy):
    name = "no-plan"

class Never(Policy):
    name = "never"
    def plan(self, step):
        pass

class Raises(Chunked):
    name = "raises"
    def plan(self, step):
        None + 1

class NotBuilt(Chunked):
    name = "not-built"
    def __init__(self, config):
        raise KeyError("x")

class Fine(Chunked):
    name = "fine"

class Constant(CostModel):
    name = "constant"
    def step_cost(self, shape):
        return StepCost(0.01, 0.0)
    def options(self):
        return {}

class NoOptions(CostModel):
    name = "no-options"
    def step_cost(self, shape):
        return StepCost(0.01, 0.0)

class Divides(Constant):
    def step_cost(self, shape):
        return 1 / 0

class Bare(Constant):
    def step_cost(self, shape):
        return 0.01

class Endless(Constant):
    def step_cost(self, shape):
        return StepCost(float("nan"), 0.0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules of the user's own and a workload with one long prompt, in which commands are run."""
    made = tmp_path_factory.mktemp("own")
    (made / "own_things.py").write_text(OWN)
    (made / "broken_things.py").write_text("def f(:\n")
    (made / "long.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,300,5\n2,10,5\n")
    return made


def batchscope(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command line, called from another folder than the project's."""
    command = [sys.executable, str(ROOT / "batchscope.py"), *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("simulate --tensor-parallel 0", "tensor_parallel is 0; expected a whole number >= 1"),
        ("sweep --grid tensor_parallel=0,1", "tensor_parallel: 0; expected a whole number >= 1"),
        ("simulate --num-blocks 100 --tensor-parallel -1", "tensor_parallel is -1"),
        ("simulate --num-blocks 99999999999", "from 2 to 10,000,000"),
        ("simulate --max-num-seqs 99999999999", "from 1 to 1,000,000"),
        ("simulate --max-model-len 99999999999", "from 2 to 100,000,000"),
        ("simulate --requests 10000000000", "--requests"),
        ("sweep --grid requests=10000000000", "expected at most 100,000,000"),
        ("simulate --cost :", "cost model ':' cannot be loaded"),
        ("simulate --cost ..x:Y", "cost model '..x:Y' cannot be loaded"),
        ("simulate --cost linear:step_s=1,step_s=2", "give one of them twice"),
        ("simulate --concurrency 3 --think-s nan", "think_s is nan"),
        ("simulate --concurrency 3 --think-s inf", "think_s is inf"),
        ("simulate --concurrency 3 --think-s 1e308", "think_s is 1e+308"),
        ("compare --think-s 1", "give concurrency too"),
        ("sweep --grid rate=1,2 --think-s 1", "give concurrency too"),
        ("simulate --concurrency 3 --rate 3", "concurrency and rate contradict"),
        ("explain --concurrency 3 --rate 3", "concurrency and rate contradict"),
        ("capacity --slo e2e_p99=1,e2e_p99=2", "one limit for each figure"),
        ("compare --policies broken_things:X", "SyntaxError"),
        ("compare --policies own_things:NoPlan", "lacks the method plan"),
        ("compare --policies own_things:Never,chunked --jobs 2", "policy own_things:Never failed"),
        ("compare --policies own_things:Raises,chunked --jobs 2", "policy own_things:Raises failed: TypeError"),
        ("simulate --policy own_things:NotBuilt", "policy own_things:NotBuilt failed: KeyError"),
        ("capacity --slo e2e_p99=9 --policy own_things:Raises", "policy own_things:Raises failed: TypeError"),
        ("simulate --cost own_things:NoOptions", "lacks the method options"),
        ("simulate --cost own_things:Divides", "cost model own_things:Divides failed: ZeroDivisionError"),
        ("simulate --cost own_things:Bare", "step_cost returned 0.01; expected a StepCost"),
        ("simulate --cost own_things:Endless", "expected seconds >= 0"),
        ("simulate --cost own_things:Nope", "it has Bare, Constant, Divides, Endless"),
        ("simulate --policy own_things:Nope", "it has Chunked, Fine, Never, NotBuilt, Raises"),
        ("simulate long.csv --max-model-len 200", "long.csv: request 2 of 3: its prompt of 300 tokens"),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, command: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the folder
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    assert says in said


def test_modules_of_the_current_folder_are_found_in_every_process(folder: Path) -> None:
    command = ("compare", "--policies", "chunked,own_things:Fine", "--cost", "own_things:Constant", "--jobs", "2")
    done = batchscope(folder, *command, "--requests", "20", "--json")
    assert done.returncode == 0, done.stderr
    chunked, fine = json.loads(done.stdout)["runs"]
    assert chunked["e2e_s"] == fine["e2e_s"]


def test_a_policy_that_fails_is_a_row_of_a_sweep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    result = sweep(even(5, 0.1), grid={"policy": ["own_things:Raises", "chunked"]}, jobs=1).result
    assert "policy own_things:Raises failed: TypeError" in result["runs"][0]["error"]
    assert result["runs"][1]["error"] is None


@pytest.mark.filterwarnings("error")
def test_steps_that_take_no_time_are_no_trouble() -> None:
    free = {"cost": "linear:step_s=0"}
    assert simulate(even(5, 0.1), **free).summary()["finished"] == 5
    assert compare(even(5, 0.1), **free).result["runs"]
    assert explain(even(5, 0.1), **free).text
    assert capacity(even(5, 0.1), slo="e2e_p99=1", seeds=1, **free).result["sentence"]


def test_raising_max_model_len_as_told_lets_the_request_in() -> None:
    long = Workload(np.zeros(2), np.array([10, 300]), np.array([5, 5]))
    for margin in (0, 1, 7):
        with pytest.raises(InputError) as caught:
            simulate(long, max_model_len=200, model_len_margin=margin)
        enough = int(str(caught.value).rsplit(" ", 1)[1])
        assert simulate(long, max_model_len=enough, model_len_margin=margin).summary()["finished"] == 2
        with pytest.raises(InputError):
            simulate(long, max_model_len=enough - 1, model_len_margin=margin)


LONG = Workload(np.arange(6.0), np.array([10, 300, 10, 20, 300, 30]), np.full(6, 5), name="long")


def test_requests_that_can_never_be_served_are_left_out_and_counted_when_asked() -> None:
    options = {"max_model_len": 200, "skip_bad": True}
    expected = {NEVER: 2}
    trace = simulate(LONG, **options)
    assert (trace.summary()["finished"], trace.meta["skipped"]) == (4, expected)
    compared = compare(LONG, **options).result
    assert compared["skipped"] == expected
    assert {run["finished"] for run in compared["runs"]} == {4}
    rows = sweep(LONG, grid={"max_model_len": [200, 400]}, skip_bad=True, jobs=1).result["runs"]
    assert [(row["finished"], row["skipped"]) for row in rows] == [(4, expected), (6, {})]
    assert capacity(LONG, slo="e2e_p99=9", seeds=1, **options).result["skipped"] == expected
    assert explain(LONG, **options).evidence["record"]["requests"] == 4


def test_a_workload_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(InputError, match="request 1 of 1"):
        simulate(even(1, 1.0, prompt=500), max_model_len=200, skip_bad=True)


def test_what_was_left_out_is_told_on_stderr_and_in_the_json(folder: Path) -> None:
    for command in ("simulate", "compare"):
        done = batchscope(folder, command, "long.csv", "--max-model-len", "200", "--skip-bad", "--json")
        assert json.loads(done.stdout)["skipped"] == {NEVER: 1}
        assert done.stderr == f"skipped 1 rows: {NEVER}\n"


def test_the_json_of_a_run_says_what_was_run(folder: Path) -> None:
    record = json.loads(batchscope(folder, "simulate", "long.csv", "--seed", "3", "--policy", "slots", "--json").stdout)
    assert (record["workload"]["name"], record["workload"]["requests"], record["seed"]) == ("long.csv", 3, 3)
    assert len(record["workload"]["digest"]) == 64
    assert (record["settings"]["policy"], record["settings"]["model"]) == ("slots", "llama-3.1-8b")


def test_no_graph_padding_can_be_asked_for(folder: Path) -> None:
    done = batchscope(folder, "simulate", "long.csv", "--cudagraph-capture-sizes", "none", "--json")
    assert json.loads(done.stdout)["settings"]["cudagraph_capture_sizes"] == []


def test_compare_makes_the_folder_for_its_traces(tmp_path: Path) -> None:
    compare(even(3, 0.1), policies=["chunked"], traces=tmp_path / "new" / "er")
    assert (tmp_path / "new" / "er" / "chunked-ragged.trace" / "meta.json").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot make the folder"):
        compare(even(3, 0.1), policies=["chunked"], traces=tmp_path / "file" / "er")


def test_help_shows_which_switches_are_on(folder: Path) -> None:
    text = " ".join(batchscope(folder, "simulate", "--help").stdout.split())
    for flag, state in (("enable-prefix-caching", "on"), ("enable-chunked-prefill", "on"), ("async-scheduling", "off")):
        assert f"[default: {state}]" in text.split(f"--no-{flag}")[1].split(" --")[0]


def test_a_pause_of_clients_is_for_the_points_that_have_clients() -> None:
    rows = sweep(even(4, 0.1), grid={"concurrency": [None, 2]}, think_s=1.0, jobs=1).result["runs"]
    assert [row["error"] for row in rows] == [None, None]


def test_explain_says_first_that_requests_fail() -> None:
    outgrow = Workload(np.zeros(4), np.full(4, 30), np.array([400, 400, 30, 30]))
    text = explain(outgrow, num_blocks=20).text
    assert text.startswith("2 of 4 requests fail: they outgrow the KV pool. This run serves 2 requests")


def test_large_changes_are_told_as_factors() -> None:
    found = explain("default", num_blocks=300, max_num_seqs=16)
    assert found.after is not None
    old, new = found.before["ttft_p99"] or 0.0, found.after["ttft_p99"] or 0.0
    assert old > 3 * new
    assert f"({old / new:.3g} times less)" in found.text


def test_think_s_of_a_load_is_checked_in_python_too() -> None:
    with pytest.raises(ConfigError, match="think_s is nan"):
        simulate(even(3, 0.1), concurrency=1, think_s=float("nan"))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    args = ["sweep", "--grid", "seed=0:7:1", "--requests", "40000", "--jobs", "2"]
    command = [sys.executable, str(ROOT / "batchscope.py"), *args]
    parent = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _wait_until(lambda: len(_descendants(parent.pid)) >= 4)  # fork server, resource tracker, two workers
    children = _descendants(parent.pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _wait_until(lambda: not any(_alive(child) for child in children))


def _wait_until(holds: object, limit_s: float = 30.0) -> None:
    assert callable(holds)
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def _descendants(pid: int) -> list[int]:
    parents = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    children = [child for child, stat in parents.items() if stat is not None and int(stat[1]) == pid]
    return [*children, *(deeper for child in children for deeper in _descendants(child))]
