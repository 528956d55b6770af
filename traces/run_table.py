"""Runs as a table for people: one line a run, simulated or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from .tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

NONE = "-"


def run_table(runs: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one line a run."""
    table = Table(title="runs (latencies: mean / p99 seconds)")
    columns = (
        "policy",
        "layout",
        "TTFT",
        "TPOT",
        "E2E",
        "queue",
        "out tok/s",
        "makespan",
        "occupancy",
        "padding",
        "pad s",
    )
    for name in columns:
        table.add_column(name, justify="left" if name in ("policy", "layout") else "right")
    table.add_column("notes")
    for run in runs:
        spreads = [mean_and_p99(run[name]) for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s")]
        table.add_row(
            run["policy"], run["layout"], *spreads, f"{run['output_tokens_per_s']:,.0f}", f"{run['makespan_s']:,.1f} s",
            f"{run['slot_occupancy']:.1%}", f"{run['padding_fraction']:.1%}", f"{run['padding_s']:,.1f}", notes(run),
        )  # fmt: skip
    print_table(console, table, keys=2)
    for run in runs:
        if run["extrapolated"]:
            _print_line(f"{run['policy']}, {run['layout']}: {_beyond(run['extrapolated'])}", console)
    _print_caveats(runs, console)


def print_doubts(runs: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what is uncertain about the prices of several runs, each thing once.

    Args:
        runs: with ``extrapolated`` and ``caveat``, as records have them; measured ones have neither.
        console: where to.
    """
    reasons: dict[str, list[int]] = {}
    for found in (run["extrapolated"] for run in runs if isinstance(run.get("extrapolated"), Mapping)):
        reasons.setdefault(found["reason"], []).append(found["steps"])
    for reason, steps in reasons.items():
        where = "" if len(runs) == 1 else f" in {count(len(steps), 'run')}"
        _print_line(f"{_beyond({'steps': sum(steps), 'reason': reason}, where)}", console)
    _print_caveats(runs, console)


def _print_caveats(runs: Sequence[Mapping[str, Any]], console: Console) -> None:
    for caveat in dict.fromkeys(run["caveat"] for run in runs if run.get("caveat")):
        _print_line(f"all prices: {caveat}", console)


def _beyond(found: Mapping[str, Any], where: str = "") -> str:
    return f"{count(found['steps'], 'step')} extrapolated{where}: {found['reason']}"


def _print_line(text: str, console: Console) -> None:
    console.print(text, soft_wrap=True, markup=False)


def mean_and_p99(spread: dict[str, float] | None) -> str:
    """A latency's cell."""
    return NONE if spread is None else f"{seconds(spread['mean'])} / {seconds(spread['p99'])}"


def seconds(value: float) -> str:
    """Seconds with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def notes(run: dict[str, Any]) -> str:
    """What a reader of a run's figures must know besides."""
    notes = []
    if run["saturated"]:
        notes.append("saturated")
    if run["preemptions"]:
        notes.append(count(run["preemptions"], "preemption"))
    if run["finished"] < run["requests"]:
        notes.append(f"{run['requests'] - run['finished']:,} not served")
    if run["extrapolated"]:
        notes.append(count(run["extrapolated"]["steps"], "step") + " extrapolated")
    return ", ".join(notes)


def count(number: int, unit: str) -> str:
    """A number with its unit, one or many."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
