"""The GPU benchmark runs to its end on a CPU, with the few packages that a GPU machine needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.py"
ABSENT = (
    "batchscope", "click", "dash", "dashboard", "fastapi", "openai", "plotly", "prometheus_client", "ray", "rich",
    "simpy", "simulator", "starlette", "uvicorn",
)  # fmt: skip
BLOCKER = f"""
import sys
from importlib.machinery import ModuleSpec

class Absent:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.split(".")[0] in {ABSENT!r} else None

    def create_module(self, spec):
        raise ModuleNotFoundError(f"No module named {{spec.name!r}} (by decree)", name=spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Absent())
"""
"""Found by who only looks whether a package is there (transformers), absent to who imports it."""


def run(tmp_path: Path, *arguments: str, also: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, report and progress of a run in which the project's other packages cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER + also)
    out = tmp_path / "report.json"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), *arguments], capture_output=True, text=True, env=env,
        cwd=tmp_path, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(out.read_text()) if out.exists() else {}, done.stderr


def complete(report: dict[str, Any]) -> None:
    """Every part has run, and says that it measured nothing."""
    assert report["what"] == "dry run: not a measurement"
    for name, part in report["parts"].items():
        assert part["status"] == "ran", (name, part.get("error"))
        assert part["what"] == "dry run: not a measurement"
        assert part["skipped"] == 0
        assert part["figures"], name


def test_a_decode_step_runs_without_the_packages_a_gpu_machine_lacks(tmp_path: Path) -> None:
    code, report, progress = run(tmp_path, "--dry-run", "--only", "decode_step")
    assert code == 0, progress
    complete(report)


@pytest.mark.long
def test_every_part_runs(tmp_path: Path) -> None:
    code, report, progress = run(tmp_path, "--dry-run")
    assert code == 0, progress
    complete(report)
    assert list(report["parts"]) == [
        "kernels", "attention", "decode_step", "engines", "naive_and_continuous", "seed",
    ]  # fmt: skip
    kernels = report["parts"]["kernels"]["figures"]
    assert all(row["passed"] for name in ("integers", "float32", "float16", "bfloat16") for row in kernels[name])


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    code, report, progress = run(tmp_path, "--only", "decode_step")
    assert code == 2
    assert not report
    assert "finds no GPU here; --dry-run" in progress


def test_a_part_that_fails_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    code, report, progress = run(
        tmp_path, "--dry-run", "--only", "decode_step,kernels", also="sys.modules['gpu_decode_step'] = None\n"
    )
    assert code == 1
    assert report["parts"]["decode_step"]["status"] == "failed"
    assert "gpu_decode_step" in report["parts"]["decode_step"]["error"]
    assert report["parts"]["kernels"]["status"] == "ran"
    assert "failed: decode_step" in progress
