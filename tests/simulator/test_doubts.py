"""What is uncertain about prices is said by every command that shows figures of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from batchscope import main
from scheduler.errors import UserError
from simulator import simulate
from traces.samples import sample_path
from traces.trace import Trace

CAVEAT = "all prices: nothing was measured on h100"
ON_H100 = ["--hardware", "h100", "--num-blocks", "4000"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "default", "--requests", "5", *ON_H100],
        ["compare", "default", "--requests", "5", "--policies", "slots,chunked", *ON_H100],
        ["sweep", "default", "--requests", "5", "--grid", "max_num_seqs=2,4", *ON_H100],
        ["explain", "default", "--requests", "5", "--max-num-seqs", "2", *ON_H100],
        ["capacity", "default", "--requests", "20", "--slo", "ttft_p99=10", "--rate", "1", "--replicas", "1", *ON_H100],
    ],
    ids=lambda command: command[0],
)
def test_every_command_says_once_that_a_card_was_never_measured(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(capsys, *command).count(CAVEAT) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "w.csv"],
        ["sweep", "w.csv", "--grid", "max_num_seqs=1,2"],
        ["explain", "w.csv"],
        ["capacity", "w.csv", "--slo", "ttft_p99=100", "--rate", "0.1", "--replicas", "1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_says_how_many_steps_were_beyond_what_was_measured(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{at},40000,3\n" for at in range(4))  # more rows in a step than any table of an A100 has
    Path("w.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    told = said(capsys, *command, "--policy", "static", "--max-num-batched-tokens", "50000", "--num-blocks", "20000")
    assert "extrapolated" in told
    assert "rows of a step above 32,768" in told


def test_a_trace_tells_it_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    simulate("default", requests=5, hardware="h100", out=tmp_path / "run.trace")
    assert CAVEAT in said(capsys, "trace", "info", str(tmp_path / "run.trace"))


def test_a_simulated_run_never_takes_the_place_of_a_measured_one(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    shutil.copytree(sample_path("chunked"), path)
    with pytest.raises(UserError, match="holds a measured run; a simulated one is not written over it"):
        simulate("default", requests=2, out=path)
    assert json.loads((path / "meta.json").read_text())["source"] == "measured"
    assert len(Trace.open(path).steps)
    simulate("default", requests=2, out=tmp_path / "other.trace")
    simulate("default", requests=3, out=tmp_path / "other.trace")
    assert len(Trace.open(tmp_path / "other.trace").requests) == 3
