"""`batchscope trace`: what it prints, writes, and exits with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import batchscope
from traces import schema

from .plans import two_requests
from .test_check import bend


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    with pytest.raises(SystemExit) as ended:
        batchscope.main(["trace", *map(str, arguments)])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return two_requests(tmp_path / "run.trace").path


def test_info_prints_one_json_document(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", path, "--json", "--slo", "ttft_s=2")
    found = json.loads(out)
    assert code == 0
    assert found["status"] == "finished"
    assert found["meta"]["policy"] == "chunked"
    assert found["metrics"]["goodput_requests"] == 1


def test_info_prints_tables_and_writes_its_result(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "info", path, "--out", tmp_path / "info.json")
    assert code == 0
    assert "TTFT" in out
    assert "\x1b" not in out
    assert json.loads((tmp_path / "info.json").read_text())["metrics"]["steps"] == 3


@pytest.mark.parametrize(("kind", "name"), [("csv", "tables"), ("chrome", "trace.json")])
def test_export_writes_what_it_says(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    code, _, err = run(capsys, "export", path, "--format", kind, "-o", tmp_path / name)
    assert code == 0
    assert (tmp_path / name).exists()
    assert err == f"wrote {tmp_path / name}\n"


def test_check_exits_with_0_where_all_laws_hold(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", path)
    assert code == 0
    assert "all laws hold" in out


def test_check_exits_with_1_and_names_the_law_and_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bent = bend(tmp_path / "bent.trace", schema.STEPS, 1, running=3).path
    code, out, _ = run(capsys, "check", bent)
    assert code == 1
    assert "running <= slots" in out
    assert "step 1" in out
    code, out, _ = run(capsys, "check", bent, "--json")
    assert code == 1
    assert json.loads(out)["counts"] == {"running <= slots": 1}


@pytest.mark.parametrize("command", [["info"], ["check"], ["export", "--format", "csv", "-o", "tables"]])
def test_unreadable_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(np.arange(100).tobytes())
    for bad in ("absent", "empty", "file"):
        code, out, err = run(capsys, command[0], bad, *command[1:])
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {bad}: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(
    ("slo", "sentence"), [("ttft_s", "'ttft_s' is no limit"), ("ttfs_s=1", "unknown limit 'ttfs_s'")]
)
def test_bad_limits_are_one_line(path: Path, capsys: pytest.CaptureFixture[str], slo: str, sentence: str) -> None:
    code, _, err = run(capsys, "info", path, "--slo", slo)
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("command", [
    ["info", "--out"], ["check", "--out"], ["export", "--format", "chrome", "-o"], ["export", "--format", "csv", "-o"],
])  # fmt: skip
@pytest.mark.parametrize("name", ["meta.json", "new"])
def test_nothing_is_written_into_the_trace_that_is_read(
    path: Path, capsys: pytest.CaptureFixture[str], command: list[str], name: str
) -> None:
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    code, out, err = run(capsys, command[0], path, *command[1:], path / name)
    assert (code, out) == (2, "")
    assert f"--out {path / name} lies inside {path}, which this command reads" in err
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_export_takes_the_common_options(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(f"format: chrome\nout: {tmp_path / 'e.json'}\n")
    code, out, _ = run(capsys, "export", path, "--json", "--seed", 3, "--config", tmp_path / "run.yaml")
    assert code == 0
    assert json.loads(out) == {"path": str(path), "format": "chrome", "written": str(tmp_path / "e.json")}


def test_the_cost_model_is_one_line_of_name_and_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = json.loads((path / "meta.json").read_text())
    model = {"name": "roofline", "options": {"kv_dtype": "bf16", "host_step_s": 0.0}, "hardware": {"name": "a100"}}
    (path / "meta.json").write_text(json.dumps({**meta, "cost_model": model, "workload": {"name": "w", "requests": 2}}))
    _, out, _ = run(capsys, "info", path)
    facts = [line.split(maxsplit=2) for line in out.splitlines()]
    assert ["cost", "model", "roofline (kv_dtype=bf16, host_step_s=0.0)"] in [[*map(str.strip, line)] for line in facts]
    assert "w (requests=2)" in out
    assert "{" not in out


def test_check_refuses_a_column_of_another_type(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    broken = tmp_path / "types.trace"
    shutil.copytree(path, broken)
    steps = pd.read_parquet(broken / "steps.parquet")
    steps["waiting"] = "many"
    steps.to_parquet(broken / "steps.parquet")
    code, _, err = run(capsys, "check", broken)
    assert code == 2
    assert "waiting has values that are no int32" in err
