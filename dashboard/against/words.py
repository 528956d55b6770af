"""A comparison as text and as tables: errors by percentile, totals, and what one should know of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from dashboard.numbers import NONE, digits, seconds

FIGURES = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_s": "E2E",
    "queue_s": "Queue",
    "scheduled_to_first_s": "Scheduled to first token",
}
TOTALS = {
    "makespan_s": ("Makespan, s", 4),
    "output_tokens_per_s": ("Output tokens per second", 4),
    "requests_per_s": ("Requests per second", 4),
}
"""Figure -> its label, and how many digits count: errors are small."""
STATES = {"running": "running requests", "waiting": "waiting requests", "kv_percent": "KV blocks used"}


def badges(result: Mapping[str, Any]) -> Any:
    """Which side is measured and by what, and which is simulated and at whose prices."""
    name, by = result["name"], result["measured_by"]
    sides = {
        "measured": name if by in name else f"{name}, by {by}",
        "simulated": f"cost model {result['cost_model']['name']}",
    }
    return html.P(
        [html.Span([html.Span(side, className=f"badge {side}"), f" {told} "]) for side, told in sides.items()]
    )


def sentences(result: Mapping[str, Any]) -> list[str]:
    """The worst error, extrapolated steps, what was not recorded, and notes."""
    told = []
    worst = result.get("worst")
    if isinstance(worst, dict) and isinstance(worst.get("error"), float):
        latency, _, name = str(worst.get("figure")).partition(" ")
        label = LATENCIES.get(latency, latency)
        told.append(f"Of TTFT, TPOT and E2E the worst is {label} {name}, {error_text(worst['error'])}.")
    found = result["extrapolation"]
    if found:
        steps = found.get("steps")
        count = f"{steps:,}" if isinstance(steps, int) else "Some"
        told.append(f"{count} steps were priced beyond the cost model's data: {found.get('reason', '')}.")
    missing = [{**LATENCIES, **STATES}.get(name, name) for name in result["not_recorded"]]
    if missing:
        told.append(f"Not recorded: {', '.join(missing)}.")
    return [*told, *(f"{note[:1].upper()}{note[1:]}." for note in result["notes"])]


def latency_table(result: Mapping[str, Any]) -> Any:
    """Measured figures, each with the simulation's error."""
    head = html.Tr([html.Th("Latency, measured", scope="col"), *(html.Th(name, scope="col") for name in FIGURES)])
    rows = [
        html.Tr([html.Th(LATENCIES.get(name, name), scope="row"), *(_cell(table.get(each)) for each in FIGURES)])
        for name, table in result["latency"].items()
        if table
    ]
    return _table(head, rows) if rows else None


def totals_table(result: Mapping[str, Any]) -> Any:
    """The whole run's figures on both sides."""
    heads = ("Whole run", "measured", "simulated", "error")
    rows = [
        html.Tr(
            [html.Th(label, scope="row"), *(html.Td(digits(entry[side], count)) for side in ("measured", "simulated")),
             html.Td(error_text(entry["error"]))]
        )
        for name, (label, count) in TOTALS.items()
        if (entry := result["run"].get(name))
    ]  # fmt: skip
    return _table(html.Tr([html.Th(head, scope="col") for head in heads]), rows) if rows else None


def error_text(error: float | None) -> str:
    """A relative error in percent."""
    return NONE if error is None else f"{error:+.2%}".replace("-", "−")


def _table(head: Any, rows: list[Any]) -> Any:
    table = html.Table([html.Thead(head), html.Tbody(rows)], className="figures")
    return html.Div(table, className="summary-scroll", style={"overflowX": "auto"})


def _cell(entry: Mapping[str, Any] | None) -> Any:
    if entry is None:
        return html.Td(NONE)
    if entry["measured"] is None:
        below = "more" if entry.get("high") is None else seconds(entry["high"])
        kind = "inside" if entry["inside"] else "outside"
        told = f"{seconds(entry['simulated'])}, {kind}"
        return html.Td([f"{seconds(entry['low'])} to {below}", html.Div(told, className=f"difference {kind}")])
    return html.Td([seconds(entry["measured"]), html.Div(error_text(entry.get("error")), className="difference")])
