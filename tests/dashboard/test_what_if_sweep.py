"""The Sweep page's form and figures: the address law, what is asked for, fronts, knees and maps."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.look import LIGHT
from dashboard.runs.request import RunRequest
from dashboard.runs.workload_spec import workload_of
from dashboard.sweep_figures import front, heat, load
from dashboard.sweep_figures.points import doubt, meets, quantities, ran
from dashboard.what_if.query import Form
from dashboard.what_if.sweep_form import EXAMPLE, SweepForm, of_request, parse, point_request, write
from simulator import simulate
from simulator.slo import Figure
from simulator.sweep import sweep
from tests.dashboard.runs import LOOKS, texts
from traces.record import record_of

LIMITS = {"ttft": 0.5, "tpot": 0.05}
GRIDS = st.lists(
    st.tuples(st.sampled_from(["max_num_seqs", "policy", "requests"]), st.sampled_from(["16,32", "4:8:2", "a=b"])),
    max_size=2,
    unique_by=lambda pair: pair[0],
).map(tuple)
TEXT = st.sampled_from(["", "2,4", "log:1:16:5"])


@cache
def result() -> dict[str, Any]:
    grid = {"max_num_seqs": "2,16", "policy": "static,chunked", "rate": "1,4,16,64"}
    return sweep("default", grid=grid, requests=60, jobs=1, latency="ttft_p99", max_num_batched_tokens=1024).result


@given(
    st.builds(
        SweepForm,
        grids=GRIDS,
        rates=TEXT,
        seeds=TEXT,
        slo=st.dictionaries(st.sampled_from(["ttft", "tpot", "e2e"]), st.sampled_from(["1", "50ms"])),
        latency=st.sampled_from(["e2e_p99", "ttft_mean"]),
    )
)
def test_a_sweep_s_form_comes_back_from_its_address(form: SweepForm) -> None:
    assert parse(write(form)) == form


def test_the_example_is_a_sweep_that_can_run() -> None:
    assert EXAMPLE.fault() is None
    request = RunRequest.of(EXAMPLE.request())
    assert request.kind == "sweep"
    assert of_request(request.as_dict()).grid() == EXAMPLE.grid()


def test_what_is_varied_is_not_set_besides() -> None:
    base = Form({"kind": "preset", "name": "default", "rate": 3.0, "requests": 10})
    asked = SweepForm(base, (("max_num_seqs", "1,2"),), rates="1,2").request()
    assert asked["workload"] == {"kind": "preset", "name": "default", "requests": 10}
    assert asked["grid"] == {"max_num_seqs": "1,2", "rate": "1,2"}


@pytest.mark.parametrize(("form", "sentence"), [
    (SweepForm(), "the grid is empty"),
    (SweepForm(grids=(("max_num_seqs", "0"),)), "max_num_seqs is 0"),
    (SweepForm(rates="1,x"), "grid rate: 'x' is not a number"),
    (SweepForm(rates="1", slo={"ttft": "soon"}), "slo limit ttft_p99 is soon"),
    (SweepForm(grids=(("max_num_seqs", "1:999:1"),)), "the grid has 999 combinations"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(form: SweepForm, sentence: str) -> None:
    fault = form.fault()
    assert fault is not None
    assert fault.sentence.startswith(sentence)


@pytest.mark.parametrize("at", [0, 5, 15])
def test_a_point_run_alone_is_the_run_of_the_sweep(at: int) -> None:
    row = result()["runs"][at]
    request = {
        "workload": {"kind": "preset", "name": "default", "requests": 60},
        "settings": {"max_num_batched_tokens": 1024},
        "seed": 0,
    }
    alone = RunRequest.of(point_request(request, row["point"]))
    record = record_of(simulate(workload_of(alone.workload, seed=alone.seed), seed=alone.seed, **alone.settings))
    for name in ("output_tokens_per_s", "steps", "ttft_s", "e2e_s", "makespan_s", "preemptions"):
        assert record[name] == row[name]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "limited"])
def test_figures_are_valid_and_hold_every_point_once(look: Any, limits: dict[str, float]) -> None:
    shown = result()
    figure = front.figure(shown, look, limits)
    places = [place for trace in figure["data"] for place in trace.get("customdata", ())]
    assert sorted(places) == [at for at, _ in ran(shown)]
    for made in (figure, load.figure(shown, look, limits), heat.figure(shown, look, "throughput")):
        go.Figure(made)


def test_the_line_is_the_sweep_s_own_front_and_none_beats_it() -> None:
    shown, latency = result(), Figure("ttft_p99")
    line = front.figure(shown, LIGHT, {})["data"][-1]
    assert line["x"] == sorted(line["x"])
    for _, row in ran(shown):
        better = [
            x < (latency.of(row) or 0) and y > row["output_tokens_per_s"]
            for x, y in zip(line["x"], line["y"], strict=True)
        ]
        assert (
            any(better)
            or row["pareto"]
            or (latency.of(row), row["output_tokens_per_s"]) in zip(line["x"], line["y"], strict=True)
        )


def test_the_box_ends_at_the_limit_of_the_latency_shown() -> None:
    [box] = front.figure(result(), LIGHT, {"ttft": 0.25})["layout"]["shapes"]
    assert box["x1"] == 0.25
    assert "shapes" not in front.figure(result(), LIGHT, {"e2e": 3.0})["layout"]


def test_the_knee_is_the_highest_load_within_the_limits() -> None:
    for curve in load.curves(result(), LIMITS):
        knee = curve.knee(limited=True)
        rows = [result()["runs"][at] for at in curve.places]
        kept = [meets(row, LIMITS) for row in rows]
        assert kept[: (knee + 1 if knee is not None else 0)] == [True] * (knee + 1 if knee is not None else 0)
        if knee is None or knee + 1 < len(kept):
            assert not kept[0 if knee is None else knee + 1]


@given(st.integers(1, 8), st.integers(1, 8), st.floats(2, 50))
def test_without_limits_the_knee_is_the_corner_of_a_curve_that_is_flat_and_then_steep(
    flat: int, steep: int, slope: float
) -> None:
    loads = list(range(flat + steep + 1))
    latencies = [1.0 + (slope * max(0, x - flat)) for x in loads]
    assert load.bend(loads, latencies) == flat


def test_a_straight_or_a_short_curve_has_no_knee() -> None:
    assert load.bend([1, 2], [1.0, 5.0]) is None
    assert load.bend([1, 2, 3], [4.0, 4.0, 4.0]) is None
    assert load.bend([1, 2, 3, 4], [1.0, 3.0, 3.5, 3.6]) is None


def test_of_several_seeds_the_worst_is_shown() -> None:
    made = sweep("default", grid={"rate": "2,8", "seed": "0,1,2"}, requests=30, jobs=1, max_num_seqs=4).result
    [curve] = load.curves(made, {})
    for rate, shown in zip(curve.loads, curve.latencies_s, strict=True):
        assert shown == max(row["e2e_s"]["p99"] for row in made["runs"] if row["point"]["rate"] == rate)
    assert "Of 3 seeds the worst" in load.words(made, {})


@pytest.mark.parametrize("quantity", list(quantities("ttft_p99")))
def test_the_map_is_cut_at_the_heaviest_load(quantity: str) -> None:
    shown = result()
    figure = heat.figure(shown, LIGHT, quantity)["data"][0]
    for up, line in zip(figure["y"], figure["customdata"], strict=True):
        for across, place in zip(figure["x"], line, strict=True):
            assert shown["runs"][place]["point"] == {"max_num_seqs": int(up), "policy": across, "rate": 64.0}
    assert "at rate 64" in heat.words(shown, quantity) or "No run has" in heat.words(shown, quantity)


def test_combinations_that_cannot_run_are_counted_and_not_drawn() -> None:
    made = sweep("default", grid={"num_blocks": "4,4000"}, requests=20, jobs=1).result
    assert [row["error"] is None for row in made["runs"]] == [False, True]
    assert "1 could not run" in front.words(made, {})
    assert [at for trace in front.figure(made, LIGHT, {})["data"] for at in trace.get("customdata", ())] == [1]


def test_what_was_not_varied_is_said_in_a_sentence() -> None:
    made = sweep("default", grid={"max_num_seqs": "2,4"}, requests=10, jobs=1).result
    assert "The load was not varied." in texts(load.figure(made, LIGHT, {}))
    assert "Two settings have to be varied." in texts(heat.figure(made, LIGHT, "throughput"))


def test_without_arrival_times_the_clients_are_the_load() -> None:
    made = sweep("default", grid={"concurrency": "1,2,8"}, requests=20, jobs=1).result
    assert load.load_axis(made) == "concurrency"
    assert load.figure(made, LIGHT, {})["layout"]["xaxis"]["title"]["text"] == "clients"
    assert math.isfinite(load.curves(made, {})[0].served[0] or math.nan)


def test_the_legends_name_what_is_drawn() -> None:
    figure = front.figure(result(), LIGHT, LIMITS)
    assert {name for name, _, _ in front.legend(figure)} >= {trace["name"] for trace in figure["data"]}
    drawn = load.figure(result(), LIGHT, LIMITS)["data"]
    lines = {trace["name"] for trace in drawn if trace["mode"] == "lines+markers"}
    assert lines == {"2, static", "2, chunked", "16, static", "16, chunked"}
    assert {name for name, _, _ in load.legend(result(), LIGHT, LIMITS)} == lines


def test_a_sweep_says_how_many_of_its_runs_were_extrapolated() -> None:
    fine: dict[str, Any] = {"point": {"rate": 1}, "error": None, "pareto": False, "output_tokens_per_s": 5.0}
    doubtful = {**fine, "extrapolated": {"steps": 3, "reason": "beyond"}}
    assert doubt({"runs": [fine, fine]}) == ""
    assert "1 of 2 runs have steps priced beyond" in doubt({"runs": [fine, doubtful]})
