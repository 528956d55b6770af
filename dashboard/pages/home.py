"""The first page: what one can do here, and the runs at hand."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, dcc, html

from dashboard.services import Services

PATH = "/"
TITLE = "Start"

_WAYS = (
    (
        "What if?",
        "/what-if",
        "Simulate a workload under up to four settings and see what changes, before production does.",
    ),
    ("Live", "/live", "Watch a running engine step by step: seats, queue, KV blocks, padding."),
    ("Replay", "/replay", "Open recorded runs, simulated or measured, and play them side by side."),
    ("Step inspector", "/inspect", "Take one step apart: the flat batch, its seven tensors, the mask."),
    ("Sweep", "/sweep", "Throughput against latency over many settings, with the front and the knee."),
    ("Tour", "/tour", "Five short stops from the naive rectangle to chunked prefill."),
)


def layout(services: Services, **query: Any) -> Any:
    """Six ways on."""
    cards = [
        dcc.Link(
            dmc.Paper(
                [html.H2(title), dmc.Text(text, c="dimmed", size="sm")], withBorder=True, p="lg", className="way"
            ),
            href=path,
            className="plain-link",
        )
        for title, path, text in _WAYS
    ]
    return dmc.Stack(
        [
            html.H1("See what batching does to an LLM server"),
            dmc.Text("One scheduler decides, step by step, who computes which tokens. A simulator prices its "
                     "decisions, a real engine executes them, and both leave the same trace.", c="dimmed", maw=720),
            dmc.SimpleGrid(cards, cols={"base": 1, "sm": 2, "lg": 3}),
        ],
        gap="lg",
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """Nothing here moves."""
