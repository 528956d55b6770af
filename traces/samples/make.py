"""Makes the sample recordings: one workload under every policy on the embedded model, and a simulated twin.

    python traces/samples/make.py

Takes about a minute on two cores. The twin's cost model is fitted (`batchscope calibrate`) to the steps of the other
ragged recordings, so what it says of `chunked` is a forecast. Times differ from run to run; the workload does not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

POLICIES = ("static", "slots", "orca", "prefill-first", "chunked")
FITTED = ("slots", "orca", "prefill-first")
TWIN = "chunked-simulated"
WORKLOAD = "mixed.jsonl"
COST = "cost.json"
"""The fitted cost, by a path that tells nothing of this machine: it stands in the meta of the twin, with the cost."""

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
        batchscope(folder, "workload", "generate", WORKLOAD, *GENERATE)
        for policy in POLICIES:
            record(folder, policy, "run", WORKLOAD, "--realtime", "--device", "cpu", "--policy", policy)
        batchscope(folder, "calibrate", *(str(HERE / f"{name}.trace") for name in FITTED), "-o", COST)
        record(folder, TWIN, "simulate", WORKLOAD, "--plans", "--cost", f"fitted:path={COST}", "--policy", "chunked")


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
