"""How fast whole simulations are, trace recording on. JSON.

    python benchmarks/simulate.py azure FILE        the Azure 2023 conversation file, in steps a second
    python benchmarks/simulate.py scale             time and memory from 125,000 to 1,000,000 requests

`azure` repeats the run and gives the best and the median; Vidur's figure beside it is for the same requests (chunk 512,
batch cap 128) on a 2-core machine without a GPU. `scale` runs each size in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simulator.run import make_load, run
from simulator.setup import Setup
from traces.presets import resolve_workload
from traces.workload import Workload

SETTINGS = {
    "policy": "chunked",
    "model": "llama-3-8b",
    "hardware": "a100-80gb",
    "cost": "roofline",
    "max_num_seqs": 128,
    "max_num_batched_tokens": 512,
    "max_model_len": 16384,
}
VIDUR_STEPS_PER_S = 3000
SIZES = (125_000, 250_000, 500_000, 1_000_000)


def simulate_once(workload: Workload) -> tuple[int, float]:
    """Steps, and seconds from the made-ready system to the closed trace."""
    system = Setup.of(SETTINGS).build()
    start = time.perf_counter()
    trace = run(system, workload, make_load(workload))
    return len(trace.column("steps", "step")), time.perf_counter() - start


def azure(path: str, runs: int) -> dict[str, Any]:
    """Steps a second on a whole file."""
    workload = resolve_workload(path)
    timed = [simulate_once(workload) for _ in range(runs)]
    steps, seconds = timed[0][0], [spent for _, spent in timed]
    return {
        "benchmark": "simulate azure",
        "requests": len(workload),
        "steps": steps,
        "runs": runs,
        "best_steps_per_s": round(steps / min(seconds)),
        "median_steps_per_s": round(steps / statistics.median(seconds)),
        "vidur_steps_per_s": VIDUR_STEPS_PER_S,
    }


def one_size(requests: int) -> dict[str, Any]:
    """Seconds and peak memory of a run of so many requests, in this process."""
    workload = resolve_workload("azure-conv", requests=requests, rate=4.0)
    steps, seconds = simulate_once(workload)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "requests": requests,
        "steps": steps,
        "seconds": round(seconds, 2),
        "us_per_step": round(seconds / steps * 1e6, 2),
        "peak_bytes": peak,
    }


def scale() -> dict[str, Any]:
    """Every size in a fresh process."""
    rows = []
    for size in SIZES:
        command = [sys.executable, __file__, "one-size", str(size)]
        rows.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    return {"benchmark": "simulate scale", "figures": rows}


def main() -> None:
    """Run one benchmark and print its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("azure")
    one.add_argument("file")
    one.add_argument("--runs", type=int, default=5)
    commands.add_parser("scale")
    commands.add_parser("one-size").add_argument("requests", type=int)
    options = parser.parse_args()
    if options.command == "azure":
        result = azure(options.file, options.runs)
    else:
        result = scale() if options.command == "scale" else one_size(options.requests)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
