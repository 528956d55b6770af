"""`batchscope profile` on the real engine: what its traces cover, that features vary on their own, and its mistakes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend import Engine
from backend.probe import EVERY_S, Probe
from backend.profile import PARTS, design_of, profile
from backend.profile_grid import powers_of_two, shuffled
from backend.rounds import Ask, Round
from batchscope import main
from scheduler.config import SchedulerConfig
from tests.backend.small_models import save_small_llama
from traces.probes import probes_of, steadiness
from traces.sound import open_checked
from traces.trace import Trace

SETTINGS: dict[str, Any] = {
    "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256, "num_blocks": 500,
}  # fmt: skip
RAGGED = PARTS["ragged"][0]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_llama(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


@pytest.fixture(scope="module")
def profiled(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Trace]]:
    folder = tmp_path_factory.mktemp("profiled")
    record = profile(small_model, out=folder, repeats=1, threads=1, **SETTINGS)
    return record, {name: open_checked(folder / f"{name}.trace") for name in ("ragged", "padded", "static")}


def requests_of(asked: Round) -> tuple[Ask, ...]:
    return (*asked.first, *asked.then)


def test_the_design_depends_on_settings_and_seed_alone() -> None:
    config = SchedulerConfig(**SETTINGS)
    once, again, other = (design_of(RAGGED, config, seed) for seed in (5, 5, 6))
    assert once == again
    assert once[1] != other[1]
    assert shuffled(once[1], 2, 5) == shuffled(again[1], 2, 5)


def test_each_repeat_has_all_rounds_in_another_order() -> None:
    rounds = design_of(RAGGED, SchedulerConfig(**SETTINGS), 0)[1]
    order = shuffled(rounds, 2, 0)
    first, second = order[: len(rounds)], order[len(rounds) :]
    assert first != second
    assert set(first) == set(second) == set(rounds)


def test_a_profile_records_sound_finished_measured_traces(
    profiled: tuple[dict[str, Any], dict[str, Trace]],
) -> None:
    record, traces = profiled
    assert record["missing"] == 0
    for name, trace in traces.items():
        assert trace.status == "finished"
        assert trace.meta["source"] == "measured"
        assert trace.meta["profile"]["part"] == name
        assert trace.meta["layout"] == ("ragged" if name == "ragged" else "padded")
        assert int(trace.column("steps", "preempted").sum()) == 0
    assert [told["steps"] for told in record["traces"]] == [len(trace.steps) for trace in traces.values()]


@pytest.mark.parametrize("name", ["ragged", "padded", "static"])
def test_every_power_of_two_of_decodes_and_the_longest_context_are_seen(
    profiled: tuple[dict[str, Any], dict[str, Trace]], name: str
) -> None:
    steps = profiled[1][name].steps
    decodes = steps[steps["prefill_rows"] == 0]
    assert set(powers_of_two(8)) <= set(decodes["decode_rows"])
    mean = decodes["decode_context"] / decodes["decode_rows"]
    assert mean.max() == 256 - 1
    assert mean.min() <= 16


def test_decodes_of_unequal_contexts_are_seen(profiled: tuple[dict[str, Any], dict[str, Trace]]) -> None:
    trace = profiled[1]["ragged"]
    steps = trace.steps
    full = steps[(steps["prefill_rows"] == 0) & (steps["decode_rows"] == 8)]["step"]
    spreads = {int(np.ptp([computed for _, _, computed, _, _ in trace.plan_at(step)])) for step in full}
    assert min(spreads) == 0
    assert max(spreads) >= 128


def test_prompts_of_every_size_come_alone_several_at_once_and_beside_decodes(
    profiled: tuple[dict[str, Any], dict[str, Trace]],
) -> None:
    steps = profiled[1]["ragged"].steps
    prefills = steps["num_reqs"] - steps["decode_rows"]
    alone = steps[(prefills == 1) & (steps["decode_rows"] == 0)]
    assert set(powers_of_two(64)) - {1} <= set(alone["computed_tokens"])
    assert len(alone[(alone["sampled"] == 0) & (alone["computed_tokens"] == 64)])
    assert len(steps[(prefills >= 4) & (steps["decode_rows"] == 0)])
    mixed = steps[(prefills >= 1) & (steps["decode_rows"] >= 1)]
    assert len(mixed) > 40
    assert mixed["computed_tokens"].max() == 64


def test_histories_come_out_of_the_prefix_cache_as_designed(
    profiled: tuple[dict[str, Any], dict[str, Trace]],
) -> None:
    trace = profiled[1]["ragged"]
    config = SchedulerConfig(**SETTINGS, eos_token_ids=(7, 11, 19))
    asked = shuffled(design_of(RAGGED, config, 0)[1], 1, 0)
    wanted = {
        f"{one.kind}-{n}.{i}": ask.history for n, one in enumerate(asked) for i, ask in enumerate(requests_of(one))
    }
    cached = trace.requests.set_index("name")["cached_tokens"]
    assert {name: int(cached[name]) for name in wanted} == wanted


def test_rows_of_the_rectangle_burn_on_after_their_end(profiled: tuple[dict[str, Any], dict[str, Trace]]) -> None:
    assert int(profiled[1]["static"].column("steps", "padding_finished_row").sum()) > 0
    assert int(profiled[1]["static"].column("steps", "padding_prompt").sum()) > 0


def features(trace: Trace) -> np.ndarray[Any, np.dtype[np.float64]]:
    names = ["computed_tokens", "num_reqs", "prefill_context", "prefill_pairs", "decode_context"]
    columns = trace.columns("steps", names)
    return np.stack([np.ones(len(columns["num_reqs"])), *(columns[name].astype(float) for name in names)], axis=1)


@pytest.mark.parametrize("name", ["ragged", "padded"])
def test_no_feature_of_the_steps_is_nearly_a_sum_of_others(
    profiled: tuple[dict[str, Any], dict[str, Trace]], name: str
) -> None:
    design = features(profiled[1][name])
    scaled = design / np.linalg.norm(design, axis=0)
    assert np.linalg.cond(scaled) < 20
    correlation = np.corrcoef(design[:, [1, 2, 3, 5]].T)
    assert np.abs(correlation - np.eye(4)).max() < 0.7


def test_the_probe_ran_all_over_the_profile_and_not_on_its_clock(
    profiled: tuple[dict[str, Any], dict[str, Trace]],
) -> None:
    for trace in profiled[1].values():
        times_s, seconds = probes_of(trace)
        ends_s = trace.column("steps", "t_end_s")
        assert len(seconds) >= 1
        assert np.isin(times_s, ends_s).all()
        starts_s = trace.column("steps", "t_start_s")[np.searchsorted(ends_s, times_s[:-1]) + 1]
        assert (np.diff(times_s) >= EVERY_S).all()
        assert (starts_s - times_s[:-1] >= 0).all()
        told = steadiness(trace)
        assert told["min_s"] <= told["median_s"] <= told["max_s"]


def test_a_probe_beside_an_engine_takes_none_of_its_time(tmp_path: Path, small_model: Path) -> None:
    with Probe(small_model, threads=1) as probe:
        slow = probe.once
        probe.once = lambda: slow() + (time.sleep(0.2) or 0.0)  # type: ignore[method-assign]  # a probe that takes long
        start_s = time.perf_counter()
        with Engine(small_model, threads=1, trace=tmp_path / "x.trace", **SETTINGS) as engine:
            seconds = probe.beside(engine)
            while len(seconds) < 2:
                engine.generate([[5, 6]] * 3)
            asked_s = engine.now()
        took_s = time.perf_counter() - start_s
    assert engine.trace is not None
    assert took_s - asked_s >= 0.4
    steps = engine.trace.steps
    assert ((steps["t_end_s"] - steps["t_start_s"]) - steps["device_s"] - steps["host_s"]).abs().max() < 1e-9
    assert probes_of(engine.trace)[1].tolist() == seconds


def test_steps_planned_ahead_have_no_probe(small_model: Path) -> None:
    with Engine(small_model, threads=1, async_scheduling=True, **SETTINGS) as engine, pytest.raises(RuntimeError):
        engine.off_the_clock()


def test_a_trace_without_a_probe_says_so(tmp_path: Path, small_model: Path) -> None:
    with Engine(small_model, threads=1, trace=tmp_path / "x.trace", **SETTINGS) as engine:
        engine.generate([[5, 6]])
    assert engine.trace is not None
    assert steadiness(engine.trace)["runs"] == 0


def test_a_probe_measures_on_an_engine_of_its_own(small_model: Path) -> None:
    with Probe(small_model, threads=1) as probe:
        assert 0 < probe.once() < 10


@pytest.mark.parametrize("options", [{"async_scheduling": True}, {"enable_prefix_caching": False}])
def test_other_modes_of_the_engine_are_profiled_alike(
    small_model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = tmp_path / "p"
    profile(small_model, out=folder, layouts=["ragged"], minutes=0.005, threads=1, **SETTINGS, **options)
    trace = open_checked(folder / "ragged.trace")
    assert trace.status == "finished"
    assert {name: trace.meta["config"][name] for name in options} == options
    assert set(trace.requests["finish_reason"]) == {"length"}
    assert bool(steadiness(trace)["runs"]) != ("async_scheduling" in options)


def test_when_the_time_is_up_it_stops_and_tells_what_is_missing(
    small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "short"
    small = ["--max-num-seqs", "4", "--num-blocks", "50", "--max-model-len", "64", "--max-num-batched-tokens", "32"]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "profile",
                "-o",
                str(out),
                "--model",
                str(small_model),
                "--minutes",
                "0.0001",
                "--threads",
                "1",
                "--json",
                *small,
            ]
        )
    assert not ended.value.code
    said = capsys.readouterr()
    record = json.loads(said.out)
    assert [trace["trace"] for trace in record["traces"]] == ["ragged.trace", "padded.trace", "static.trace"]
    assert all(trace["run"] >= 1 for trace in record["traces"])
    total = sum(trace["rounds"] * 2 for trace in record["traces"])
    assert record["missing"] == total - sum(trace["run"] for trace in record["traces"])
    assert f"time was up; {record['missing']:,} of {total:,} rounds are missing" in said.err
    assert open_checked(out / "ragged.trace").meta["profile"]["missing"] == record["traces"][0]["missing"]


def test_ctrl_c_keeps_what_was_recorded(small_model: Path, tmp_path: Path) -> None:
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(small_model, out=tmp_path / "p", layouts=["ragged"], threads=1, on_round=stop, **SETTINGS)
    trace = open_checked(tmp_path / "p" / "ragged.trace")
    assert trace.status == "stopped"
    assert len(trace.steps)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layouts", "raged"], "did you mean 'ragged'"),
        (["--layouts", ","], "no layout is given"),
        (["--repeats", "0"], "repeats is 0"),
        (["--minutes", "0"], "minutes is 0"),
        (["--minutes", "nan"], "minutes is nan"),
        (["--model", "embeded"], "did you mean embedded"),
        (["--device", "cuda:9"], "device is 'cuda:9'"),
        (["--max-num-seqs", "0"], "max_num_seqs is 0"),
        (["--max-model-len", "100000"], "max_model_len is 100000"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p"
    with pytest.raises(SystemExit) as ended:
        main(["profile", "-o", str(out), "--threads", "1", *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for out, said in ((tmp_path / "file", "a file of that name exists"), (tmp_path / "a" / "b", "there is no folder")):
        with pytest.raises(SystemExit) as ended:
            main(["profile", "-o", str(out), "--threads", "1"])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
