"""The summary of runs: figures of the records, differences with a direction, reasons for what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dash.development.base_component import Component

from dashboard.numbers import digits, percent, seconds
from dashboard.parts.summary import ROWS, change, notes, record_for, same_requests, summary

from .runs import HOSTILE, MemoryRun, random_run, sample, scene, steps_of


def shown(component: Any) -> list[list[str]]:
    """Text of a table's cells, row by row."""
    return [[_text(cell) for cell in row.children] for row in _all(component, "Tr")]


def _all(component: Any, kind: str) -> list[Any]:
    found = [component] if type(component).__name__ == kind else []
    for child in _children(component):
        found += _all(child, kind)
    return found


def _children(component: Any) -> list[Any]:
    children = getattr(component, "children", None)
    return list(children) if isinstance(children, list | tuple) else [] if children is None else [children]


def _text(component: Any) -> str:
    if not isinstance(component, Component):
        return str(component)
    return " ".join(part for part in map(_text, _children(component)) if part)


@pytest.mark.parametrize("name", ["chunked", "static", "chunked-simulated"])
def test_figures_are_those_of_the_runs_summary(name: str) -> None:
    run = sample(name)
    assert run.trace is not None
    known = run.trace.summary()
    rows = dict(shown(summary(scene(run)))[1:])
    assert rows["Output tokens per second"] == digits(known["output_tokens_per_s"])
    assert rows["TTFT, p99"] == seconds(known["ttft_s"]["p99"])
    assert rows["E2E, mean"] == seconds(known["e2e_s"]["mean"])
    assert rows["Slot occupancy"] == percent(known["slot_occupancy"])
    assert rows["Preemptions"] == f"{known['preemptions']:,}"
    assert rows["Makespan"] == seconds(known["makespan_s"])


def test_a_difference_says_its_direction_and_whether_it_is_better() -> None:
    rows = {label: cells for label, *cells in shown(summary(scene(sample("chunked"), sample("static"))))}
    assert rows["TTFT, mean"][1].split(" ", 2)[2].startswith("▲ ")
    assert rows["TTFT, mean"][1].endswith(" worse")
    assert "× " in rows["TTFT, mean"][1]
    assert rows["Output tokens per second"][1].endswith(" worse")
    assert "÷ " in rows["Output tokens per second"][1]
    assert rows["Preemptions"][1] == "0 ▼ −100% better"
    assert "better" not in rows["Steps"][1]
    assert "worse" not in rows["Steps"][1]


def test_the_baseline_can_be_another_run_and_shows_no_difference() -> None:
    runs = sample("chunked"), sample("static")
    many = int(runs[0].column("steps", "preempted").sum())
    rows = {label: cells for label, *cells in shown(summary(scene(*runs), baseline=1))}
    assert rows["Preemptions"] == [f"{many} ▲ +{many} worse", "0"]


def test_a_missing_figure_is_a_dash_that_says_why() -> None:
    table = summary(scene(sample("static")))
    titles = {span.title for span in _all(table, "Span") if getattr(span, "title", None)}
    assert titles == {"all tokens of a request are delivered at once"}
    assert dict(shown(table)[1:])["TPOT, mean"] == "–"


def test_prices_without_measured_ground_are_told_with_their_reason() -> None:
    run = sample("chunked-simulated")
    record = record_for(run)
    assert record is not None
    beyond = {**record, "extrapolated": {"steps": 1200, "reason": "rows above 512"}, "caveat": "nothing was measured"}
    assert notes(run, {**record, "extrapolated": None}) == []
    assert notes(run, beyond) == [
        "1,200 steps priced beyond the cost model's data: rows above 512",
        "nothing was measured",
    ]
    assert notes(run, {**record, "extrapolated": HOSTILE}) == []


def test_each_run_carries_the_badge_of_its_source() -> None:
    head = shown(summary(scene(sample("chunked"), sample("chunked-simulated"))))[0]
    assert head[1].endswith(" measured")
    assert head[2].split()[:4] == ["B", "·", "chunked-simulated", "simulated"]


def test_a_live_run_has_no_totals() -> None:
    run = random_run(5, status="running")
    assert record_for(run) is None
    assert notes(run, None) == ["still running"]
    assert {cells[0] for _, *cells in shown(summary(scene(run)))[1:]} == {"–"}


def test_a_source_that_is_none_is_unknown_and_a_hostile_name_is_a_text_child() -> None:
    run = MemoryRun(steps_of(3), name=HOSTILE, meta={"source": HOSTILE})
    head = shown(summary(scene(run)))[0]
    assert head[1].split() == [*HOSTILE.split(), "unknown"]


@pytest.mark.parametrize(
    ("value", "base", "told"),
    [(1.05, 1.0, "+5.0%"), (1.5, 1.0, "+50%"), (0.9, 1.0, "−10%"), (2.0, 1.0, "× 2.0"), (1.0, 4.0, "÷ 4.0"),
     (0.0, 4.0, "−100%"), (3.0, 0.0, "+3")],
)  # fmt: skip
def test_changes_are_told_in_percent_or_as_a_factor(value: float, base: float, told: str) -> None:
    assert change(value, base) == told


def test_every_figure_says_why_it_may_be_missing() -> None:
    assert all(row.why_none for row in ROWS)


def test_runs_of_other_requests_are_told_apart_and_not_judged() -> None:
    other = random_run(3, requests={"prompt_tokens": np.array([5, 6, 7])})
    shown = scene(sample("chunked"), other)
    said = str(summary(shown))
    assert "other requests than A" in said
    assert same_requests(sample("static"), sample("chunked"))
    assert not same_requests(sample("static"), other)
