"""The waterfall: each request in view has a line by arrival; of too many the slowest; names stay text."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboard.panels.waterfall import MOST_BARS, MOST_REQUESTS, PANEL

from .runs import HOSTILE, LOOKS, MemoryRun, array_of, random_run, sample, scene, steps_of, texts, traces_named


@pytest.mark.parametrize("name", ["chunked", "static"])
@pytest.mark.parametrize("axis", ["time", "step"])
def test_bars_are_the_spans_and_lines_the_requests_by_arrival(name: str, axis: str) -> None:
    run = sample(name)
    assert run.trace is not None
    figure = PANEL.draw(scene(run, axis=axis))
    spans, requests = run.trace.spans, run.trace.requests
    for kind in ("queued", "prefill", "decode", "preempted", "padding"):
        drawn = sum(len(array_of(trace["y"])) for trace in traces_named(figure, kind))
        assert drawn == (spans["kind"] == kind).sum()
    bars = traces_named(figure, "decode")[0]
    rising = requests.sort_values("arrival_s")["request"].tolist()
    assert [rising[line] for line in array_of(bars["y"])] == spans[spans["kind"] == "decode"]["request"].tolist()
    assert figure["layout"]["yaxis"]["range"][0] > figure["layout"]["yaxis"]["range"][1]  # the first is on top


def test_the_first_token_is_marked_when_it_was_delivered() -> None:
    run = sample("chunked")
    assert run.trace is not None
    marks = traces_named(PANEL.draw(scene(run)), "first token")[0]
    expected = run.trace.requests["first_token_s"] - run.trace.requests["arrival_s"].min()
    assert array_of(marks["x"]) == pytest.approx(expected.to_numpy())


def many(number: int, spans_each: int = 1) -> MemoryRun:
    """Requests that arrive one after the other and take the longer the later."""
    arrival, lasting = np.arange(number) * 0.01, np.linspace(0.1, 0.5, number)
    ends = np.linspace(arrival, arrival + lasting, spans_each + 1, axis=1)
    requests = {"request": np.arange(number), "arrival_s": arrival, "finished_s": arrival + lasting,
                "first_token_s": arrival + lasting / 2, "finish_reason": np.ones(number)}  # fmt: skip
    spans = {"request": np.repeat(np.arange(number), spans_each), "kind": np.full(number * spans_each, 2),
             "slot": np.zeros(number * spans_each), "tokens": np.ones(number * spans_each),
             "start_s": ends[:, :-1].ravel(), "end_s": ends[:, 1:].ravel()}  # fmt: skip
    return MemoryRun(steps_of(2000), requests=requests, spans=spans, names=dict.fromkeys(range(number), HOSTILE))


def test_of_many_requests_the_slowest_are_drawn_and_the_rest_counted() -> None:
    figure = PANEL.draw(scene(many(500)))
    assert "the 120 slowest of 500 requests in view" in texts(figure)
    left = np.sort(array_of(traces_named(figure, "decode")[0]["base"]))
    assert left == pytest.approx(np.arange(500 - MOST_REQUESTS, 500) * 0.01)


def test_requests_of_very_many_spans_are_fewer_but_one_at_least() -> None:
    figure = PANEL.draw(scene(many(50, 100)))
    assert len(array_of(traces_named(figure, "decode")[0]["y"])) <= MOST_BARS
    assert len(array_of(traces_named(PANEL.draw(scene(many(2, 3000))), "decode")[0]["y"])) == 3000


def test_the_table_holds_every_request_in_view() -> None:
    frame = PANEL.table(scene(many(500)))
    assert frame["request"].tolist() == list(range(500))
    assert set(frame["finish_reason"]) == {"stop"}


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_and_hostile_names_stay_text(look: Any) -> None:
    for shown in (scene(sample("chunked"), many(5), look=look), scene(random_run(0), look=look), scene(look=look)):
        figure = PANEL.draw(shown)
        go.Figure(figure)
        assert "<script" not in texts(figure)
        PANEL.words(shown)
        PANEL.table(shown)


def test_a_view_in_which_nothing_happens_says_so() -> None:
    run = many(3)
    shown = scene(run, start=8.0, end=9.0)
    assert "No request touches this part" in texts(PANEL.draw(shown))
