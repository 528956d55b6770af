"""Naive against continuous batching on the real engine, measured and predicted: by output lengths' variance, by slots.

    python benchmarks/naive_and_continuous.py [--rounds 3] [--out FOLDER]

Prints JSON. The same 48 requests, all there at the start, are answered by static batches in a padded rectangle (naive)
and by chunked prefill in a flat row (continuous): with outputs of equal mean and rising variance at 8 slots, then with
one variance at 2 to 32 slots. Each run is predicted as in `fidelity.py`, which says how; with `--out` the cost file in
that folder is used. `docs/make_measured.py` draws the picture.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fidelity import rounds
from fidelity_calibrated import calibrated
from fidelity_cases import calibration
from fidelity_runs import Case, Machine, median, probe

from traces.lengths import LogNormal
from traces.workload import Workload

REQUESTS, PROMPT, MEAN, LONGEST = 48, 48, 40, 320
VARIATIONS = (0.0, 0.25, 0.5, 1.0, 1.5)
"""Coefficient of variation of the outputs' lengths, before they are cut to `LONGEST`."""
SLOTS = (2, 4, 8, 16, 32)
AT_SLOTS, AT_VARIATION = 8, 1.0
WAYS = {
    "naive": {"policy": "static", "layout": "padded", "batch_timeout_s": 0.0},
    "continuous": {"policy": "chunked", "layout": "ragged"},
}


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of a cost file and runs that are there already")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        machine = Machine(threads=arguments.threads)
        meter = stack.enter_context(probe(machine))
        cost, base_s = calibrated(folder, machine, meter, calibration())
        log = folder / "naive_and_continuous.jsonl"
        rows = list(rounds(cases(), machine, meter, cost, base_s, arguments.rounds, log))
    print(json.dumps(report(rows), indent=2))


def cases() -> list[Case]:
    """All points of both rows, each once."""
    made = {}
    for variation, slots in [*((v, AT_SLOTS) for v in VARIATIONS), *((AT_VARIATION, s) for s in SLOTS)]:
        for way, settings in WAYS.items():
            name = point(way, variation, slots)
            made[name] = Case(name, name, requests(variation), settings={
                **settings, "max_num_seqs": slots, "max_num_batched_tokens": 1024,
            })  # fmt: skip
    return list(made.values())


def point(way: str, variation: float, slots: int) -> str:
    return f"{way}, outputs vary by {variation:g}, {slots} slots"


def requests(variation: float) -> Workload:
    """Equal prompts; outputs are the quantiles of a log-normal in a fixed random order, so no draw is lucky."""
    sigma = math.sqrt(math.log(1 + variation**2))  # of a log-normal with that coefficient of variation
    ranks = np.random.Generator(np.random.PCG64(7)).permutation(REQUESTS)
    outputs = LogNormal(MEAN, sigma, 1, LONGEST).at((ranks + 0.5) / REQUESTS)
    return Workload(np.zeros(REQUESTS), np.full(REQUESTS, PROMPT, dtype=np.int64), outputs)


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Both rows of points."""
    return {
        "requests": REQUESTS, "prompt_tokens": PROMPT,
        "by_variation": [both(rows, variation, AT_SLOTS) for variation in VARIATIONS],
        "by_slots": [both(rows, AT_VARIATION, slots) for slots in SLOTS],
    }  # fmt: skip


def both(rows: list[dict[str, Any]], variation: float, slots: int) -> dict[str, Any]:
    """A point: what it was, and each way's figures."""
    outputs = requests(variation).output_tokens
    return {
        "slots": slots, "mean_output": float(outputs.mean()), "variation": float(outputs.std() / outputs.mean()),
        **{way: of(row for row in rows if row["case"] == point(way, variation, slots)) for way in WAYS},
    }  # fmt: skip


def of(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Output tokens a second and share of padded rows, measured (with the least and most) and predicted.

    For a machine as fast as during calibration: the probe's factor is taken out of both sides.
    """
    rows = list(rows)
    speeds = {
        side: [row[side]["output_tokens_per_s"] * row["slowdown"] for row in rows] for side in ("measured", "predicted")
    }
    return {
        **{f"{side}_tokens_per_s": median(found) for side, found in speeds.items()},
        "measured_least": min(speeds["measured"]), "measured_most": max(speeds["measured"]),
        **{f"{side}_padding": median([row[side]["padding_fraction"] for row in rows]) for side in speeds},
        "runs": len(rows),
    }  # fmt: skip


if __name__ == "__main__":
    main()
