"""What each term of the profile cost model does to the errors on a recorded run; prints a table.

python benchmarks/profile_terms.py REFERENCE_DIR

Terms: *requests*: several prefills in a step, with their own tiles and blocks, in place of one of their size; *tiles*:
a decode's keys counted in whole tiles; *decodes*: decodes of unequal contexts wait for the longest; *last block*: the
same in steps with prefills.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulator.costs.attention_table import AttentionTable
from simulator.costs.profile import ProfileCost
from simulator.reference import MeasuredRun, read_reference
from simulator.run import make_load, run
from simulator.setup import Setup, System
from simulator.validate import compare_runs, system_of

TERMS = ("requests", "tiles", "decodes", "last block")
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "scheduled_to_first_s")


def main() -> None:
    """Print one line a set of terms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    measured = read_reference(parser.parse_args().reference)
    print("terms | " + " | ".join(f"{name} mean, worst" for name in LATENCIES) + " | makespan")
    for label, change in variants().items():
        result = errors(measured, change)
        cells = [worst_and_mean(result["latency"][name]) for name in LATENCIES]
        print(f"{label} | " + " | ".join(cells) + f" | {result['run']['makespan_s']['error']:+.2%}", flush=True)


def variants() -> dict[str, Callable[[ProfileCost], None]]:
    """Label -> what to change in the cost model."""
    sets = {"none (the plain reading)": ()} | {
        "+ ".join(TERMS[: count + 1]): TERMS[: count + 1] for count in range(len(TERMS))
    }
    changes: dict[str, Callable[[ProfileCost], None]] = {
        label: lambda cost, use=terms: keep(cost, use) for label, terms in sets.items()
    }
    for factor in (0.9, 1.1):
        changes[f"all, a block {factor:g} times as fast"] = lambda cost, by=factor: faster(cost, by)
    for factor in (0.98, 1.02):
        changes[f"all, memory {factor:g} times as fast"] = lambda cost, by=factor: wider(cost, by)
    return changes


def keep(cost: ProfileCost, terms: tuple[str, ...]) -> None:
    """Leave out all terms but these."""
    table = cost._attention
    assert table is not None
    if not terms:
        cost._attention = AttentionTable(table.grid, None)
        return
    if "tiles" not in terms:
        table.history = lambda contexts, count, read: read / count - 1  # type: ignore[method-assign]  # the experiment
    if "decodes" not in terms:
        table._uneven_rate = lambda *_: 0.0  # type: ignore[method-assign]  # the experiment
    if "last block" not in terms:
        table._late_s = lambda *_: 0.0  # type: ignore[method-assign]  # the experiment


def faster(cost: ProfileCost, factor: float) -> None:
    """Let a block run at another rate."""
    assert cost._attention is not None
    cost._attention._one_rate *= factor


def wider(cost: ProfileCost, factor: float) -> None:
    """Let all blocks together read at another rate."""
    assert cost._attention is not None
    cost._attention._all_rate *= factor


def errors(measured: MeasuredRun, change: Callable[[ProfileCost], None]) -> dict[str, Any]:
    """The comparison with a changed cost model."""
    system = system_of(measured)
    cost = system.cost_model
    assert isinstance(cost, ProfileCost)
    change(cost)
    meta = {"seed": 0, "load": {"concurrency": None, "think_s": 0.0}}
    setup = Setup(model=measured.model, hardware=str(measured.hardware), cost="profile", scheduler=measured.settings)
    trace = run(System(system.config, cost, None, setup), measured.workload, make_load(measured.workload), meta=meta)
    return compare_runs(measured, trace)


def worst_and_mean(entries: dict[str, dict[str, float]]) -> str:
    """The error of the mean, and the largest of all figures."""
    every = np.array([entry["error"] for entry in entries.values()])
    return f"{entries['mean']['error']:+.2%}, {every[np.abs(every).argmax()]:+.2%}"


if __name__ == "__main__":
    main()
