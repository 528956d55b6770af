"""The command `validate`: a recorded run simulated, and every error in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from traces.console import common_options, emit

from .cli import Run
from .options import given, setting_options

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
    "running": "running requests",
    "waiting": "waiting requests",
    "kv_percent": "KV blocks used, %",
}
STATES = ("running", "waiting", "kv_percent")
FIGURES = ("mean", "p50", "p90", "p95", "p99")


@click.command(cls=Run)
@click.argument("reference", type=click.Path())
@click.option("--cost", help="Cost model, options after a colon; default: the tables in the folder, else roofline.")
@click.option("--model", help="Model sheet, or path of a config.json; default: as recorded.")
@click.option("--hardware", help="Hardware sheet; default: as recorded.")
@click.option("--workload", help="What was sent, a file or a preset: for recordings that hold no requests.")
@click.option("--concurrency", type=int, help="So many closed-loop clients; default: as recorded.")
@click.option("--benchmark", type=int, help="Which one, from 1, of a result file that holds several.")
@click.option("--trace", type=click.Path(), help="Record the simulated run into this folder (NAME.trace).")
@setting_options(without=("cost", "model", "hardware"))
@common_options
def validate(
    reference: str, cost: str | None, model: str | None, hardware: str | None, workload: str | None,
    concurrency: int | None, benchmark: int | None, trace: str | None, seed: int, out: str | None, as_json: bool,
    **parameters: Any,
) -> None:  # fmt: skip
    """Simulate a recorded run and show how far each figure is off.

    REFERENCE is the folder of a served vLLM run (meta.json, requests.jsonl, operator tables), a measured trace of our
    own engine, a result of vllm bench serve or guidellm (JSON), vLLM's log, or its /metrics. What a recording tells of
    the scheduler's settings holds unless it is given here. --seed draws a preset's requests and nothing else. With
    --trace the comparison stands in the trace, and Replay shows it.
    """
    from traces.presets import resolve_workload

    from .validate import validate as run_validation

    sent = None if workload is None else resolve_workload(workload, seed=seed)
    done = run_validation(
        reference, workload=sent, benchmark=benchmark, concurrency=concurrency, cost=cost, model=model,
        hardware=hardware, out=trace, **given(parameters),
    )  # fmt: skip
    if done.result["extrapolation"]:
        found = done.result["extrapolation"]
        beyond = f"{found['steps']:,} steps were priced beyond the cost model's data: {found['reason']}"
        click.echo(f"warning: {beyond}", err=True)
    emit(done.result, as_json=as_json, out=out, render=lambda console: validation_tables(done.result, console))


def validation_tables(result: dict[str, Any], console: Console) -> None:
    """Print the errors: one line a latency, one a total, one a state over time; then what to know of them."""
    _latencies(result, console)
    _totals(result, console)
    _states(result, console)
    worst = result["worst"]
    if worst is not None:
        latency, figure = worst["figure"].split()
        console.print(
            f"worst of TTFT, TPOT and E2E: {LABELS[latency].partition(',')[0]} {figure} {worst['error']:+.2%}"
        )
    if result["not_recorded"]:
        console.print(f"not recorded: {', '.join(LABELS[name].partition(',')[0] for name in result['not_recorded'])}")
    for note in result["notes"]:
        console.print(f"note: {note}")
    if result["caveat"]:
        console.print(f"all prices: {result['caveat']}")


def _latencies(result: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    from traces.tables import print_table

    title = f"{result['name']}, {result['requests']:,} requests: measured, and the simulation's error"
    if not any(result["latency"].values()):
        console.print(f"{title}\n")
        return
    table = Table(title=title)
    table.add_column("")
    for name in FIGURES:
        table.add_column(name, justify="right")
    for latency, entries in result["latency"].items():
        if entries is not None:
            table.add_row(LABELS[latency], *(_cell(entries.get(name)) for name in FIGURES))
    print_table(console, table)
    console.print()


def _totals(result: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    from traces.tables import print_table

    if not result["run"]:
        return
    totals = Table(title="run")
    for name in ("", "measured", "simulated", "error"):
        totals.add_column(name, justify="right" if name else "left")
    for name, entry in result["run"].items():
        totals.add_row(
            LABELS[name], *(f"{entry[side]:,.4g}" for side in ("measured", "simulated")), f"{entry['error']:+.2%}"
        )
    print_table(console, totals)
    console.print()


def _states(result: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    from traces.tables import print_table

    series = result["series"]
    if series is None:
        return
    states = Table(title=f"over time, {len(series['t_s'])} samples")
    for name in ("", "mean, measured", "RMSE"):
        states.add_column(name, justify="right" if name else "left")
    for name in STATES:
        if series["rmse"][name] is not None:
            states.add_row(LABELS[name], f"{series['mean'][name]:,.1f}", f"{series['rmse'][name]:,.2f}")
    print_table(console, states)
    console.print()


def _cell(entry: dict[str, Any] | None) -> str:
    """A figure and its error; of bounds, the bounds and the simulated figure with whether it lies between them."""
    if entry is None:
        return "-"
    if entry["measured"] is None:
        high = "more" if entry["high"] is None else f"{entry['high']:,.4g}"
        return f"{entry['low']:,.4g} to {high}, {entry['simulated']:,.4g} {'in' if entry['inside'] else 'OUT'}"
    measured, error = entry["measured"], entry["error"]
    return f"{measured:,.4g}" if error is None else f"{measured:,.4g} {error:+.2%}"
