"""A killed engine loses at most the last step of its trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from traces.check import check
from traces.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from backend import Engine, SamplingParams

def told(event):
    if event.plan is not None:
        print(event.plan.step, flush=True)

engine = Engine("embedded", threads=1, trace=sys.argv[1], async_scheduling=sys.argv[2] == "async")
engine.observe(told)
engine.generate(["Count."] * 8, SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
"""


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_kill_9_in_mid_run_loses_at_most_the_last_step(tmp_path: Path, scheduling: str) -> None:
    folder = tmp_path / "killed.trace"
    arguments = [sys.executable, "-c", RUN, str(folder), scheduling]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 20:
                break
        assert Trace.open(folder).status == "running"
        time.sleep(0.05)  # somewhere in a step
        os.kill(process.pid, signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().split()]
    trace = Trace.open(folder)
    assert trace.status == "killed"
    steps = trace.column("steps", "step")
    assert np.array_equal(steps, np.arange(len(steps)))
    assert len(steps) >= max(said, default=20) + 1  # every step that was told is there
    assert check(trace)[0] == []
    assert len(trace.plan_at(int(steps[-1]))) == 8
