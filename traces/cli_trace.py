"""`batchscope trace`: look into a step trace, export it, check it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError

from .console import common_options, emit, options_but_out
from .metrics import SLO_FIELDS
from .tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

    from .trace import Trace

_META = ("source", "policy", "layout", "model", "hardware", "cost_model", "seed", "workload")
_SPREADS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E", "queue_s": "queue"}


@click.group()
def trace() -> None:
    """Look into, export and check step traces (folders NAME.trace)."""


@trace.command()
@click.argument("path")
@click.option("--slo", default=None, help="Limits a request must meet for goodput, e.g. ttft_s=1,tpot_s=0.05.")
@common_options
def info(path: str, slo: str | None, as_json: bool, out: str | None, seed: int) -> None:
    """What a trace holds, and its metrics."""
    opened = _open(path)
    result = describe(opened, parse_slo(slo) if slo else None)
    emit(result, as_json=as_json, out=out, render=lambda console: _render_info(console, result))


@trace.command()
@click.argument("path")
@click.option(
    "--format", "kind", type=click.Choice(["csv", "chrome"]), required=True, help="A folder of CSV, or Perfetto's JSON."
)
@click.option("-o", "--out", required=True, type=click.Path(), help="Folder (csv) or file (chrome) to write.")
@options_but_out
def export(path: str, kind: str, out: str, as_json: bool, seed: int) -> None:
    """Write a trace for other programs: CSV tables, or JSON that Perfetto opens."""
    from .export import export_chrome, export_csv

    (export_csv if kind == "csv" else export_chrome)(_open(path), out)
    click.echo(f"wrote {out}", err=True)
    if as_json:
        emit({"path": path, "format": kind, "written": out}, as_json=True, out=None, render=lambda console: None)


@trace.command()
@click.argument("path")
@common_options
@click.pass_context
def check(ctx: click.Context, path: str, as_json: bool, out: str | None, seed: int) -> None:
    """Check the laws every trace must keep; exits with 1 where one is broken."""
    from .check import check as check_trace
    from .sound import check_types

    opened = _open(path)
    check_types(opened)
    violations, counts = check_trace(opened)
    result = {
        "path": path,
        "status": opened.status,
        "ok": not violations,
        "violations": [violation.as_dict() for violation in violations],
        "counts": counts,
    }
    emit(result, as_json=as_json, out=out, render=lambda console: _render_check(console, result))
    if violations:
        ctx.exit(1)


def describe(trace: Trace, slo: dict[str, float] | None = None) -> dict[str, Any]:
    """A trace as `trace info --json` prints it: path, status, what the run was, metrics."""
    meta = {name: value for name, value in trace.meta.items() if name not in ("row_files", "codes")}
    return {"path": str(trace.path), "status": trace.status, "meta": meta, "metrics": trace.summary(slo)}


def parse_slo(text: str) -> dict[str, float]:
    """Limits from ``name=seconds,...``; raises ConfigError for anything else."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            limits[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(
                f"--slo: {part!r} is no limit; expected name=seconds with a name of {SLO_FIELDS}"
            ) from None
    return limits


def _open(path: str) -> Trace:
    from .trace import Trace

    return Trace.open(path)


def _render_info(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    from .record import caveat_of
    from .run_table import print_doubts

    meta, metrics = result["meta"], result["metrics"]
    facts = Table(title=result["path"], show_header=False)
    for name in _META:
        if meta.get(name) is not None:
            facts.add_row(name.replace("_", " "), _described(meta[name]))
    facts.add_row("status", result["status"])
    for name, value in metrics.items():
        if not isinstance(value, dict) and value is not None:
            facts.add_row(name.replace("_", " "), _figure(value))
    for name in ("finish_reasons", "padding_tokens", "blocks"):
        facts.add_row(name.replace("_", " "), ", ".join(f"{k} {_figure(v)}" for k, v in metrics[name].items()))
    print_table(console, facts)
    console.print()
    _render_spreads(console, metrics)
    print_doubts([{"extrapolated": meta.get("extrapolation"), "caveat": caveat_of(meta.get("cost_model"))}], console)


def _described(fact: Any) -> str:
    """A fact of the meta on one line: of what has a name only that and its options; the rest is in ``--json``."""
    if not isinstance(fact, dict):
        return str(fact)
    options = fact.get("options", {key: value for key, value in fact.items() if key not in ("name", "digest")})
    listed = ", ".join(f"{key}={value}" for key, value in options.items() if not isinstance(value, (dict, list)))
    return " ".join(part for part in (str(fact.get("name", "")), f"({listed})" if listed else "") if part)


def _render_spreads(console: Console, metrics: dict[str, Any]) -> None:
    from rich.table import Table

    names = ("mean", "p50", "p90", "p95", "p99")
    times = Table("seconds")
    for name in names:
        times.add_column(name, justify="right")
    for key, label in _SPREADS.items():
        spread = metrics[key]
        times.add_row(label, *(["-"] * len(names) if spread is None else [_figure(spread[name]) for name in names]))
    print_table(console, times)


def _render_check(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    if result["ok"]:
        console.print(f"{result['path']} ({result['status']}): all laws hold")
        return
    table = Table("law", "where", "figures", title=f"{result['path']}: broken laws")
    for violation in result["violations"]:
        table.add_row(violation["law"], violation["where"], violation["detail"])
    print_table(console, table)
    for law, count in result["counts"].items():
        console.print(f"{law}: broken {count} time{'' if count == 1 else 's'}")


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
