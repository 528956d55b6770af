"""Kernels compile for every target without spills, in a process of its own: here they are interpreted."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from backend.kernels.tiles import INTERPRETED
from tests.conftest import ROOT

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


def built(*options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of benchmarks/kernel_builds.py."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/kernel_builds.py", *options]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_compile_for_a_gpu_that_is_not_there(target: str) -> None:
    code, report = built("--quick", "--target", target, "--kernel", "kv_write", "--kernel", "mlp")
    assert code == 0, report["misfits"]
    assert {figure["kernel"] for figure in report["figures"]} == {"write_kv_kernel", "silu_and_mul_kernel"}
    assert all(figure["registers"] > 0 and figure["spills"] == 0 for figure in report["figures"])


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_as_shipped_compiles_without_spills(target: str) -> None:
    code, report = built("--target", target)
    assert code == 0, report["misfits"]
    assert len({figure["kernel"] for figure in report["figures"]}) == 13
    assert {figure["dtype"] for figure in report["figures"]} == {"bf16", "fp16", "fp32"}


@pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here")
def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kernel_builds.py", "--quick"])
    with pytest.raises(SystemExit, match="the interpreter compiles nothing"):
        importlib.import_module("benchmarks.kernel_builds").main()


def test_a_build_that_spills_or_wants_too_much_shared_memory_does_not_fit() -> None:
    builds = importlib.import_module("benchmarks.kernel_builds")
    facts = {"kernel": "k", "target": "sm_80", "shape": "s", "dtype": "bf16", "variant": "", "warps": 4}
    assert builds.Build(**facts, registers=255, spills=0, shared=163 * 1024).fits
    assert not builds.Build(**facts, registers=255, spills=4, shared=0).fits
    assert not builds.Build(**facts, registers=32, spills=0, shared=164 * 1024).fits
