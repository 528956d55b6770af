"""What bounds a run, in words, with the figures that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import html

from dashboard.data.requests import once
from dashboard.data.run import Run
from dashboard.numbers import digits, percent
from dashboard.panels.pricing import pricing_of
from dashboard.parts.summary import record_for
from scheduler.errors import InputError
from simulator.bounds import BOUNDS, priced
from simulator.explain import Description, describe

_WAITS = {
    "seqs": "waiting for a slot",
    "tokens": "waiting for token budget",
    "blocks": "waiting for KV blocks",
    "batch-closed": "waiting for the batch to end",
}
_PARTS = {
    "compute": "arithmetic",
    "attention": "attention",
    "weights": "streaming weights",
    "host": "the host",
    "other": "everything else",
}
LEAST = 0.005
"""Smaller shares are left out of the list."""


def diagnosis(run: Run) -> Any:
    """A heading, a paragraph and a list of evidence; one sentence where there is nothing to tell."""
    found = description_of(run)
    if isinstance(found, str):
        return dmc.Text(found, c="dimmed")
    name = BOUNDS[found.bound].partition(":")[0]
    return html.Div(
        [
            html.H3(["Bound by ", name]),
            html.P(found.text, className="diagnosis-text"),
            html.Dl(
                [part for pair in evidence(found.evidence) for part in _pair(*pair)], className="diagnosis-evidence"
            ),
        ],
        className="diagnosis",
    )


def _pair(term: str, value: str) -> tuple[Any, Any]:
    return html.Dt(term), html.Dd(value)


def description_of(run: Run) -> Description | str:
    """What bounds a run, found once; a sentence of a run that is live or empty."""
    return once(run, "description", _describe)


def _describe(run: Run) -> Description | str:
    if run.trace is None:
        return "A live run is diagnosed when it has ended."
    cost_model = pricing_of(run).model if run.source == "simulated" else None
    try:
        return describe(run.trace, cost_model, record_for(run))
    except InputError:
        return "This run holds no steps: there is nothing to diagnose."


def evidence(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures behind a diagnosis: what each is, and its value; shares are of the run's time."""
    told = [("Server idle, share of time", percent(figures["idle"]))]
    told += [(f"Queue's head {_WAITS[name]}", percent(share)) for name, share in _telling(figures["waiting"])]
    told += [
        ("KV pool nearly full, share of time", percent(figures["blocks_full"])),
        ("Padding, share of the steps' time", percent(figures["padding"])),
        ("Running requests, mean over time", digits(figures["mean_running"])),
        ("Rows a step, mean", digits(figures["mean_rows"])),
    ]
    names = _PARTS if priced(figures["parts"]) else {**_PARTS, "other": "the device"}
    told += [(f"Step time on {names[name]}", percent(share)) for name, share in _telling(figures["parts"])]
    return told


def _telling(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """The shares worth telling, largest first."""
    known = [(name, share) for name, share in shares.items() if share >= LEAST]
    return sorted(known, key=lambda pair: -pair[1])
