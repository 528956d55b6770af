"""Tests of the fitted cost model: its prices, its range, what it refuses, and what its file may not say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError, InputError
from scheduler.plan import StepShape
from simulator.calibrate import calibrate, write_cost
from simulator.cli import simulate as command
from simulator.compare import compare
from simulator.costs import CostModel, make_cost_model
from simulator.costs.fit_terms import Curve, Terms, features_of
from simulator.costs.fitted import FittedCost
from simulator.costs.fitted_file import cost_file, read_cost_file
from simulator.run import simulate
from simulator.setup import Setup
from simulator.sweep import sweep
from tests.simulator.fitted_runs import LINE, mixed_workload, recorded_run
from traces.trace import Trace

SETTINGS: dict[str, Any] = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "num_blocks": 2000}


@pytest.fixture(scope="module")
def cost_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    write_cost(calibrate([recorded_run(folder)]), folder / "cost.json")
    return folder / "cost.json"


@pytest.fixture(scope="module")
def document(cost_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cost_path.read_text())
    return found


@pytest.fixture(scope="module")
def cost(document: dict[str, Any]) -> CostModel:
    return make_cost_model("fitted", fit=document)


def by_hand() -> dict[str, Any]:
    """A document with a term of each kind, whose prices can be worked out by hand."""
    curves = {
        "rows": {"knots": [0, 8], "slopes_s": [1e-3, 5e-4]},
        "logits_rows": {"knots": [0], "slopes_s": [1e-4]},
        "decodes": {"knots": [0], "slopes_s": [2e-4]},
        "prefills": {"knots": [0], "slopes_s": [3e-3]},
        "decode_context": {"knots": [0], "slopes_s": [1e-6]},
        "prefill_pairs": {"knots": [0], "slopes_s": [1e-7]},
        "prefill_context": {"knots": [0], "slopes_s": [2e-6]},
    }
    host = {"requests": {"knots": [0], "slopes_s": [1e-5]}, "prefills": {"knots": [0], "slopes_s": [1e-4]}}
    most = {
        "rows": [1, 512], "requests": [1, 64], "logits_rows": [1, 64], "decodes": [1, 64], "decode_context": [1, 10000],
        "mean_decode_context": [1, 1000], "prefills": [1, 4], "prefill_tokens": [2, 500], "prefill_context": [2, 4000],
        "prefill_pairs": [3, 1_000_000],
    }  # fmt: skip
    layout = {
        "steps": 100, "device": {"step_s": 5e-3, "curves": curves}, "host": {"step_s": 1e-3, "curves": host},
        "mean_over_fit": {"device": 1.1, "host": 1.0}, "kinds": {"decode": 90, "mixed": 5, "prefill": 5}, "range": most,
        "modes": {"async_scheduling": False, "captured_graphs": False},
    }  # fmt: skip
    model = Setup().build().cost_model.model
    assert model is not None
    return {
        "format": "batchscope cost", "version": 1, "model": model.as_dict(), "hardware": "NVIDIA A100-SXM4-80GB",
        "dtype": "bfloat16", "ops": "triton", "tensor_parallel": 1, "probe_s": None, "source": "measured",
        "layouts": {"ragged": layout},
    }  # fmt: skip


def test_price_is_the_sum_of_its_terms_times_mean_over_fit_and_slowdown() -> None:
    model = make_cost_model("fitted", fit=by_hand(), slowdown=2)
    shape = StepShape.of("ragged", [1, 1, 10], [9, 19, 5])  # 12 rows; decodes read 10 + 20; 15 positions, 105 pairs
    price = model.step_cost(shape)
    device_s = 5e-3 + 8e-3 + 4 * 5e-4 + 3 * 1e-4 + 2 * 2e-4 + 3e-3 + 30e-6 + 105e-7 + 15 * 2e-6
    assert price.device_s == pytest.approx(2 * 1.1 * device_s)
    assert price.host_s == pytest.approx(2 * (1e-3 + 3e-5 + 1e-4))
    undisturbed = make_cost_model("fitted", fit=by_hand(), mean=False).step_cost(shape)
    assert undisturbed.device_s == pytest.approx(device_s)
    assert model.extrapolation() is None


rows = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 2000)), min_size=1, max_size=40)


@given(rows)
def test_parts_sum_to_the_price(work: list[tuple[int, int]]) -> None:
    model = make_cost_model("fitted", fit=by_hand())
    price = model.step_cost(StepShape.of("ragged", [n for n, _ in work], [c for _, c in work]))
    assert set(price.breakdown()) == {"step", "gemm", "lm_head", "attention", "request", "host"}
    assert sum(price.breakdown().values()) == pytest.approx(price.device_s + price.host_s)


@given(rows)
def test_the_model_prices_as_its_terms_do(work: list[tuple[int, int]]) -> None:
    shape = StepShape.of("ragged", [n for n, _ in work], [c for _, c in work])
    fit = cost_file(by_hand(), "it").layouts["ragged"]
    price = make_cost_model("fitted", fit=by_hand()).step_cost(shape)
    told = features_of(shape)
    assert price.device_s == pytest.approx(1.1 * fit.device.seconds(told))
    assert price.host_s == pytest.approx(fit.host.seconds(told))


@given(rows, st.integers(0, 39), st.integers(1, 50))
def test_more_rows_and_longer_contexts_never_cost_less(work: list[tuple[int, int]], which: int, more: int) -> None:
    model = make_cost_model("fitted", fit=by_hand())
    new, context = [max(n, 2) for n, _ in work], [c for _, c in work]
    before = model.step_cost(StepShape.of("ragged", new, context)).device_s
    new[which % len(new)] += more
    longer = model.step_cost(StepShape.of("ragged", new, context)).device_s
    context[which % len(new)] += more
    assert before <= longer <= model.step_cost(StepShape.of("ragged", new, context)).device_s


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 200), st.integers(0, 50))
def test_a_curve_never_falls(slopes_s: list[float], value: int, more: int) -> None:
    curve = Curve((0, 1, 2, 4, 8, 16)[: len(slopes_s)], tuple(slopes_s))
    assert curve.seconds(value) <= curve.seconds(value + more)
    assert curve.seconds(0) == 0.0


def test_a_curve_goes_straight_between_its_knots() -> None:
    curve = Curve((0, 4, 8), (1.0, 0.5, 2.0))
    assert [curve.seconds(x) for x in (0, 2, 4, 6, 8, 10)] == [0, 2, 4, 5, 6, 10]
    assert Terms(3.0, {"rows": curve}).scaled(2).seconds({"rows": 6}) == 16


def test_a_run_is_predicted_from_a_fit_to_another(cost_path: Path) -> None:
    """Other requests and another policy: on a line, the prediction is exact."""
    workload = mixed_workload(60, seed=9)
    told = simulate(workload, cost=f"fitted:path={cost_path}", policy="orca", **SETTINGS)
    true = simulate(workload, cost=LINE, policy="orca", **SETTINGS)
    assert told.summary()["makespan_s"] == pytest.approx(true.summary()["makespan_s"], rel=1e-3)
    assert told.summary()["tpot_s"]["mean"] == pytest.approx(true.summary()["tpot_s"]["mean"], rel=1e-3)


def test_steps_beyond_the_range_are_counted_once_and_the_furthest_is_named() -> None:
    model = make_cost_model("fitted", fit=by_hand())
    inside = StepShape.of("ragged", [1] * 8, [100] * 8)
    model.step_cost(inside)
    assert model.extrapolation() is None
    padded = StepShape("ragged", 1024, 8, 8, 8, 808)
    price = model.step_cost(padded)
    assert model.padding_s(price, inside, "ragged") == pytest.approx(1.1 * (1024 - 8) * 5e-4)
    assert model.extrapolation() == {"steps": 1, "reason": "rows up to 1,024 in a step, fitted on at most 512"}
    model.step_cost(StepShape("ragged", 600, 8, 8, 8, 800))  # beyond, but not as far
    model.step_cost(StepShape.of("ragged", [1] * 4, [9999] * 4))
    found = model.extrapolation()
    assert found == {
        "steps": 3, "reason": "KV positions a decode up to 10,000 in a step, fitted on at most 1,000"
    }  # fmt: skip
    model.reset()
    assert model.extrapolation() is None


def test_what_was_never_seen_is_beyond_the_range() -> None:
    told = by_hand()
    told["layouts"]["ragged"]["kinds"]["mixed"] = 0
    model = make_cost_model("fitted", fit=told)
    model.step_cost(StepShape.of("ragged", [1, 9], [5, 0]))
    assert model.extrapolation() == {"steps": 1, "reason": "prefills and decodes in one step, fitted on none such"}
    for name in ("prefills", "prefill_tokens", "prefill_context", "prefill_pairs"):
        del told["layouts"]["ragged"]["range"][name]
    model = make_cost_model("fitted", fit=told)
    model.step_cost(StepShape.of("ragged", [9], [0]))
    found = model.extrapolation()
    assert found is not None
    assert found["reason"].endswith("fitted on none")


def test_beyond_the_range_is_said_in_the_trace_on_the_terminal_and_in_json(cost_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "far.trace"
    options = [
        "azure-conv",
        "--requests",
        "30",
        "--rate",
        "50",
        "--cost",
        f"fitted:path={cost_path}",
        "--num-blocks",
        "9000",
    ]
    shown = CliRunner().invoke(command, [*options, "--trace", str(out)], catch_exceptions=False)
    assert "extrapolated: " in shown.output
    assert "fitted on at most" in shown.output
    found = Trace.open(out).meta["extrapolation"]
    assert 0 < found["steps"] <= len(Trace.open(out).column("steps", "step"))
    spoken = CliRunner().invoke(command, [*options, "--json"], catch_exceptions=False)
    assert json.loads(spoken.output)["extrapolated"] == found


def test_model_and_device_are_those_of_the_file_unless_others_are_given(cost_path: Path) -> None:
    setup = Setup.of({"cost": f"fitted:path={cost_path}"})
    assert (setup.model, setup.hardware) == ("llama-3.1-8b", "a100-80gb")
    with pytest.raises(ConfigError, match=r"fitted to llama-3.1-8b \(32 layers.*; the model is opt-13b"):
        Setup.of({"cost": f"fitted:path={cost_path}", "model": "opt-13b"}).build()
    with pytest.raises(ConfigError, match="was fitted on a100-80gb; the hardware is h100"):
        Setup.of({"cost": f"fitted:path={cost_path}", "hardware": "h100"}).build()
    with pytest.raises(ConfigError, match="weights; weight_dtype is fp8"):
        Setup.of({"cost": f"fitted:path={cost_path}", "weight_dtype": "fp8"}).build()
    with pytest.raises(ConfigError, match="fitted with tensor_parallel 1; it is 2 here"):
        Setup.of({"cost": f"fitted:path={cost_path}", "tensor_parallel": 2}).build()


def test_a_device_without_a_sheet_needs_the_number_of_blocks(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    write_cost({**document, "hardware": "Abacus 3000"}, path)
    with pytest.raises(ConfigError, match=r"no hardware sheet of Abacus 3000.*give num_blocks"):
        Setup.of({"cost": f"fitted:path={path}"}).build()
    system = Setup.of({"cost": f"fitted:path={path}", "num_blocks": 100}).build()
    assert system.describe()["hardware"] == "Abacus 3000"


def test_another_layout_is_refused_before_anything_runs(cost_path: Path, tmp_path: Path) -> None:
    said: list[int] = []
    with pytest.raises(ConfigError, match="has no prices of the padded layout, which policy static uses"):
        compare(mixed_workload(10), policies=["chunked", "static"], cost=f"fitted:path={cost_path}",
                traces=tmp_path / "t", on_run=lambda: said.append(1), **SETTINGS)  # fmt: skip
    assert not said
    assert not (tmp_path / "t").exists()


def test_a_mode_that_was_not_recorded_makes_every_step_doubtful(cost_path: Path) -> None:
    trace = simulate(mixed_workload(10), cost=f"fitted:path={cost_path}", async_scheduling=True, **SETTINGS)
    steps = len(trace.column("steps", "step"))
    assert trace.meta["extrapolation"]["steps"] == steps
    assert trace.meta["extrapolation"]["reason"].startswith("async_scheduling is on, fitted with it off")
    trace = simulate(mixed_workload(10), cost=f"fitted:path={cost_path}", cudagraph_capture_sizes=(8, 32), **SETTINGS)
    assert "captured_graphs is on, fitted with it off" in trace.meta["extrapolation"]["reason"]


def test_a_trace_keeps_the_prices_themselves(cost_path: Path, document: dict[str, Any]) -> None:
    meta = simulate(mixed_workload(10), cost=f"fitted:path={cost_path},slowdown=1.5", **SETTINGS).meta
    assert meta["cost_model"]["options"] == {"path": str(cost_path), "mean": True, "slowdown": 1.5}
    assert meta["cost_model"]["fit"] == document
    again = make_cost_model("fitted", fit=meta["cost_model"]["fit"], slowdown=1.5)
    shape = StepShape.of("ragged", [1, 40], [5, 0])
    first = make_cost_model(f"fitted:path={cost_path},slowdown=1.5").step_cost(shape)
    assert again.step_cost(shape).device_s == first.device_s


def test_a_sweep_runs_again_when_the_file_has_changed(document: dict[str, Any], tmp_path: Path) -> None:
    ran: list[int] = []
    for factor in (1.0, 1.0, 2.0):
        told = copy.deepcopy(document)
        told["layouts"]["ragged"]["device"]["step_s"] *= factor
        write_cost(told, tmp_path / "cost.json")
        before = len(ran)
        sweep(mixed_workload(10), grid={"max_num_seqs": [8]}, cost=f"fitted:path={tmp_path / 'cost.json'}",
              num_blocks=2000, out=tmp_path / "runs.jsonl", jobs=1, on_run=lambda: ran.append(1))  # fmt: skip
        assert len(ran) - before == (0 if before and factor == 1.0 else 1)


def test_padding_is_priced_in_the_layout_that_pads(tmp_path: Path) -> None:
    write_cost(calibrate([recorded_run(tmp_path, policy="static", layout="padded")]), tmp_path / "cost.json")
    workload = mixed_workload(40, seed=4)
    told = simulate(workload, cost=f"fitted:path={tmp_path / 'cost.json'}", policy="static", **SETTINGS)
    true = simulate(workload, cost=LINE, policy="static", **SETTINGS)
    assert told.steps["padding_s"].sum() == pytest.approx(true.steps["padding_s"].sum(), rel=0.05)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (["format"], "soup", "format is 'soup'; expected 'batchscope cost'"),
        (["version"], 2, "version is '2'; expected 1"),
        (["model", "layers"], "many", "model.layers is 'many'; expected a whole number"),
        (["layouts"], {}, "expected at least one layout"),
        (["layouts", "spiral"], {}, "layouts has 'spiral'; expected padded, ragged"),
        (
            ["layouts", "ragged", "device", "step_s"],
            -1,
            r"layouts.ragged.device.step_s is '-1'; expected a number >= 0",
        ),
        (
            ["layouts", "ragged", "device", "curves", "rows", "knots"],
            [0, 4, 4],
            "expected 0 and whole numbers that rise",
        ),
        (["layouts", "ragged", "device", "curves", "rows", "slopes_s"], [1], "expected 2 slopes, one a knot"),
        (["layouts", "ragged", "device", "curves", "luck"], {}, "device.curves has 'luck'; expected rows"),
        (["layouts", "ragged", "range", "rows"], [9, 1], "expected the least and the greatest value"),
        (["layouts", "ragged", "modes", "captured_graphs"], 1, "expected true or false"),
        (["source"], "dreamt", "source is 'dreamt'; expected measured or simulated"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused(
    place: list[str], value: Any, sentence: str, tmp_path: Path
) -> None:
    document = copy.deepcopy(by_hand())
    inner = document
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=sentence) as refused:
        read_cost_file(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("field", ["format", "model", "layouts", "source"])
def test_a_missing_field_is_named(field: str) -> None:
    document = by_hand()
    del document[field]
    with pytest.raises(InputError, match=f"has no field {field}"):
        cost_file(document, "cost.json")


def test_what_is_no_cost_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("not JSON")
    with pytest.raises(InputError, match="is no JSON; expected a file of batchscope calibrate"):
        make_cost_model("fitted", path=str(tmp_path / "text.json"))
    with pytest.raises(InputError, match="cannot be read"):
        make_cost_model(f"fitted:path={tmp_path / 'none.json'}")
    with pytest.raises(ConfigError, match="needs path=FILE"):
        make_cost_model("fitted")
    with pytest.raises(ConfigError, match="slowdown is 0"):
        FittedCost(fit=by_hand(), slowdown=0)
