"""The command `calibrate`: a cost file from step traces, with its terms, errors and range in tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from traces.console import emit, options_but_out

if TYPE_CHECKING:
    from rich.console import Console

UNITS = {
    "step_s": "a step",
    "rows": "a row",
    "logits_rows": "a logits row",
    "requests": "a request",
    "decodes": "a decode",
    "prefills": "a prefilling request",
    "decode_context": "1,000 KV positions of decodes",
    "prefill_context": "1,000 KV positions of prefills",
    "prefill_pairs": "1,000 prefill pairs",
}
"""Term -> what its microseconds are for."""
THOUSANDS = ("decode_context", "prefill_context", "prefill_pairs")


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--out", type=click.Path(), help="Write the cost here, for --cost fitted:path=FILE.")
@options_but_out
def calibrate(traces: tuple[str, ...], seed: int, out: str | None, as_json: bool) -> None:
    """Fit a cost to recorded steps, for --cost fitted:path=cost.json.

    TRACES are step traces (NAME.trace) of one model on one machine: any policies, any workloads; prices are fitted for
    each layout apart. Nothing is drawn at random: --seed changes nothing.
    """
    from traces.outputs import refuse_inputs

    from .calibrate import calibrate as run_calibration
    from .calibrate import write_cost

    document = run_calibration(traces)
    if out is not None:
        refuse_inputs(out)
        write_cost(document, out)
    emit(document, as_json=as_json, out=None, render=lambda console: cost_tables(document, out, console))


def cost_tables(document: dict[str, Any], out: str | None, console: Console) -> None:
    """Print a fitted cost: the terms, then for each layout errors and range."""
    console.print(
        f"{document['model']['name']}, {document['dtype']}, on {document['hardware']}; "
        f"{len(document['sources'])} {document['source']} runs"
    )
    probe_s = document["probe_s"]
    console.print(
        "no probe ran beside the steps: what slowed the machine for a while is in the prices"
        if probe_s is None
        else f"steps brought to the speed at which the probe beside them takes {probe_s * 1e3:.3g} ms"
    )
    for layout, fitted in document["layouts"].items():
        console.print()
        _terms(layout, fitted, console)
        console.print()
        _errors(fitted, console)
        console.print()
        _range(fitted, console)
    if out is not None:
        console.print(f"\ncost: {out} (--cost fitted:path={out})")


def _terms(layout: str, fitted: dict[str, Any], console: Console) -> None:
    rows = []
    for part in ("device", "host"):
        factor = fitted["mean_over_fit"][part] * 1e6
        rows.append((part, UNITS["step_s"], "", f"{fitted[part]['step_s'] * factor:,.4g}"))
        for name, curve in fitted[part]["curves"].items():
            each = factor * (1000 if name in THOUSANDS else 1)
            rows += [(part, UNITS[name], where, f"{slope_s * each:,.4g}") for where, slope_s in _pieces(**curve)]
    title = f"{layout}, {fitted['steps']:,} steps: mean prices, µs"
    _print(console, title, ("", "for", "which", ">µs"), rows)


def _pieces(knots: list[int], slopes_s: list[float]) -> list[tuple[str, float]]:
    """Which units each slope is for; neighbours of one slope are one piece."""
    starts = [at for at in range(len(knots)) if not at or slopes_s[at] != slopes_s[at - 1]]
    ends = [*(f"to {knots[at]:,}" for at in starts[1:]), "on"]
    if len(starts) == 1:
        return [("", slopes_s[0])]
    return [(f"{knots[at] + 1:,} {end}", slopes_s[at]) for at, end in zip(starts, ends, strict=True)]


def _errors(fitted: dict[str, Any], console: Console) -> None:
    quantiles = ("p5", "p25", "p50", "p75", "p95")
    rows = [
        (kind, *(f"{found[name]:+.1%}" for name in quantiles), f"{found['median_size']:.1%}")
        for kind, found in fitted["residuals"].items()
    ]
    headers = ("steps", *(f">{name}" for name in quantiles), ">median size")
    _print(console, "price / measured - 1, of the steps fitted on", headers, rows)
    held, cut, mean = fitted["cross_validation"], fitted["cut"], fitted["mean_over_fit"]
    if held is None:
        console.print("too few steps for a cross-validated error")
    else:
        totals = ", ".join(f"{error:+.1%}" for error in held["total"])
        console.print(f"held out ({held['folds']}): a step {held['median_size']:.1%} in the median; totals {totals}")
    console.print(f"mean over fit: device {mean['device']:.3f}, host {mean['host']:.3f}")
    console.print(
        f"cut: {cut['steps']:.1%} of the steps, which took over {cut['over']:g} times their fit; "
        f"they are {cut['time']:.1%} of the time"
    )


def _range(fitted: dict[str, Any], console: Console) -> None:
    from .costs.fit_terms import REACH

    rows = [(REACH[name], f"{least:,.0f}", f"{most:,.0f}") for name, (least, most) in fitted["range"].items()]
    _print(console, "range, of the steps that have any", ("a step has", ">least", ">most"), rows)


def _print(console: Console, title: str, headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table; headers that begin with > are of figures."""
    from rich.table import Table

    from traces.tables import print_table

    table = Table(title=title)
    for header in headers:
        table.add_column(header.lstrip(">"), justify="right" if header.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    print_table(console, table)
