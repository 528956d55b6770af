"""ITL spikes: the longest gap of each step, never dropped, with the cause that the steps between show."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.panels.spikes import MOST_POINTS, PANEL, _sides, causes, spikes_in_view

from .runs import HOSTILE, LOOKS, MemoryRun, array_of, random_run, sample, scene, steps_of, texts, traces_named


@pytest.mark.parametrize("axis", ["time", "step"])
def test_points_are_the_longest_gap_of_each_step(axis: str) -> None:
    run = sample("chunked")
    assert run.trace is not None
    expected = run.trace.gaps.groupby("step")["gap_s"].max()
    frame = PANEL.table(scene(run, axis=axis))
    assert frame["step"].tolist() == expected.index.tolist()
    assert frame["gap_s"].tolist() == expected.tolist()


@given(st.integers(2, 4000), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_longest_gap_is_drawn_however_many_there_are(number: int, seed: int) -> None:
    gap_s = np.random.default_rng(seed).exponential(0.01, number)
    gaps = {"step": np.arange(number), "gap_s": gap_s, "count": np.ones(number)}
    figure = PANEL.draw(scene(MemoryRun(steps_of(number), gaps=gaps)))
    points, rings = (array_of(trace["y"]) for trace in traces_named(figure, "longest gap"))
    assert len(points) <= MOST_POINTS
    factor = 1e3 if gap_s.max() < 1 else 1.0
    assert points.max() == pytest.approx(gap_s.max() * factor)
    assert np.sort(rings) == pytest.approx(np.sort(gap_s)[-5:] * factor)


def steady(num_steps: int = 6, **changes: Any) -> dict[str, Any]:
    """Steps of 10 ms back to back, each with one new token."""
    at = np.arange(num_steps)
    steps = {"step": at, "t_start_s": at * 0.01, "t_end_s": at * 0.01 + 0.01, "decode_tokens": np.ones(num_steps)}
    return {**steps, "slots_total": np.full(num_steps, 4), **changes}


def cause_of(steps: dict[str, Any], step: int, gap_s: float, **more: Any) -> str:
    gaps = {"step": np.array([step]), "gap_s": np.array([gap_s]), "count": np.array([1])}
    run = MemoryRun(steps, gaps=gaps, **more)
    (cause,) = causes(run, spikes_in_view(scene(run).windows[0]))
    return cause.text


def test_a_prompt_in_the_step_is_its_cause() -> None:
    steps = steady(prefill_tokens=np.array([0, 0, 0, 4096, 0, 0]))
    assert cause_of(steps, 3, 0.01) == "computed 4,096 prompt tokens besides 1 new one"


def test_a_prompt_in_the_step_before_is_not_its_cause() -> None:
    steps = steady(prefill_tokens=np.array([0, 0, 4096, 0, 0, 0]))
    assert cause_of(steps, 3, 0.01) == "computed 1 new token, and little else"


def test_steps_without_the_request_tell_what_they_computed() -> None:
    steps = steady(prefill_tokens=np.array([9, 0, 500, 100, 0, 0]), decode_tokens=np.array([1, 1, 0, 0, 1, 1]))
    assert cause_of(steps, 4, 0.03) == "3 steps passed, which computed 600 prompt tokens, 1 new token"


def test_a_pause_between_steps_is_told() -> None:
    steps = steady()
    for name in ("t_start_s", "t_end_s"):
        steps[name] = steps[name] + np.array([0, 0, 0, 1, 1, 1])
    assert cause_of(steps, 3, 1.01) == "no step ran for 1.00 s"


def test_padding_and_work_done_again_are_told() -> None:
    assert cause_of(steady(padding_prompt=np.full(6, 90)), 3, 0.01) == "computed 90 padded rows"
    again = cause_of(steady(recomputed_tokens=np.full(6, 7)), 3, 0.01)
    assert again == "computed 7 dropped tokens again, after a preemption"


def test_a_victim_that_is_back_is_the_cause_and_its_name_stays_text() -> None:
    spans = {
        "request": [0, 0, 0], "slot": [1, -1, 1], "kind": [2, 3, 1], "first_step": [0, 1, 4], "last_step": [0, 3, 4],
        "tokens": [1, 0, 33], "start_s": [0.0, 0.01, 0.04], "end_s": [0.01, 0.04, 0.05],
    }  # fmt: skip
    told = cause_of(steady(), 4, 0.04, spans={k: np.asarray(v) for k, v in spans.items()}, names={0: HOSTILE})
    assert told.startswith("request …")
    assert told.endswith("had lost its seat in step 1, for 3 steps, then 33 tokens again")
    assert "<" not in told


def waits_after_preemptions(run: Any) -> dict[int, tuple[int, int]]:
    """By the spans and gaps of a run: step -> whose wait after a preemption ended there, and when it lost its seat."""
    spans, steps, gaps = run.trace.spans, run.trace.steps, run.trace.gaps.groupby("step")["gap_s"].max()
    found = {}
    for request, of in spans.groupby("request"):
        kinds = of["kind"].tolist()
        for at in range(1, len(kinds) - 2):
            if kinds[at - 1 : at + 2] != ["decode", "preempted", "prefill"]:
                continue
            lost, back = int(of["first_step"].iloc[at]), int(of["last_step"].iloc[at + 1])
            waited_s = steps["t_end_s"][back] - steps["t_end_s"][lost - 1]
            if gaps.get(back, 0.0) == pytest.approx(waited_s):
                found[back] = (int(request), lost)
    return found


def test_every_long_wait_of_a_recording_after_a_preemption_is_laid_to_it() -> None:
    run = sample("chunked")
    spikes = spikes_in_view(scene(run).windows[0])
    told = dict(zip(run.column("steps", "step")[spikes.row].tolist(), causes(run, spikes), strict=True))
    waits = waits_after_preemptions(run)
    assert waits
    for step, (request, lost) in waits.items():
        assert told[step].text.startswith(f"request {request} had lost its seat in step {lost}, for ")


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5))
def test_labels_stay_inside_and_off_each_other(marks: list[tuple[float, float]]) -> None:
    places = np.array(sorted(marks, key=lambda mark: -mark[1]))
    boxes = []
    for place, side in _sides(places).items():
        edge = places[place, 0] - (0.3 if side["xanchor"] == "right" else 0.0)
        assert 0 <= edge <= 0.7 + 1e-9
        boxes.append((edge, places[place, 1]))
    for index, (x, y) in enumerate(boxes):
        assert all(abs(x - x0) >= 0.3 or abs(y - y0) >= 0.14 for x0, y0 in boxes[:index])


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_figures_are_valid_and_say_what_is_missing(look: Any) -> None:
    figure = PANEL.draw(scene(sample("chunked"), sample("static"), look=look))
    go.Figure(figure)
    assert "there are no gaps" in texts(figure)
    for run in (random_run(0), random_run(5)):
        go.Figure(PANEL.draw(scene(run, look=look)))
        assert "No step in this part" in PANEL.words(scene(run))
