"""The command line as a whole: names, exit codes, one sentence for a mistake."""

from __future__ import annotations

import subprocess
import sys

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
