from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.errors import ConfigError, InputError
from simulator.bounds import BOUNDS, part_shares
from simulator.explain import describe, explain, explain_case, simulated_case
from simulator.knobs import knobs_for
from simulator.run import simulate
from simulator.setup import Setup
from traces.recorder import TraceRecorder
from traces.trace import Trace
from traces.workload import Workload

from .cases import even, one_slot

UNEVEN = Workload(np.zeros(64), np.full(64, 256), np.where(np.arange(64) % 8, 4, 300))
"""A batch of which one row in eight goes on long after the others have ended."""

CASES: dict[str, dict[str, Any]] = {
    "arrivals": {"workload": even(10, 5.0, prompt=64, output=40)},
    "padding": {"workload": UNEVEN, "policy": "static", "cost": "linear:step_s=0.001,token_s=0.001"},
    "host": {"workload": even(50, 0.0, output=30), "cost": "linear:step_s=0.005,host_s=0.02"},
    "blocks": {"workload": even(60, 0.02, prompt=64, output=64), "num_blocks": 24},
    "seqs": {"workload": even(60, 0.05, prompt=64, output=40), "max_num_seqs": 4},
    "tokens": {"workload": even(100, 0.02, prompt=200, output=20), "max_num_batched_tokens": 64},
    "batch-closed": {"workload": even(40, 0.25, prompt=100, output=40), "policy": "static", "layout": "ragged"},
    "compute": {"workload": even(30, 0.0, prompt=4000, output=2)},
    "attention": {"workload": even(48, 0.0, prompt=3000, output=600), "cost": "linear:step_s=0.005,context_s=1e-6"},
    "weights": {"workload": even(4, 1.0, prompt=32, output=100), "concurrency": 1},
}
KNOBS = {
    "arrivals": ("rate", 0.2, 0.4),
    "padding": ("policy", "static", "chunked"),
    "host": ("async_scheduling", False, True),
    "blocks": ("num_blocks", 24, 48),
    "seqs": ("max_num_seqs", 4, 8),
    "tokens": ("max_num_batched_tokens", 64, 128),
    "batch-closed": ("policy", "static", "chunked"),
    "compute": ("tensor_parallel", 1, 2),
    "weights": ("concurrency", 1, 2),
}


@pytest.mark.parametrize("bound", CASES)
def test_a_case_made_for_a_bound_is_found_to_have_it(bound: str) -> None:
    found = explain(**CASES[bound])
    assert found.bound == bound
    assert BOUNDS[bound] in found.text
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False)) == found.as_dict()
    if bound in KNOBS:
        name, before, after = KNOBS[bound]
        assert found.knob == {"name": name, "before": pytest.approx(before), "after": pytest.approx(after)}
        assert found.after is not None
        assert (found.after["output_tokens_per_s"] or 0) > (found.before["output_tokens_per_s"] or 0)


def test_memory_bounds_long_contexts_on_a_roofline_device_too() -> None:
    """20 sequences of 20,000 tokens of 128 KiB: 52 GB of KV a decode step against 16 GB of weights."""
    found = explain(even(20, 0.0, prompt=20000, output=900), hardware="h200", max_num_batched_tokens=32768)
    assert found.bound == "attention"
    assert found.knob is not None
    assert found.knob["name"] == "kv_dtype"


def test_the_figures_before_and_after_are_those_of_real_runs() -> None:
    found = explain(even(40, 0.5), **one_slot())
    assert found.knob == {"name": "max_num_seqs", "before": 1, "after": 2}
    for seqs, figures in ((1, found.before), (2, found.after)):
        summary = simulate(even(40, 0.5), **{**one_slot(), "max_num_seqs": seqs}).summary()
        assert figures is not None
        assert figures["output_tokens_per_s"] == summary["output_tokens_per_s"]
        assert figures["e2e_p99"] == summary["e2e_s"]["p99"]


def test_a_knob_that_does_not_help_is_said_to() -> None:
    found = explain(even(30, 0.0, prompt=4000, output=2), hardware="a100-80gb")
    assert [knob["name"] for knob in found.tried] == ["weight_dtype", "tensor_parallel"]  # no fp8 units on an A100
    assert found.knob is not None
    assert found.knob["name"] == "tensor_parallel"


def test_a_bound_without_a_knob_says_so() -> None:
    found = explain(even(30, 0.0, prompt=400, output=2), cost="linear:step_s=0.0001,token_s=0.001")
    assert (found.bound, found.knob, found.after) == ("compute", None, None)
    assert "No setting that we know of" in found.text


def test_a_server_that_keeps_up_is_said_to() -> None:
    assert "keeps up with its arrivals" in explain(even(10, 5.0)).text
    assert "falls behind its arrivals" in explain(even(60, 0.1), **one_slot()).text


def test_the_same_run_is_explained_in_the_same_words() -> None:
    assert explain(**CASES["seqs"]).text == explain(**CASES["seqs"]).text


def test_a_recorded_run_is_explained_as_the_simulated_one(tmp_path: Path) -> None:
    workload, settings = even(60, 0.05, prompt=64, output=40), {"max_num_seqs": 4}
    simulate(workload, out=tmp_path / "a.trace", **settings)
    live, recorded = explain(workload, **settings), explain(tmp_path / "a.trace", requests_from=workload)
    assert recorded.text == live.text
    assert (recorded.before, recorded.after, recorded.knob) == (live.before, live.after, live.knob)


def test_without_the_workload_the_knob_is_named_but_not_simulated(tmp_path: Path) -> None:
    workload = even(60, 0.05, prompt=64, output=40)
    simulate(workload, out=tmp_path / "a.trace", max_num_seqs=4, concurrency=20)  # when they came is the run's doing
    found = explain(tmp_path / "a.trace")
    assert found.knob == {"name": "max_num_seqs", "before": 4, "after": 8}
    assert explain(tmp_path / "a.trace", requests_from=workload).after is not None
    assert found.after is None
    assert "not simulated, because the workload was not given" in found.text


def test_a_trace_that_tells_all_about_its_requests_needs_no_workload(tmp_path: Path) -> None:
    workload = even(60, 0.05, prompt=64, output=40)
    simulate(workload, out=tmp_path / "a.trace", max_num_seqs=4)
    assert explain(tmp_path / "a.trace").after == explain(workload, max_num_seqs=4).after


def test_another_workload_than_the_traces_is_refused(tmp_path: Path) -> None:
    simulate(even(20, 0.05), out=tmp_path / "a.trace")
    with pytest.raises(ConfigError, match="is not the one of this trace"):
        explain(tmp_path / "a.trace", requests_from=even(21, 0.05))


def test_settings_beside_a_trace_are_refused(tmp_path: Path) -> None:
    simulate(even(20, 0.05), out=tmp_path / "a.trace")
    with pytest.raises(ConfigError, match="max_num_seqs: the settings of a recorded run are in its trace"):
        explain(tmp_path / "a.trace", max_num_seqs=4)


def test_what_is_neither_a_workload_nor_a_trace_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        explain(tmp_path / "nothing.trace")


@pytest.mark.parametrize("settings", [{}, {"cost": "linear:step_s=0.01,token_s=1e-5,context_s=1e-7,host_s=0.001"}])
def test_the_parts_of_the_time_add_up(settings: dict[str, Any]) -> None:
    trace = simulate("default", **settings)
    shares = part_shares(trace, Setup.of(settings).build().cost_model)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0


def test_a_linear_run_is_split_exactly() -> None:
    """100 decodes of one request: 0.01 s fixed and 0.002 s of host each, no attention."""
    settings = {"cost": "linear:step_s=0.01,host_s=0.002"}
    shares = part_shares(simulate(even(1, 1.0, output=100), **settings), Setup.of(settings).build().cost_model)
    assert shares == pytest.approx({"compute": 0, "attention": 0, "weights": 10 / 12, "host": 2 / 12, "other": 0})


def test_without_a_cost_model_device_and_host_stay_whole() -> None:
    trace = simulate(even(1, 1.0, output=10), cost="linear:step_s=0.03,host_s=0.01")
    assert part_shares(trace, None) == pytest.approx(
        {"compute": 0, "attention": 0, "weights": 0, "host": 0.25, "other": 0.75}
    )


@pytest.mark.parametrize("bound", BOUNDS)
def test_knobs_change_something_and_can_be_applied(bound: str) -> None:
    setup = Setup.of({"policy": "static"})
    for knob in knobs_for(bound, setup, None, even(5, 1.0)):
        assert knob.before != knob.after
        assert (knob.applied(setup) == setup) is (knob.name in ("rate", "concurrency"))


def test_every_bound_has_a_case_but_the_one_that_needs_a_run_without_a_cost_model() -> None:
    assert {*CASES, "device"} == {*BOUNDS}


@pytest.mark.parametrize("bound", CASES)
def test_a_description_is_the_explanation_without_its_knob(bound: str) -> None:
    case = simulated_case(CASES[bound]["workload"], *_setup_and_load(CASES[bound]))
    assert case.setup is not None
    described, explained = describe(case.trace, case.setup.build().cost_model), explain_case(case)
    assert (described.bound, described.evidence) == (explained.bound, explained.evidence)
    assert explained.text.startswith(f"{described.text} ")
    assert "knob" not in described.text


def _setup_and_load(case: dict[str, Any]) -> tuple[Setup, int | None]:
    settings = {name: value for name, value in case.items() if name not in ("workload", "concurrency")}
    return Setup.of(settings), case.get("concurrency")


def test_without_a_cost_model_a_run_is_bound_by_its_device_not_by_a_part_of_it() -> None:
    trace = simulate(even(4, 0.0, output=10), cost="linear:step_s=0.03,host_s=0.01")
    described = describe(trace)
    assert described.bound == "device"
    assert "its time goes to the device 75%, the host 25%" in described.text


def test_a_run_without_steps_cannot_be_described(tmp_path: Path) -> None:
    TraceRecorder(tmp_path / "a.trace", {"policy": "chunked", "layout": "ragged"}, slots_total=1).close()
    with pytest.raises(InputError, match="nothing to explain"):
        describe(Trace.open(tmp_path / "a.trace"))
