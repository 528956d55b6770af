"""The command `validate`: a recorded run simulated, and every error in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from traces.console import common_options, emit

from .cli import Run

if TYPE_CHECKING:
    from rich.console import Console

LABELS = {
    "ttft_s": "TTFT, s",
    "tpot_s": "TPOT, s",
    "itl_s": "ITL, s",
    "e2e_s": "E2E, s",
    "queue_s": "queue, s",
    "scheduled_to_first_s": "scheduled to first token, s",
    "makespan_s": "makespan, s",
    "output_tokens_per_s": "output tokens/s",
    "requests_per_s": "requests/s",
}
STATES = {"running": "running requests", "waiting": "waiting requests", "kv_percent": "KV blocks used, %"}


@click.command(cls=Run)
@click.argument("reference", type=click.Path())
@click.option("--cost", help="Cost model, options after a colon; default: the tables in the folder.")
@click.option("--model", help="Model sheet, or path of a config.json; default: as recorded.")
@click.option("--hardware", help="Hardware sheet; default: as recorded.")
@click.option("--trace", type=click.Path(), help="Record the simulated run into this folder (NAME.trace).")
@common_options
def validate(
    reference: str, cost: str | None, model: str | None, hardware: str | None, trace: str | None, seed: int,
    out: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate a recorded run and show how far each figure is off.

    REFERENCE is the folder of a served vLLM run (meta.json, requests.jsonl, operator tables), or a measured trace of
    our own engine. Nothing is drawn at random: --seed changes nothing.
    """
    from .validate import validate as run_validation

    done = run_validation(reference, cost=cost, model=model, hardware=hardware, out=trace)
    if done.result["extrapolation"]:
        found = done.result["extrapolation"]
        click.echo(f"warning: {found['steps']:,} steps were priced beyond the tables: {found['reason']}", err=True)
    emit(done.result, as_json=as_json, out=out, render=lambda console: validation_tables(done.result, console))


def validation_tables(result: dict[str, Any], console: Console) -> None:
    """Print the errors: one line a latency, one a total, one a state over time."""
    from rich.table import Table

    from traces.tables import print_table

    names = ("mean", "p50", "p90", "p95", "p99")
    table = Table(title=f"{result['name']}, {result['requests']:,} requests: measured, and the simulation's error")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for latency, entries in result["latency"].items():
        if entries is not None:
            table.add_row(LABELS[latency], *(_cell(entries[name]) for name in names))
    print_table(console, table)
    console.print()
    _totals(result, console)
    worst = result["worst"]
    if worst is not None:
        latency, figure = worst["figure"].split()
        console.print(
            f"worst of TTFT, TPOT and E2E: {LABELS[latency].partition(',')[0]} {figure} {worst['error']:+.2%}"
        )


def _totals(result: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    from traces.tables import print_table

    totals = Table(title="run")
    for name, justify in (("", "left"), ("measured", "right"), ("simulated", "right"), ("error", "right")):
        totals.add_column(name, justify="left" if justify == "left" else "right")
    for name, entry in result["run"].items():
        totals.add_row(
            LABELS[name], f"{entry['measured']:,.4g}", f"{entry['simulated']:,.4g}", f"{entry['error']:+.2%}"
        )
    print_table(console, totals)
    console.print()
    series = result["series"]
    if series is None:
        return
    states = Table(title=f"over time, {len(series['t_s'])} samples")
    for name, justify in (("", "left"), ("mean, measured", "right"), ("RMSE", "right")):
        states.add_column(name, justify="left" if justify == "left" else "right")
    for name, label in STATES.items():
        states.add_row(label, f"{series['mean'][name]:,.1f}", f"{series['rmse'][name]:,.2f}")
    print_table(console, states)
    console.print()


def _cell(entry: dict[str, float | None]) -> str:
    measured, error = entry["measured"], entry["error"]
    return f"{measured:,.4g}" if error is None else f"{measured:,.4g} {error:+.2%}"
