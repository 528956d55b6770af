from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError
from simulator.cli import explain, simulate

SMALL = ("default", "--requests", 60, "--max-num-seqs", 2)


def run(*args: object) -> str:
    result = CliRunner().invoke(explain, [str(arg) for arg in args], catch_exceptions=False, standalone_mode=False)
    return result.stdout


def record(trace: Path, *args: object) -> None:
    CliRunner().invoke(simulate, [str(arg) for arg in (*args, "--trace", trace)], catch_exceptions=False)


def test_a_paragraph_and_the_figures_before_and_after() -> None:
    first, *rest = run(*SMALL).splitlines()
    assert first.startswith("This run serves 60 requests under chunked (ragged)")
    assert "slots: requests wait for a seat" in first
    assert "Next knob: max_num_seqs 2 -> 4. Simulated with it" in first
    assert any("as it is" in line for line in rest)
    assert any("max_num_seqs 2 -> 4" in line for line in rest)


def test_json_holds_the_evidence(tmp_path: Path) -> None:
    found = json.loads(run(*SMALL, "--json", "--out", tmp_path / "e.json"))
    assert found["bound"] == "seqs"
    assert sum(found["evidence"]["parts"].values()) == pytest.approx(1.0)
    assert json.loads((tmp_path / "e.json").read_text()) == found


def test_a_trace_is_explained_from_its_folder(tmp_path: Path) -> None:
    record(tmp_path / "a.trace", *SMALL)
    assert run(tmp_path / "a.trace") == run(*SMALL)


def test_a_files_requests_are_named_to_simulate_the_knob(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,32,40\n" * 30)
    record(tmp_path / "a.trace", file, "--max-num-seqs", 2, "--concurrency", 10)
    assert "not simulated, because the workload was not given" in run(tmp_path / "a.trace")
    assert "Simulated with it" in run(tmp_path / "a.trace", "--requests-from", file)
    with pytest.raises(ConfigError, match="is not the one of this trace"):
        run(tmp_path / "a.trace", "--requests-from", file, "--requests", 5)


def test_settings_of_a_trace_are_not_to_be_given_again(tmp_path: Path) -> None:
    record(tmp_path / "a.trace", *SMALL)
    with pytest.raises(ConfigError, match="max_num_seqs: the settings of a recorded run are in its trace"):
        run(tmp_path / "a.trace", "--max-num-seqs", 4)


def test_requests_from_goes_with_a_trace_only() -> None:
    with pytest.raises(ConfigError, match="--requests-from goes with a step trace"):
        run(*SMALL, "--requests-from", "default")
