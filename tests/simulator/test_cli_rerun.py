"""`batchscope rerun`: exit code and words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchscope import main
from simulator import simulate
from traces.presets import resolve_workload
from traces.store import WORKLOAD
from traces.write_workload import write_workload


def recorded(folder: Path, *, requests: int = 30, plans: bool = True) -> Path:
    path = folder / "a.trace"
    workload = resolve_workload("default", requests=requests)
    simulate(workload, out=path, plans=plans, max_num_seqs=4)
    return path


def test_a_run_simulated_again_makes_the_same_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path)
    write_workload(resolve_workload("default", requests=30), path / WORKLOAD)
    with pytest.raises(SystemExit) as ended:
        main(["rerun", str(path), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert said["same"] == said["steps"] > 100
    assert said["difference"] is None


def test_another_workload_differs_and_both_plans_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path)
    write_workload(resolve_workload("default", requests=30, seed=1), tmp_path / "other.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["rerun", str(path), "--workload", str(tmp_path / "other.jsonl")])
    said = capsys.readouterr().out
    assert ended.value.code == 1
    assert "step 0 differs in" in said
    assert "first : " in said
    assert "second: " in said


@pytest.mark.parametrize(("plans", "said"), [(True, "holds no workload.jsonl"), (False, "was recorded without plans")])
def test_what_it_needs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], plans: bool, said: str) -> None:
    path = recorded(tmp_path, plans=plans)
    with pytest.raises(SystemExit) as ended:
        main(["rerun", str(path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
