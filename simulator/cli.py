"""The simulator's commands: compare, simulate, sweep, capacity, explain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError
from scheduler.plugins import modules_of_this_folder
from traces.console import common_options, emit, progress

from .options import given, names_list, setting_options, traffic_options, workload_options

if TYPE_CHECKING:
    from rich.console import Console

    from traces.workload import Workload


class Run(click.Command):
    """A command whose policies, cost models and routers may be of modules in the current folder."""

    def invoke(self, ctx: click.Context) -> Any:
        """Find them there, too."""
        modules_of_this_folder()
        return super().invoke(ctx)


@click.command(cls=Run)
@workload_options
@click.option(
    "--policies", default="static,slots,orca,prefill-first,chunked", show_default=True, help="Which, in order."
)
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
    _tell_skipped(comparison.result["skipped"], requests.skipped)
    emit(comparison.result, as_json=as_json, out=out, render=lambda console: comparison_tables(comparison, console))


@click.command(cls=Run)
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

    from traces.record import record_of
    from traces.run_table import run_table

    from .run import simulate as run_simulation

    requests, load = _load(workload, seed, parameters)
    start = time.perf_counter()
    recorded = run_simulation(
        requests, out=trace, seed=seed, plans=plans, token_times=token_times, **load, **given(parameters)
    )
    record = {
        **{name: recorded.meta[name] for name in ("workload", "settings", "seed", "load")},
        **record_of(recorded, wall_s=time.perf_counter() - start),
    }
    _tell_skipped(record["skipped"], requests.skipped)
    if trace is not None:
        record["trace"] = trace

    def render(console: Console) -> None:
        run_table([record], console)
        if trace is not None:
            console.print(f"step trace: {trace}")

    emit(record, as_json=as_json, out=out, render=render)


@click.command(cls=Run)
@workload_options
@click.option("--grid", multiple=True, metavar="NAME=VALUES", help="Values of a setting; repeat for more settings.")
@click.option("--latency", default="e2e_p99", show_default=True, help="What the Pareto front sets against throughput.")
@click.option("--jobs", type=int, help="Processes; default: one a core.")
@click.option("--ray", metavar="ADDRESS", help="Run on this Ray cluster, or on one started here (local).")
@setting_options()
@common_options
def sweep(
    workload: str, grid: tuple[str, ...], latency: str, jobs: int | None, ray: str | None, seed: int, out: str | None,
    as_json: bool, **parameters: Any,
) -> None:  # fmt: skip
    """Every combination of a grid, as in --grid max_num_seqs=16,32,64 --grid policy=static,chunked.

    Names are those of the settings below, and rate, requests, concurrency, think_s and seed. Numbers may be ranges,
    first:last:step or log:first:last:count. With --out NAME.jsonl, or a folder, runs are kept as they end, and what is
    there already is not run again; a folder also gets sweep.json and sweep.csv. NAME.json and NAME.csv hold the result
    alone.
    """
    from .grid import parse_grid, points
    from .sweep import flat_rows
    from .sweep import sweep as run_sweep
    from .tables import sweep_table

    axes = parse_grid(grid)
    log = None if out is None or Path(out).suffix in RESULTS else out
    source, options = _source(workload, parameters)
    with progress("sweeping", len(points(axes))) as bar:
        swept = run_sweep(
            source, grid=axes, out=log, latency=latency, seed=seed, jobs=jobs, ray=ray,
            on_plan=lambda total, known: bar.advance(known), on_run=bar.advance, **options, **given(parameters),
        )  # fmt: skip
    for file in _result_files(out):
        table = file.suffix == ".csv"
        emit(flat_rows(swept.result) if table else swept.result, as_json=False, out=file, render=lambda console: None)
    emit(swept.result, as_json=as_json, out=None, render=lambda console: sweep_table(swept.result, console))


@click.command(cls=Run)
@traffic_options
@click.option("--slo", required=True, help="Limits, as ttft_p99=1.0,tpot_p99=50ms: METRIC_FIGURE=SECONDS,...")
@click.option("--rate", type=float, help="Requests per second to serve: find the replicas for it.")
@click.option("--replicas", type=int, help="Replicas there are; default: 1, or as many as --rate needs.")
@click.option("--router", default="least-requests", show_default=True, help="Which replica gets a request.")
@click.option("--max-replicas", type=int, default=64, show_default=True, help="Most replicas to try.")
@click.option("--price", type=float, help="Price of a GPU hour: gives the cost per million output tokens.")
@click.option(
    "--seeds", type=int, default=3, show_default=True, help="Draws of the traffic that must all meet the SLO."
)
@click.option("--precision", type=float, default=0.02, show_default=True, help="Of the rate, as a fraction.")
@click.option("--traces", type=click.Path(file_okay=False), help="Folder for the step traces of the answer's runs.")
@click.option("--jobs", type=int, help="Processes; default: one a core for large workloads.")
@setting_options()
@common_options
def capacity(workload: str, slo: str, seed: int, out: str | None, as_json: bool, **parameters: Any) -> None:
    """The highest rate that meets an SLO; or, with --rate, the replicas and GPUs that it needs.

    A rate passes when every seed meets every limit, unsaturated and with all requests served. Metrics are ttft, tpot,
    itl, e2e and queue, figures mean, p50, p90, p95 and p99. Routers: round-robin, random, least-requests,
    least-tokens, prefix-affinity, or module:Class.
    """
    from .capacity import capacity as find_capacity
    from .tables import capacity_tables

    source, options = _source(workload, parameters)
    with progress("searching", None) as bar:
        found = find_capacity(source, slo=slo, seed=seed, on_trial=bar.advance, **options, **given(parameters))
    _tell_skipped(found.result["skipped"], {} if isinstance(source, str) else source.skipped)
    emit(found.result, as_json=as_json, out=out, render=lambda console: capacity_tables(found.result, console))


@click.command(cls=Run)
@workload_options
@click.option("--requests-from", metavar="WORKLOAD", help="For a trace: the workload it was recorded with.")
@setting_options()
@common_options
def explain(
    workload: str, requests_from: str | None, seed: int, out: str | None, as_json: bool, **parameters: Any
) -> None:
    """What bounds a run, the evidence, and the next knob with its simulated effect.

    WORKLOAD is a workload to simulate, or the folder of a step trace (NAME.trace).
    """
    from .explain import explain as explain_run
    from .explain import is_trace
    from .tables import explanation_tables

    options: dict[str, Any]
    if is_trace(workload):
        reading = {key: parameters.pop(key) for key in READING}
        options = {"requests": parameters.pop("requests"), "reading": reading, "requests_from": requests_from}
        source: Workload | str = workload
    else:
        if requests_from is not None:
            raise ConfigError(f"--requests-from goes with a step trace; {workload} is none")
        source, options = _source(workload, parameters)
    with progress("explaining", None) as bar:
        found = explain_run(source, seed=seed, on_run=bar.advance, **options, **given(parameters))
    emit(found.as_dict(), as_json=as_json, out=out, render=lambda console: explanation_tables(found.as_dict(), console))


@click.command(cls=Run)
@click.argument("trace", type=click.Path())
@click.option("--workload", type=click.Path(), help="Its requests, where they were not kept beside it.")
@common_options
@click.pass_context
def rerun(ctx: click.Context, trace: str, workload: str | None, seed: int, out: str | None, as_json: bool) -> None:
    """Simulate a recorded run from its durations, arrivals and output lengths; compare every decision.

    Exit code 1 when a step differs; the first one is shown.
    """
    from traces.formats import read_workload
    from traces.same_plans import first_difference
    from traces.trace import Trace

    from .rerun import rerun as run_again

    recorded = Trace.open(trace)
    again = run_again(recorded, None if workload is None else read_workload(workload))
    steps = len(recorded.column("steps", "step"))
    difference = first_difference(recorded, again)
    same = steps if difference is None else difference.step
    record = {
        "trace": trace,
        "steps": steps,
        "same": same,
        "difference": None if difference is None else str(difference),
    }

    def render(console: Console) -> None:
        if difference is None:
            console.print(f"all {steps:,} steps make the same plans")
        else:
            console.print(str(difference), markup=False)

    emit(record, as_json=as_json, out=out, render=render)
    ctx.exit(0 if difference is None else 1)


READING = ("sort", "skip_bad", "hash_block")
RESULTS = (".json", ".csv")


def _source(name: str, parameters: dict[str, Any]) -> tuple[Workload | str, dict[str, Any]]:
    """What an experiment draws its requests from, and the options on that, taken out of a command's parameters.

    A file is read here, once; a preset or a folder goes by its name, because it is drawn anew for every seed.
    """
    from traces.presets import PRESETS, resolve_workload

    reading = {key: parameters.pop(key) for key in READING}
    requests = parameters.pop("requests")
    options = {"requests": requests, "skip_bad": reading["skip_bad"]}
    if name in PRESETS or Path(name).is_dir():
        return name, {**options, "reading": reading}
    workload = resolve_workload(name, **reading)
    _tell_skipped(workload.skipped)
    return workload, options


def _result_files(out: str | None) -> list[Path]:
    """Where a sweep's result goes besides standard output."""
    if out is None or Path(out).suffix == ".jsonl":
        return []
    if Path(out).suffix in RESULTS:
        return [Path(out)]
    return [Path(out) / f"sweep{suffix}" for suffix in RESULTS]


def _tell_skipped(skipped: Mapping[str, int], told: Mapping[str, int] = MappingProxyType({})) -> None:
    for reason, count in skipped.items():
        if told.get(reason) != count:
            click.echo(f"skipped {count} rows: {reason}", err=True)


def _load(name: str, seed: int, parameters: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """The workload, and the load's own options taken out of a command's parameters."""
    from traces.presets import resolve_workload

    from .run import check_load

    reading = {key: parameters.pop(key) for key in ("requests", "rate", "sort", "skip_bad", "hash_block")}
    load = {key: parameters.pop(key) for key in ("concurrency", "think_s")}
    check_load(load["concurrency"], reading["rate"], load["think_s"])
    load["skip_bad"] = reading["skip_bad"]
    workload = resolve_workload(name, seed=seed, **reading)
    _tell_skipped(workload.skipped)
    return workload, load
