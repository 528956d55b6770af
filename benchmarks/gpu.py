"""Everything that wants a GPU, measured in one command: kernels, attention, decode steps, engines, padding. JSON.

    python benchmarks/gpu.py [--out FILE.json] [--quick] [--dry-run] [--only kernels,attention]

Under 5 minutes on an H200 or A100, no network; needs torch, triton, transformers, numpy, pandas and pyarrow, and this
checkout (nothing has to be installed). What each part answers, and what was predicted, stands in docs/gpu.md.

Each part runs in a process of its own with a time limit of its own, so that one that fails, hangs or breaks the device
takes nothing with it; the figures are written to FILE.json while they come (without ``--out``: printed at the end).
``--dry-run`` runs every part to its end on the CPU, kernels in Triton's interpreter, shapes tiny: its figures are no
measurement. The exit code is 1 when a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

PARTS = {
    "kernels": 70,
    "attention": 50,
    "decode_step": 35,
    "engines": 65,
    "naive_and_continuous": 35,
    "seed": 30,
}
"""Parts and the seconds each may take, its start included; all together under 5 minutes."""
PATIENCE = 5
"""Seconds beyond its limit after which a part, which looks at the clock itself between figures, is stopped."""
STRETCH = {"full": 1.0, "quick": 0.7, "dry": 4.0}
"""Of those limits; a dry run's: the interpreter is slow, and so may the machine be."""
PACKAGES = ("torch", "triton", "transformers", "numpy", "pandas", "pyarrow")
NO_MEASUREMENT = "dry run: not a measurement"


def main() -> int:
    """Run the parts; returns the exit code."""
    asked = arguments()
    scale = "dry" if asked.dry_run else "quick" if asked.quick else "full"
    if asked.part:
        return run_part(asked.part, scale, asked.out, asked.seconds)
    if not has_gpu() and not asked.dry_run:
        print("error: torch finds no GPU here; --dry-run shows on the CPU that the script works", file=sys.stderr)
        return 2
    report = {"benchmark": "gpu", "what": what(scale), "scale": scale, **machine(), "parts": {}}
    began = time.perf_counter()
    for name in asked.only.split(","):
        report["parts"][name] = supervise(name, scale)
        report["seconds"] = round(time.perf_counter() - began, 1)
        if asked.out:
            write(asked.out, report)
    if not asked.out:
        print(json.dumps(report, indent=1))
    failed = [name for name, part in report["parts"].items() if part["status"] == "failed"]
    print(f"{report['seconds']} s; " + (f"failed: {', '.join(failed)}" if failed else "all parts ran"), file=sys.stderr)
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the figures, written while they come")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and requests: at most 3.5 minutes")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes; on the CPU where there is no GPU")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.only.split(",")) - set(PARTS):
        parser.error(f"--only names {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    return asked


def what(scale: str) -> str:
    return NO_MEASUREMENT if scale == "dry" else "measured"


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def machine() -> dict[str, Any]:
    """What it runs on, and with."""
    import torch

    device: dict[str, Any] = {"name": f"{platform.machine()} CPU, Triton's interpreter"}
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        device = {
            "name": facts.name, "capability": f"{facts.major}.{facts.minor}", "memory_bytes": facts.total_memory,
            "processors": facts.multi_processor_count, "devices": torch.cuda.device_count(),
        }  # fmt: skip
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda, "hip": torch.version.hip}
    return {"device": device, "versions": {**versions, **{name: _version(name) for name in PACKAGES}}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def supervise(name: str, scale: str) -> dict[str, Any]:
    """Run a part in a process of its own; what it has noted counts even where it ends badly."""
    seconds = PARTS[name] * STRETCH[scale]
    print(f"{name}: at most {seconds:g} s", file=sys.stderr, flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--part", name, "--out", str(noted), "--seconds", f"{seconds:g}"]
        command += {"dry": ["--dry-run"], "quick": ["--quick"], "full": []}[scale]
        try:
            code = subprocess.run(command, timeout=seconds + PATIENCE, stdout=sys.stderr).returncode
            ended = f"the part's process ended with code {code}"
        except subprocess.TimeoutExpired:
            code, ended = -1, f"stopped after {seconds + PATIENCE:g} s"
        figures = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else {}
    error = figures.pop("error", None if code == 0 else ended)
    took = round(time.perf_counter() - began, 1)
    print(f"{name}: {error or 'done'}, {took} s", file=sys.stderr, flush=True)
    status = {"status": "failed" if error else "ran", "seconds": took, "what": what(scale)}
    skipped = json.dumps(figures).count('"skipped": ')
    return {**status, "skipped": skipped, **({"error": error} if error else {}), "figures": figures}


def run_part(name: str, scale: str, out: Path, seconds: float) -> int:
    """In the part's own process: run it, noting its figures in `out`."""
    if scale == "dry" and not has_gpu():
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported
    from gpu_bench import Bench

    bench = Bench(scale, seconds, lambda figures: write(out, figures))
    try:
        import_module(f"gpu_{name}").run(bench)
    except Exception as error:
        traceback.print_exc()
        bench.note("error", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        return 1
    return 0


def write(path: Path, contents: dict[str, Any]) -> None:
    """The file as a whole, or as it was."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(json.dumps(contents, indent=1), encoding="utf-8")
    scratch.replace(path)


if __name__ == "__main__":
    sys.exit(main())
