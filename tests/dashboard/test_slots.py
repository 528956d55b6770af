"""The slot timeline: every span a bar, or a picture where they are too many."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboard.panels import slots
from dashboard.panels.slots import PANEL
from traces.schema import SPAN_KINDS

from .runs import HOSTILE, MemoryRun, array_of, sample, scene, texts, traces_named


@pytest.mark.parametrize("name", ["static", "slots", "orca", "prefill-first", "chunked"])
def test_each_seated_span_of_a_recording_is_a_bar(name: str) -> None:
    run = sample(name)
    figure = PANEL.draw(scene(run))
    go.Figure(figure)
    spans = run.trace.spans if run.trace else None
    assert spans is not None
    for kind in ("prefill", "decode", "padding"):
        bars = sum(len(array_of(trace["y"])) for trace in traces_named(figure, kind))
        assert bars == (spans["kind"] == kind).sum()
    crosses = sum(len(array_of(trace["x"])) for trace in traces_named(figure, "preempted"))
    assert crosses == run.column("steps", "preempted").sum()


def test_padding_is_hatched() -> None:
    (bars,) = traces_named(PANEL.draw(scene(sample("static"))), "padding")
    assert bars["marker"]["pattern"]["shape"] == "/"


def test_too_many_spans_become_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST_BARS", 10)
    figure = PANEL.draw(scene(sample("chunked")))
    go.Figure(figure)
    assert [trace["type"] for trace in figure["data"]].count("image") == 1
    assert "each cell" in texts(figure)


def test_names_of_requests_stay_text() -> None:
    steps = {"step": np.arange(3), "t_start_s": np.arange(3.0), "t_end_s": np.arange(3.0) + 1}
    spans = {"kind": np.array([SPAN_KINDS.index("decode")]), "start_s": np.array([0.0]), "end_s": np.array([2.0])}
    run = MemoryRun(steps, spans=spans, names={0: HOSTILE}, meta={"slots_total": 2})
    assert "<script" not in texts(PANEL.draw(scene(run)))


def test_words_count_spans_by_kind() -> None:
    run = sample("chunked")
    spans = run.trace.spans if run.trace else None
    assert spans is not None
    for kind, count in spans["kind"].value_counts().items():
        assert f"{count} {kind}" in PANEL.words(scene(run))
