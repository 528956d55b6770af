"""Runs as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from .compare import Comparison

NONE = "-"


def comparison_tables(comparison: Comparison, console: Console) -> None:
    """Print a comparison: the runs, then what layout and policy each contribute."""
    result = comparison.result
    settings, load = result["settings"], result["workload"]
    console.print(
        f"{load['requests']} requests of {load['name']} on {settings['model']}, {settings['hardware']} "
        f"({result['num_blocks']} KV blocks); simulated with cost model {settings['cost']}"
    )
    run_table(result["runs"], console)
    if result["effects"]:
        effect_table(result["effects"], console)


def run_table(runs: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one line a run."""
    table = Table(title="runs (latencies: mean / p99 seconds)", title_justify="left")
    columns = ("policy", "layout", "TTFT", "TPOT", "E2E", "queue", "out tok/s", "makespan", "slots", "padding", "pad s")
    for name in columns:
        table.add_column(name, justify="left" if name in ("policy", "layout") else "right")
    table.add_column("notes")
    for run in runs:
        spreads = [_spread(run[name]) for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s")]
        table.add_row(
            run["policy"], run["layout"], *spreads, f"{run['output_tokens_per_s']:,.0f}", f"{run['makespan_s']:,.1f} s",
            f"{run['slot_occupancy']:.1%}", f"{run['padding_fraction']:.1%}", f"{run['padding_s']:,.1f}", _notes(run),
        )  # fmt: skip
    console.print(table)


def effect_table(effects: Sequence[dict[str, Any]], console: Console) -> None:
    """Print what each run changes against the first, as factors: total = layout x policy."""
    table = Table(title=f"against {effects[0]['from']}: total = layout x policy", title_justify="left")
    table.add_column("run")
    for name in ("output tokens/s", "mean E2E", "mean TTFT", "computed tokens"):
        table.add_column(name, justify="right")
    for effect in effects:
        cells = [_factors(effect[n]) for n in ("output_tokens_per_s", "e2e_mean_s", "ttft_mean_s", "computed_tokens")]
        table.add_row(effect["to"], *cells)
    console.print(table)


def _spread(spread: dict[str, float] | None) -> str:
    return NONE if spread is None else f"{seconds(spread['mean'])} / {seconds(spread['p99'])}"


def seconds(value: float) -> str:
    """Seconds with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _notes(run: dict[str, Any]) -> str:
    notes = []
    if run["saturated"]:
        notes.append("saturated")
    if run["preemptions"]:
        notes.append(f"{run['preemptions']:,} preemptions")
    if run["finished"] < run["requests"]:
        notes.append(f"{run['requests'] - run['finished']:,} not served")
    if run["extrapolated"]:
        notes.append(f"{run['extrapolated']['steps']:,} steps extrapolated")
    return ", ".join(notes)


def _factors(parts: dict[str, float | None]) -> str:
    total, layout, policy = parts["total"], parts["layout"], parts["policy"]
    if total is None or layout is None or policy is None:
        return NONE
    return f"x{total:.3g} = {layout:.3g} x {policy:.3g}"
