"""How well the roofline meets measured operator times that its efficiencies were not fitted to; prints JSON.

    python benchmarks/calibration.py                    errors of the hardware sheets as they are
    python benchmarks/calibration.py --table            the same, less of it, as a Markdown table
    python benchmarks/calibration.py --fit rtx-4090     search the efficiencies anew from those of the sheet
    python benchmarks/calibration.py --swap             fit to the points held out, and score the others

The sheets are fitted to every second count of the tables (`roofline_tables.py`), so `held_out`, the score on the rest,
is that of what ships. `other_card` is the score with the other card's efficiencies, `generic` with those that cards
without measurements have: both on all points, since neither saw any of this card.

The tables are read from the folder in the environment variable BATCHSCOPE_DATA (default ../shared/data).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.roofline_fit import fit, published
from benchmarks.roofline_tables import MODEL_4090, OPERATORS, VLLM, Groups, Point, a100_groups, cost_of, rtx_4090_groups
from scheduler.plan import StepShape
from simulator.hardware import GENERIC_EFFICIENCY, HardwareSheet, get_hardware

CARDS: dict[str, Callable[[Path, HardwareSheet], Groups]] = {
    "a100-80gb": a100_groups,
    "rtx-4090": rtx_4090_groups,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--table", action="store_true")
    mode.add_argument("--swap", action="store_true")
    mode.add_argument("--fit", choices=tuple(CARDS))
    args = parser.parse_args()
    data = Path(os.environ.get("BATCHSCOPE_DATA", ROOT.parent / "shared" / "data"))
    if args.table:
        print(table(report(data)))
    elif args.fit:
        print(json.dumps(fit(args.fit, data).as_dict()["efficiency"], indent=2))
    else:
        print(json.dumps(swapped(data) if args.swap else report(data), indent=2))


def report(data: Path) -> dict[str, Any]:
    """Errors of every group of measurements, ``predicted / measured - 1``."""
    groups = groups_of(data)
    return {
        "held_out": {name: summary(p for p in points if p.held) for name, points in groups.items()},
        "fitted": {name: summary(p for p in points if not p.held) for name, points in groups.items()},
        "other_card": scores(data, {card: get_hardware(_other(card)) for card in CARDS}),
        "generic": scores(data, {card: replace(get_hardware(card), efficiency=GENERIC_EFFICIENCY) for card in CARDS}),
        "published A100": {**summary(points := published(get_hardware("a100-80gb"))), "errors": errors(points)},
        "RTX 4090 served decodes": summary(served(data, get_hardware("rtx-4090"))),
    }


def table(told: Mapping[str, Any]) -> str:
    """The scores that say most, as Markdown."""
    lines = [
        "| measured | held out | median | p95 | worst | other card's: median, worst | generic: median, worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, held in told["held_out"].items():
        if held["points"] and not any(f" {operator}" in name for operator in OPERATORS):
            beside = [told[which][name] for which in ("other_card", "generic")]
            lines.append(
                f"| {name} | {held['points']:,} | {held['median']:.1%} | {held['p95']:.1%} | {held['worst']:.1%} "
                f"({held['worst_at']}) | "
                + " | ".join(f"{score['median']:.1%}, {score['worst']:.1%}" for score in beside)
                + " |"
            )
    return "\n".join(lines)


def groups_of(data: Path, sheets: Mapping[str, HardwareSheet] | None = None) -> Groups:
    """All groups, by the sheets as they are or by others."""
    sheets = sheets or {card: get_hardware(card) for card in CARDS}
    return {name: points for card, groups in CARDS.items() for name, points in groups(data, sheets[card]).items()}


def scores(data: Path, efficiencies_of: Mapping[str, HardwareSheet]) -> dict[str, Any]:
    """Scores on all points of each card, with its own peaks and another sheet's efficiencies."""
    sheets = {card: replace(get_hardware(card), efficiency=sheet.efficiency) for card, sheet in efficiencies_of.items()}
    return {name: summary(points) for name, points in groups_of(data, sheets).items()}


def swapped(data: Path) -> dict[str, Any]:
    """Fitted to the points that are held out of the sheets, scored on those that the sheets are fitted to."""
    sheets = {card: fit(card, data, held=True) for card in CARDS}
    groups = groups_of(data, sheets)
    return {
        "efficiency": {card: sheet.as_dict()["efficiency"] for card, sheet in sheets.items()},
        "scored": {name: summary(p for p in points if not p.held) for name, points in groups.items()},
    }


def errors(points: Iterable[Point]) -> dict[str, float]:
    return {point.what: round(point.predicted_s / point.measured_s - 1, 4) for point in points}


def summary(points: Iterable[Point]) -> dict[str, Any]:
    """How many points, the size of their errors, where it is worst, and the mean error."""
    found = [(point.predicted_s / point.measured_s - 1, point.what) for point in points]
    if not found:
        return {"points": 0}
    size = sorted(abs(error) for error, _ in found)
    worst = max(found, key=lambda each: abs(each[0]))
    return {
        "points": len(found),
        "median": round(statistics.median(size), 4),
        "p95": round(size[int(0.95 * (len(size) - 1))], 4),
        "worst": round(size[-1], 4),
        "worst_at": worst[1],
        "bias": round(statistics.fmean(error for error, _ in found), 4),
    }


def served(data: Path, hardware: HardwareSheet) -> list[Point]:
    """Steps of a vLLM server in seconds without any prefill: requests running / tokens a second, from its own metrics.

    Nothing was fitted to these. The server planned ahead (async scheduling), so the host's time is hidden.
    """
    cost = cost_of(MODEL_4090, hardware)
    meta = json.loads((data / VLLM / "meta.json").read_text(encoding="utf-8"))
    positions = (meta["kv_cache"]["num_gpu_blocks"] - 1) * meta["kv_cache"]["block_size"]
    with (data / VLLM / "timeseries.csv").open(newline="", encoding="utf-8") as file:
        seconds = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    points = []
    for before, now, after in zip(seconds, seconds[1:], seconds[2:], strict=False):
        if any(row["prompt_throughput"] for row in (before, now, after)) or not now["gen_throughput"]:
            continue
        running, read = int(now["running"]), int(now["kv_cache_pct"] / 100 * positions)
        step_s = (before["running"] + now["running"]) / 2 / now["gen_throughput"]
        shape = StepShape("ragged", running, running, running, running, read)
        points.append(Point(f"second {now['t']:g}", step_s, cost.step_cost(shape).device_s, True))
    return points


def _other(card: str) -> str:
    return next(name for name in CARDS if name != card)


if __name__ == "__main__":
    main()
