"""Tests of calibration: a known line comes back, outliers do not move it, and what cannot be fitted is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import ConfigError, InputError
from scheduler.plan import StepShape
from simulator.calibrate import calibrate, write_cost
from simulator.calibration_fit import design as design_of
from simulator.calibration_fit import fit, knots_of, prices
from simulator.calibration_layout import Steps, enough
from simulator.cli_calibrate import calibrate as command
from simulator.costs import make_cost_model
from simulator.costs.fit_terms import DEVICE, Curve, Terms, features, features_in
from simulator.costs.fitted_file import cost_file
from simulator.run import simulate
from tests.simulator.fitted_runs import (
    CONTEXT_S,
    HOST_REQUEST_S,
    HOST_S,
    LINE,
    LOGITS_S,
    STEP_S,
    TOKEN_S,
    recorded_run,
    with_seconds,
)
from traces.samples import sample_names, sample_path
from traces.trace import Trace
from traces.workload import Workload

MEASURED = [name for name in sample_names() if name != "chunked-simulated"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def fitted(run: Path) -> dict[str, Any]:
    return calibrate([run])


def terms_of(layout: dict[str, Any], part: str) -> Terms:
    """The typical step's terms, without mean over fit."""
    curves = {name: Curve(tuple(c["knots"]), tuple(c["slopes_s"])) for name, c in layout[part]["curves"].items()}
    return Terms(layout[part]["step_s"], curves)


def check_line(ragged: dict[str, Any], within: float) -> None:
    """Every step has a row and a logits row at least, so that what the first of each costs is part of a step."""
    device, host = ragged["device"], ragged["host"]
    assert device["step_s"] == pytest.approx(STEP_S + TOKEN_S + LOGITS_S, rel=within)
    assert device["curves"]["rows"]["slopes_s"][1:] == pytest.approx(
        [TOKEN_S] * (len(device["curves"]["rows"]["knots"]) - 1), rel=within, abs=within * LOGITS_S
    )
    assert device["curves"]["decode_context"]["slopes_s"] == pytest.approx([CONTEXT_S], rel=within)
    assert device["curves"]["prefill_pairs"]["slopes_s"] == pytest.approx([CONTEXT_S], rel=within)
    assert device["curves"]["logits_rows"]["slopes_s"][1:] == pytest.approx(
        [LOGITS_S] * (len(device["curves"]["logits_rows"]["knots"]) - 1), rel=within
    )
    assert host["step_s"] == pytest.approx(HOST_S, rel=within)
    assert host["curves"]["requests"]["slopes_s"] == pytest.approx([HOST_REQUEST_S], rel=within)


def test_a_run_on_a_line_gives_the_line_back(fitted: dict[str, Any]) -> None:
    ragged = fitted["layouts"]["ragged"]
    check_line(ragged, 1e-3)
    assert ragged["mean_over_fit"]["device"] == pytest.approx(1.0, abs=1e-4)
    assert ragged["residuals"]["all"]["median_size"] < 1e-4
    assert ragged["cross_validation"]["folds"] == "blocks"
    assert ragged["cross_validation"]["median_size"] < 1e-3
    assert ragged["cut"]["steps"] == 0.0


def test_steps_that_took_ten_times_as_long_do_not_move_the_terms(run: Path, tmp_path: Path) -> None:
    def slower(device_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        hit = np.random.default_rng(3).random(len(device_s)) < 0.03
        hit[:3] = True  # warm-up
        return np.where(hit, 10 * device_s, device_s)

    copy = with_seconds(run, tmp_path / "slow.trace", slower)
    hit = Trace.open(copy).column("steps", "device_s") > 2 * Trace.open(run).column("steps", "device_s")
    ragged = calibrate([copy])["layouts"]["ragged"]
    device = ragged["device"]
    assert device["step_s"] == pytest.approx(STEP_S + TOKEN_S + LOGITS_S, rel=0.01)
    for name, slope_s in {"rows": TOKEN_S, "decode_context": CONTEXT_S, "prefill_pairs": CONTEXT_S}.items():
        assert device["curves"][name]["slopes_s"][-1] == pytest.approx(slope_s, rel=0.01)
    told, true_s = features_in(Trace.open(run).columns("steps")), Trace.open(run).column("steps", "device_s")
    assert prices(told, terms_of(ragged, "device")) == pytest.approx(true_s, rel=0.015)
    assert ragged["cut"]["steps"] == pytest.approx(hit.mean())
    # of ten times as much, three times enter the mean
    device_s = Trace.open(run).column("steps", "device_s")
    assert ragged["mean_over_fit"]["device"] == pytest.approx(1 + 2 * device_s[hit].sum() / device_s.sum(), rel=0.01)


def test_a_machine_that_others_slow_down_half_of_the_time_is_seen_through(run: Path, tmp_path: Path) -> None:
    def held_up(device_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(11)
        busy = np.repeat(rng.random(len(device_s) // 20 + 1) < 0.4, 20)[: len(device_s)]
        times = rng.normal(1.0, 0.05, len(device_s)) * np.where(
            busy, rng.choice([1.6, 1.8, 3.0, 6.0], len(device_s)), 1
        )
        return device_s * times

    layout = calibrate([with_seconds(run, tmp_path / "busy.trace", held_up)])["layouts"]["ragged"]
    columns = Trace.open(run).columns("steps")
    ratio = prices(features_in(columns), terms_of(layout, "device")) / columns["device_s"]
    assert 0.9 < np.median(ratio) < 1.1
    assert np.percentile(np.abs(ratio / np.median(ratio) - 1), 95) < 0.04
    assert layout["mean_over_fit"]["device"] > 1.3


def test_scatter_of_a_tenth_leaves_prices_within_a_percent_and_is_told(run: Path, tmp_path: Path) -> None:
    def scattered(device_s: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return device_s * np.random.default_rng(5).normal(1.0, 0.1, len(device_s)).clip(0.5, 1.5)

    copy = with_seconds(run, tmp_path / "noisy.trace", scattered)
    ragged = calibrate([copy])["layouts"]["ragged"]
    true_s = Trace.open(run).column("steps", "device_s").sum()
    priced = cost_file(calibrate([copy]), "it").layouts["ragged"]
    columns = Trace.open(run).columns("steps")
    assert prices(features_in(columns), priced.device).sum() * priced.mean_over_fit[0] == pytest.approx(
        true_s, rel=0.01
    )
    # the median size of a normal error is 0.6745 standard deviations
    assert ragged["residuals"]["all"]["median_size"] == pytest.approx(0.0675, rel=0.15)


def with_probe(path: Path, slowness: np.ndarray[Any, Any]) -> Path:
    """Let the trace tell of a probe at the end of each step that took so many tenths of a second."""
    ends_s = Trace.open(path).column("steps", "t_end_s").tolist()
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(
        json.dumps({**meta, "probe": {"t_s": ends_s, "seconds": (0.1 * slowness).tolist()}})
    )
    return path


def test_a_probe_beside_the_steps_takes_the_machines_drift_out(run: Path, tmp_path: Path) -> None:
    count = len(Trace.open(run).steps)
    slowness = np.linspace(0.8, 1.2, count)
    slow = with_seconds(run, tmp_path / "slow.trace", lambda device_s: device_s * slowness)
    without = calibrate([slow])
    document = calibrate([with_probe(slow, slowness)])
    assert document["probe_s"] == pytest.approx(0.1, rel=0.02)
    assert without["probe_s"] is None

    def worst(document: dict[str, Any]) -> float:
        residuals = document["layouts"]["ragged"]["residuals"]["all"]
        return max(abs(residuals["p5"]), abs(residuals["p95"]))

    assert worst(document) < 0.05 < 0.15 < worst(without)
    known_s = STEP_S + TOKEN_S + LOGITS_S + 20 * CONTEXT_S
    model = make_cost_model("fitted", fit=document)
    found_s = model.step_cost(StepShape.of("ragged", [1], [19])).device_s
    assert found_s == pytest.approx(known_s * document["probe_s"] / 0.1, rel=0.02)


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_each_layout_has_prices_of_its_own(layout: str, tmp_path: Path) -> None:
    runs = [recorded_run(tmp_path, name, layout=name, requests=60) for name in ("padded", "ragged")]
    both, alone = calibrate(runs)["layouts"], calibrate([tmp_path / f"{layout}.trace"])["layouts"]
    assert both[layout] == alone[layout]
    assert sorted(both) == ["padded", "ragged"]


def test_several_runs_are_held_out_one_by_one(run: Path, tmp_path: Path) -> None:
    other = recorded_run(tmp_path, "other", seed=2, policy="slots")
    held = calibrate([run, other])["layouts"]["ragged"]["cross_validation"]
    assert held["folds"] == "traces"
    assert len(held["total"]) == 2
    assert max(map(abs, held["total"])) < 1e-3


def test_the_same_traces_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write_cost(calibrate([run]), tmp_path / name)
    text = (tmp_path / "a.json").read_bytes()
    assert text == (tmp_path / "b.json").read_bytes()
    assert text == (json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def test_the_file_says_what_it_was_fitted_to(fitted: dict[str, Any], run: Path) -> None:
    assert fitted["source"] == "simulated"
    (source,) = fitted["sources"]
    assert source["source"] == "simulated"
    assert source["trace"] == run.name
    assert source["steps"] == fitted["layouts"]["ragged"]["steps"] == len(Trace.open(run).column("steps", "step"))
    assert fitted["model"]["name"] == "llama-3.1-8b"
    assert fitted["async_scheduling"] == [False]
    rows = Trace.open(run).column("steps", "computed_tokens")
    assert fitted["layouts"]["ragged"]["range"]["rows"] == [rows.min(), rows.max()]


@pytest.mark.parametrize("name", MEASURED)
def test_every_sample_recording_can_be_calibrated(name: str) -> None:
    document = calibrate([sample_path(name)])
    cost_file(document, name)
    (layout,) = document["layouts"].values()
    assert document["source"] == "measured"
    assert abs(layout["residuals"]["all"]["p50"]) < 0.15
    assert layout["cross_validation"]["median_size"] < 0.5


def test_sample_recordings_of_one_machine_make_one_cost() -> None:
    document = calibrate([sample_path(name) for name in ("static", "orca")])
    assert sorted(document["layouts"]) == ["padded", "ragged"]
    assert document["layouts"]["ragged"]["cross_validation"]["median_size"] < 0.3


def test_runs_of_different_things_are_refused_with_both_named(run: Path, tmp_path: Path) -> None:
    other = recorded_run(tmp_path, "other", model="llama-3-70b", hardware="h200", tensor_parallel=8, requests=40)
    with pytest.raises(ConfigError, match=rf"{run} has model llama-3.1-8b, {other} has llama-3-70b"):
        calibrate([run, other])
    h100 = recorded_run(tmp_path, "h100", hardware="h100", requests=40)
    with pytest.raises(ConfigError, match=r"has hardware a100-80gb, .* has h100"):
        calibrate([run, h100])
    mode = recorded_run(tmp_path, "async", async_scheduling=True, requests=40)
    with pytest.raises(ConfigError, match=r"has async_scheduling False, .* has True"):
        calibrate([run, mode])
    with pytest.raises(ConfigError, match="hold the same steps; give each recording once"):
        calibrate([run, run])


def test_too_few_or_too_uniform_steps_are_refused(tmp_path: Path) -> None:
    few = tmp_path / "few.trace"
    simulate(Workload(np.zeros(1), np.array([8]), np.array([12])), out=few, cost=LINE, num_blocks=100)
    with pytest.raises(InputError, match=r"few.trace: the ragged layout has 12 steps; expected at least 20"):
        calibrate([few])
    static = Steps({"rows": np.ones(30, dtype=np.int64)}, np.ones(30), np.ones(30), np.zeros(30, dtype=np.int64))
    assert "one shape only" in str(enough(static))
    with pytest.raises(ConfigError, match="no trace to calibrate from"):
        calibrate([])


def test_a_trace_whose_sums_do_not_hold_is_refused(run: Path, tmp_path: Path) -> None:
    import pandas as pd

    copy = with_seconds(run, tmp_path / "wrong.trace", lambda device_s: device_s)
    steps = pd.read_parquet(copy / "steps.parquet")
    steps.loc[5, "computed_tokens"] += 1
    steps.to_parquet(copy / "steps.parquet", index=False)
    with pytest.raises(InputError, match=r"computed_tokens is .*; expected the sum of its parts"):
        calibrate([copy])


def test_the_command_prints_writes_and_speaks_json(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    told = CliRunner().invoke(command, [str(run), "-o", str(out)], catch_exceptions=False)
    assert told.exit_code == 0
    assert "a logits row" in told.output
    assert "held out (blocks)" in told.output
    spoken = CliRunner().invoke(command, [str(run), "--json"], catch_exceptions=False)
    assert json.loads(spoken.output) == json.loads(out.read_text())


def test_knots_stand_only_where_steps_tell_a_slope() -> None:
    values = np.repeat([1, 2, 3, 100, 300], [50, 20, 20, 20, 4])
    assert knots_of(values) == (0, 1, 2, 4)  # 100 and 300 are one piece: 300 was seen too rarely for one of its own


counts = st.integers(0, 300)


@settings(max_examples=25)
@given(st.lists(st.tuples(counts, counts, st.integers(0, 3), st.floats(1e-4, 1.0)), min_size=12, max_size=60))
def test_terms_are_never_negative_whatever_was_measured(steps: list[tuple[int, int, int, float]]) -> None:
    decodes, context, prefills = (np.array([s[at] for s in steps], dtype=np.int64) for at in range(3))
    tokens = prefills * 7
    told = features(
        decodes + tokens + 1,
        decodes + prefills,
        decodes + prefills,
        decodes,
        decodes + context,
        tokens,
        tokens,
        tokens * 4,
    )
    terms = fit(design_of(told, DEVICE), np.array([s[3] for s in steps]))
    assert terms.step_s >= 0
    assert all(slope_s >= 0 for curve in terms.curves.values() for slope_s in curve.slopes_s)
