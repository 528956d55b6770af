"""`batchscope report`: runs and their figures as one HTML file that opens from disk."""

from __future__ import annotations

import os

import click

from traces.console import emit, options_but_out


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE [TRACE …]")
@click.option("-o", "--out", required=True, type=click.Path(), help="HTML file to write.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Its colours.")
@click.option("--title", default=None, help="Its heading; else the names of the traces.")
@options_but_out
def report(traces: tuple[str, ...], out: str, theme: str, title: str | None, as_json: bool, seed: int) -> None:
    """Write one self-contained HTML file over one to four step traces (folders NAME.trace).

    It opens from disk, with no server and no network: what each run was, their figures side by side, what bounds them,
    every panel of the dashboard, and the slowest requests.
    """
    from .report import write_report

    write_report(traces, out, theme=theme, title=title)
    click.echo(f"wrote {out}", err=True)
    if as_json:
        result = {"traces": list(traces), "written": out, "bytes": os.path.getsize(out)}
        emit(result, as_json=True, out=None, render=lambda console: None)
