"""The simulator's commands: compare, simulate, sweep, capacity, explain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError
from traces.console import common_options, emit, progress

from .options import given, names_list, setting_options, workload_options

if TYPE_CHECKING:
    from rich.console import Console

    from traces.workload import Workload


@click.command()
@workload_options
@click.option("--policies", default="static,slots,orca,prefill-first,chunked", show_default=True, help="Which, in order.")
@click.option("--layouts", default="auto", show_default=True, help="auto (each policy's own), padded, ragged.")
@click.option("--traces", type=click.Path(file_okay=False), help="Folder for a step trace of each run.")
@click.option("--jobs", type=int, help="Processes; default: one a core for large workloads.")
@setting_options(without=("policy", "layout"))
@common_options
def compare(
    workload: str, policies: str, layouts: str, traces: str | None, jobs: int | None, seed: int, out: str | None,
    as_json: bool, **parameters: Any,
) -> None:  # fmt: skip
    """Several policies on the same requests, side by side.

    WORKLOAD is a file of any known format or a preset (default, azure-conv, azure-code).
    """
    from .compare import compare as run_comparison
    from .tables import comparison_tables

    requests, load = _load(workload, seed, parameters)
    names, shapes = names_list(policies), names_list(layouts)
    with progress("comparing", len(names) * len(shapes)) as bar:
        comparison = run_comparison(
            requests, policies=names, layouts=shapes, seed=seed, traces=traces, jobs=jobs,
            on_run=bar.advance, **load, **given(parameters),
        )  # fmt: skip
    emit(comparison.result, as_json=as_json, out=out, render=lambda console: comparison_tables(comparison, console))


@click.command()
@workload_options
@click.option("--trace", type=click.Path(), help="Record the step trace into this folder (NAME.trace).")
@click.option("--plans", is_flag=True, help="Record every step's plan too.")
@click.option("--token-times", is_flag=True, help="Record when each token was delivered.")
@setting_options()
@common_options
def simulate(
    workload: str, trace: str | None, plans: bool, token_times: bool, seed: int, out: str | None, as_json: bool,
    **parameters: Any,
) -> None:  # fmt: skip
    """One policy on a workload; with --trace it writes a step trace."""
    import time

    from .run import simulate as run_simulation
    from .summary import record_of
    from .tables import run_table

    requests, load = _load(workload, seed, parameters)
    start = time.perf_counter()
    recorded = run_simulation(
        requests, out=trace, seed=seed, plans=plans, token_times=token_times, **load, **given(parameters)
    )
    record = record_of(recorded, wall_s=time.perf_counter() - start)
    if trace is not None:
        record["trace"] = trace

    def render(console: Console) -> None:
        run_table([record], console)
        if trace is not None:
            console.print(f"step trace: {trace}")

    emit(record, as_json=as_json, out=out, render=render)


def _load(name: str, seed: int, parameters: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """The workload, and the load's own options taken out of a command's parameters."""
    from traces.presets import resolve_workload

    reading = {key: parameters.pop(key) for key in ("requests", "rate", "sort", "skip_bad", "hash_block")}
    load = {key: parameters.pop(key) for key in ("concurrency", "think_s")}
    workload = resolve_workload(name, seed=seed, **reading)
    for reason, count in workload.skipped.items():
        click.echo(f"skipped {count} rows: {reason}", err=True)
    return workload, load
