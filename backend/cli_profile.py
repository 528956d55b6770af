"""``batchscope profile``: makes the step traces from which ``batchscope calibrate`` fits a cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.plugins import modules_of_this_folder
from traces.console import emit, options_but_out, progress
from traces.setting_options import given
from traces.tables import print_table

from .options import engine_options_but

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = {
    "computed_tokens": "rows",
    "num_reqs": "requests",
    "mean_decode_context": "mean context",
    "decode_context": "contexts",
    "prefill_pairs": "prefill pairs",
}
"""Ranges in the table, and what they are called there."""


@click.command()
@click.option("-o", "--out", type=click.Path(), required=True, help="Folder for the traces; it is made.")
@click.option("--layouts", default="ragged,padded", show_default=True, help="Which to profile, names with commas.")
@click.option("--repeats", type=int, default=2, show_default=True, help="How often each round is run.")
@click.option("--minutes", type=float, default=5.0, show_default=True, help="Stop after the round that passes this.")
@engine_options_but("policy", "layout")
@options_but_out
def profile(
    out: str, layouts: str, repeats: int, minutes: float, seed: int, as_json: bool, model: str, **settings: Any
) -> None:
    """Drive the real engine through a designed grid of steps and record them, to calibrate a cost model from.

    Makes ragged.trace (policy chunked), and padded.trace (chunked) and static.trace (static) in padded rectangles.
    """
    modules_of_this_folder()
    from .profile import profile as run_profile

    names = [name.strip() for name in layouts.split(",") if name.strip()]
    with progress("profiling", 1.0) as bar:
        done = 0.0

        def tell(share: float) -> None:
            nonlocal done
            bar.advance(share - done)
            done = share

        record = run_profile(
            model, out=out, layouts=names, repeats=repeats, minutes=minutes, seed=seed, on_round=tell, **given(settings)
        )  # fmt: skip
    if record["missing"]:
        planned = sum(trace["rounds"] for trace in record["traces"]) * repeats
        click.echo(f"warning: time was up; {record['missing']:,} of {planned:,} rounds are missing", err=True)
    emit(record, as_json=as_json, out=None, render=lambda console: profile_tables(record, console))


def profile_tables(record: dict[str, Any], console: Console) -> None:
    """Print what was covered, and how steady the machine was."""
    from rich.table import Table

    console.print(f"{record['model']} on {record['hardware']}, {record['dtype']}: {record['wall_s']:.0f} s")
    covered = Table(title="Steps and the largest of each")
    for name in ("trace", "rounds", "steps", "prefill", "mixed", "decode", "seconds", *COLUMNS.values()):
        covered.add_column(name, justify="left" if name == "trace" else "right")
    for trace in record["traces"]:
        covered.add_row(
            trace["trace"], f"{trace['run']:,}", f"{trace['steps']:,}",
            *(f"{trace['kinds'][kind]:,}" for kind in ("prefill", "mixed", "decode")), f"{trace['seconds']:.1f}",
            *(f"{trace['ranges'][name][1]:,.0f}" for name in COLUMNS),
        )  # fmt: skip
    print_table(console, covered)
    console.print()
    _probe_table(record, console)
    console.print(f"step traces: {record['folder']}")


def _probe_table(record: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    table = Table(title="A probe that was always the same, in ms: how steady the machine was")
    for name in ("trace", "runs", "least", "median", "most", "last third to first"):
        table.add_column(name, justify="left" if name == "trace" else "right")
    for trace in record["traces"]:
        probe = trace["probe"]
        times = [f"{probe[name] * 1000:.1f}" for name in ("min_s", "median_s", "max_s")]
        drift = "" if probe["drift"] is None else f"{probe['drift']:+.1%}"
        table.add_row(trace["trace"], str(probe["runs"]), *times, drift)
    print_table(console, table)
