from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError
from simulator.cli import sweep
from tests.conftest import ROOT

SMALL = ("default", "--requests", "20", "--jobs", "1")


def run(*args: object) -> str:
    result = CliRunner().invoke(sweep, [str(arg) for arg in args], catch_exceptions=False, standalone_mode=False)
    return result.stdout


def points(text: str) -> list[dict[str, Any]]:
    return [row["point"] for row in json.loads(text)["runs"]]


def test_json_is_one_document_with_the_runs_in_grid_order() -> None:
    text = run(*SMALL, "--grid", "max_num_seqs=4,8", "--grid", "policy=static,chunked", "--json")
    expected = [{"max_num_seqs": n, "policy": p} for n in (4, 8) for p in ("static", "chunked")]
    assert points(text) == expected


def test_the_table_marks_the_front_and_says_what_was_known(tmp_path: Path) -> None:
    args = (*SMALL, "--grid", "policy=static,chunked", "--out", tmp_path / "night")
    assert "2 runs: 2 new, 0 known before, 0 failed" in run(*args)
    again = run(*args)
    assert "2 runs: 0 new, 2 known before, 0 failed" in again
    lines = [line for line in again.splitlines() if "chunked" in line or "static" in line]
    assert [line.startswith("*") for line in lines] == [False, True]


def test_a_folder_gets_the_log_the_result_and_a_table(tmp_path: Path) -> None:
    text = run(*SMALL, "--grid", "rate=1,2", "--out", tmp_path / "night", "--json")
    assert sorted(path.name for path in (tmp_path / "night").iterdir()) == ["runs.jsonl", "sweep.csv", "sweep.json"]
    assert json.loads((tmp_path / "night" / "sweep.json").read_text()) == json.loads(text)
    rows = list(csv.DictReader((tmp_path / "night" / "sweep.csv").open()))
    assert [row["rate"] for row in rows] == ["1.0", "2.0"]
    assert float(rows[0]["e2e_s.p99"]) == json.loads(text)["runs"][0]["e2e_s"]["p99"]


def test_results_alone_go_to_json_or_csv(tmp_path: Path) -> None:
    for name in ("a.json", "a.csv"):
        run(*SMALL, "--grid", "rate=1", "--out", tmp_path / name)
    assert json.loads((tmp_path / "a.json").read_text())["reused"] == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2


def test_a_yaml_file_may_hold_the_grid_as_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "night.yaml"
    file.write_text(
        "requests: 20\npolicy: chunked\ngrid:\n  max_num_seqs: [4, 8]\n  cudagraph_capture_sizes: [[1, 2], []]\n"
        "  async_scheduling: true\n"
    )
    found = points(run("default", "--jobs", 1, "--config", file, "--json"))
    assert [(point["max_num_seqs"], point["cudagraph_capture_sizes"]) for point in found] == [
        (4, [1, 2]), (4, []), (8, [1, 2]), (8, [])
    ]  # fmt: skip
    assert {point["async_scheduling"] for point in found} == {True}
    flags = points(run("default", "--jobs", 1, "--config", file, "--grid", "rate=1,2", "--json"))
    assert flags == [{"rate": 1.0}, {"rate": 2.0}]


def test_a_failed_combination_is_a_line_of_the_table() -> None:
    text = run(*SMALL, "--grid", "model=llama-3.1-70b,llama-3.1-8b")
    assert "llama-3.1-70b does not fit on" in text
    assert "1 failed" in text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "the grid is empty"),
        (("--grid", "max_num_seq=1"), "did you mean 'max_num_seqs'"),
        (("--grid", "rate=1", "--rate", "2"), "rate is given as a setting and in the grid"),
        (("--grid", "rate=1", "--out", "a.txt"), "expected NAME.jsonl"),
    ],
)
def test_mistakes_are_sentences(args: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(*SMALL, *args)


def test_the_front_door_ends_with_2_and_one_line() -> None:
    command = [sys.executable, "batchscope.py", "sweep", "--grid", "polcy=static"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown setting in the grid 'polcy' (did you mean 'policy'?)")
    assert done.stderr.count("\n") == 1
