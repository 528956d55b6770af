"""A few seconds of what benchmarks/server_stress.py does for a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def test_clients_that_misbehave_get_what_was_meant_and_leave_nothing_behind(tiny_model: Path) -> None:
    command = [sys.executable, "benchmarks/server_stress.py", "--seconds", "3", "--clients", "16"]
    done = subprocess.run([*command, "--model", str(tiny_model)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["trace_status"] == "finished"
    assert result["steps"] > 0
    assert done.stderr == "", "the server had something to complain about"
