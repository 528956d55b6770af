"""Makes the sample recordings: one workload under every policy on the embedded model, and a simulated twin.

    python traces/samples/make.py

Takes about a minute on two cores. The twin's cost model is a line fitted to the steps of the other ragged recordings,
so what it says of `chunked` is a forecast. Times differ from run to run; the workload does not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from traces.trace import Trace  # noqa: E402 - found by the line above, wherever the script is called from

POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")
FITTED = ("slots", "orca", "prefill-first")
TWIN = "chunked-simulated"
WORKLOAD = "mixed.jsonl"
MODEL = "embedded/config.json"
"""The model sheet, by a path that tells nothing of this machine: it stands in the meta of the twin."""

GENERATE = (
    "--requests", "36", "--arrivals", "poisson:rate=14", "--prompt", "lognormal:mean=100,sigma=0.9,min=8,max=320",
    "--output", "lognormal:mean=40,sigma=0.8,min=4,max=120", "--prefixes", "groups=2,length=64,share=0.5",
)  # fmt: skip
SETTINGS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "384", "--max-model-len", "512", "--num-blocks", "49")
"""Few slots, a budget that splits prompts, and a KV pool that is too small at times: something happens in each run."""


def main() -> None:
    """Record everything beside this file; each recording takes the place of the one before."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / MODEL).parent.mkdir()
        shutil.copy(ROOT / "backend" / MODEL, folder / MODEL)
        batchscope(folder, "workload", "generate", WORKLOAD, *GENERATE)
        for policy in POLICIES:
            record(folder, policy, "run", WORKLOAD, "--realtime", "--device", "cpu", "--policy", policy)
        record(folder, TWIN, "simulate", WORKLOAD, "--plans", "--model", MODEL, "--hardware", "cpu",
               "--cost", fitted_cost(), "--policy", "chunked")  # fmt: skip


def fitted_cost() -> str:
    """A `linear` cost: least squares of device seconds over rows computed, and the mean of host seconds."""
    steps = [Trace.open(HERE / f"{name}.trace").columns("steps", ["computed_tokens", "device_s", "host_s"])
             for name in FITTED]  # fmt: skip
    rows, device_s, host_s = (np.concatenate([s[name] for s in steps]) for name in steps[0])
    token_s, step_s = np.polyfit(rows, device_s, 1)
    return f"linear:step_s={step_s:.3g},token_s={token_s:.3g},host_s={host_s.mean():.3g}"


def record(folder: Path, name: str, *command: str) -> None:
    """Run a command that records a trace and put that here, checked."""
    trace, target = f"{name}.trace", HERE / f"{name}.trace"
    batchscope(folder, *command, *SETTINGS, "--trace", trace)
    batchscope(folder, "trace", "check", trace)
    if target.exists():
        shutil.rmtree(target)
    shutil.move(folder / trace, target)


def batchscope(folder: Path, *arguments: str) -> None:
    """Run the command line in a folder; a failure ends the script with its sentence."""
    done = subprocess.run([sys.executable, str(ROOT / "batchscope.py"), *arguments], cwd=folder, check=False)
    if done.returncode:
        sys.exit(f"batchscope {' '.join(arguments)} ended with {done.returncode}")


if __name__ == "__main__":
    main()
