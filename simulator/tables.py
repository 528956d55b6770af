"""Runs as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from traces.run_table import NONE, mean_and_p99, notes, print_doubts, run_table, seconds
from traces.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from .compare import Comparison


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
        console.print()
        effect_table(result["effects"], console)


def effect_table(effects: Sequence[dict[str, Any]], console: Console) -> None:
    """Print what each run changes against the first, as factors: total = layout x policy."""
    table = Table(title=f"against {effects[0]['from']}: total = layout x policy")
    table.add_column("run")
    for name in ("output tokens/s", "mean E2E", "mean TTFT", "computed tokens"):
        table.add_column(name, justify="right")
    for effect in effects:
        cells = [_factors(effect[n]) for n in ("output_tokens_per_s", "e2e_mean_s", "ttft_mean_s", "computed_tokens")]
        table.add_row(effect["to"], *cells)
    print_table(console, table)


def sweep_table(result: Mapping[str, Any], console: Console) -> None:
    """Print one line a run of a sweep, those on the Pareto front marked."""
    axes, latency = list(result["grid"]), result["latency"]
    metric, _, figure = latency.partition("_")
    title = f"runs (* on the front of output tokens/s against {latency}; latencies: mean / p99 seconds)"
    table = Table(title=title)
    table.add_column("")
    for name in (*axes, "out tok/s", latency, "TTFT", "TPOT", "E2E", "occupancy", "padding"):
        table.add_column(name, justify="right")
    table.add_column("notes")
    for row in result["runs"]:
        point = [NONE if row["point"][name] is None else _value(row["point"][name]) for name in axes]
        if row["error"] is not None:
            table.add_row("", *point, *[NONE] * 7, row["error"])
            continue
        spread = row[f"{metric}_s"]
        table.add_row(
            "*" if row["pareto"] else "", *point, f"{row['output_tokens_per_s']:,.0f}",
            NONE if spread is None else seconds(spread[figure]),
            *(mean_and_p99(row[name]) for name in ("ttft_s", "tpot_s", "e2e_s")),
            f"{row['slot_occupancy']:.1%}", f"{row['padding_fraction']:.1%}", notes(row),
        )  # fmt: skip
    print_table(console, table, keys=1 + len(axes))
    print_doubts([row for row in result["runs"] if row["error"] is None], console)
    ran = len(result["runs"]) - result["reused"]
    console.print(f"{len(result['runs'])} runs: {ran} new, {result['reused']} known before, {result['errors']} failed")


def capacity_tables(result: Mapping[str, Any], console: Console) -> None:
    """Print a capacity's answer, then its trials by rate and replicas."""
    console.print(result["sentence"], soft_wrap=True)
    cost = result["cost_per_million_output_tokens"]
    if cost is not None:
        console.print(
            f"GPUs: {result['gpus']}, at {result['price_per_gpu_hour']:g} an hour: "
            f"{cost['mean']:.3g} per million output tokens ({cost['min']:.3g} to {cost['max']:.3g} over the seeds)"
        )
    for seed in result.get("by_seed", ()):
        console.print(f"seed {seed['seed']}: passes at {_rate(seed['passes_at'])}, fails at {_rate(seed['fails_at'])}")
    for note in result["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    table = Table(title="trials (each figure: least - most over the seeds, seconds)")
    for name in ("requests/s", "replicas", "met", *(f"{n} <= {limit:g}" for n, limit in result["slo"].items())):
        table.add_column(name, justify="right")
    table.add_column("missed")
    for trial in sorted(result["trials"], key=lambda trial: (trial["rate_per_s"], trial["replicas"])):
        ranges = [_range(trial[name]) for name in result["slo"]]
        met = f"{trial['seeds_met']} of {len(result['seeds'])}"
        table.add_row(f"{trial['rate_per_s']:.4g}", str(trial["replicas"]), met, *ranges, ", ".join(trial["misses"]))
    print_table(console, table, keys=2)
    print_doubts(result["runs"], console)


def explanation_tables(result: Mapping[str, Any], console: Console) -> None:
    """Print the paragraph, then the figures before and after each knob that was simulated."""
    console.print(result["text"], soft_wrap=True)
    print_doubts([result["evidence"]["record"]], console)
    if not result["tried"]:
        return
    table = Table(title="knobs that were simulated")
    table.add_column("knob")
    for name in result["before"]:
        table.add_column(name, justify="right")
    table.add_row("as it is", *(_figure(value) for value in result["before"].values()))
    for knob in result["tried"]:
        label = f"{knob['name']} {_value(knob['before'])} -> {_value(knob['after'])}"
        if "error" in knob:
            console.print(f"{label} was not possible: {knob['error']}", soft_wrap=True)
        else:
            table.add_row(label, *(_figure(value) for value in knob["after_figures"].values()))
    print_table(console, table)


def _figure(value: float | None) -> str:
    return NONE if value is None else seconds(value)


def _rate(rate: float | None) -> str:
    return "no rate tried" if rate is None else f"{rate:.4g}/s"


def _range(spread: dict[str, float] | None) -> str:
    return NONE if spread is None else f"{seconds(spread['min'])} - {seconds(spread['max'])}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _factors(parts: dict[str, float | None]) -> str:
    total, layout, policy = parts["total"], parts["layout"], parts["policy"]
    if total is None or layout is None or policy is None:
        return NONE
    return f"x{total:.3g} = {layout:.3g} x {policy:.3g}"
