"""The scenarios load, run on the real simulator, and answer in the direction of their source or of theory."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dashboard.panels import PANELS
from dashboard.runs.request import RunRequest
from dashboard.runs.workload_spec import workload_of
from dashboard.scenario import FOLDER, Expectation, figure_of, load_scenario, scenario_named, scenarios
from scheduler.errors import ConfigError
from simulator.run import simulate
from traces.record import record_of

KEYS = [path.stem.partition("-")[2] for path in sorted(FOLDER.glob("*.yaml"))]


@cache
def records(key: str) -> dict[str, dict[str, Any]]:
    """Label -> record of each run of a scenario."""
    return {request["label"]: record(request) for request in scenario_named(key).requests_of()}


def record(request: dict[str, Any]) -> dict[str, Any]:
    workload = workload_of(request["workload"], seed=request["seed"])
    load = {"seed": request["seed"], "concurrency": request.get("concurrency")}
    return record_of(simulate(workload, **load, **request["settings"]))


def test_there_are_twelve_in_the_order_of_their_numbers() -> None:
    assert [scenario.key for scenario in scenarios()] == KEYS
    assert [path.name[:3] for path in sorted(FOLDER.glob("*.yaml"))] == [f"{n:02}-" for n in range(1, 13)]


@pytest.mark.parametrize("key", KEYS)
def test_the_answer_has_the_direction_of_its_source(key: str) -> None:
    assert [each.failure(records(key)) for each in scenario_named(key).expect] == [None] * len(
        scenario_named(key).expect
    )


@pytest.mark.parametrize("key", KEYS)
def test_every_variant_is_a_request_that_the_queue_of_runs_takes(key: str) -> None:
    for request in scenario_named(key).requests_of():
        RunRequest.of(request).check()


@pytest.mark.parametrize("key", KEYS)
def test_all_requests_of_every_variant_are_served(key: str) -> None:
    assert all(each["finished"] == each["requests"] for each in records(key).values())


def test_the_panels_to_watch_exist() -> None:
    assert {key for scenario in scenarios() for key in scenario.watch} <= set(PANELS)


def test_whoever_comes_later_shares_all_full_blocks_of_the_prefix() -> None:
    later = scenario_named("block-size").workload["requests"] - 1
    cached = [each["cached_tokens"] for each in records("block-size").values()]
    assert cached == [later * (240 // block * block) for block in (16, 64, 784)]


def test_nine_rows_in_a_graph_of_sixteen_pad_seven_rows_a_decode_step() -> None:
    prefill_rows, decode_steps = 9 * 128, 127  # the prefill step is larger than any graph
    share = 7 * decode_steps / (prefill_rows + 16 * decode_steps)
    assert records("graph-sizes")["every 8"]["padding_fraction"] == pytest.approx(share)


def test_a_naive_batch_takes_as_many_steps_as_its_longest_member_has_tokens() -> None:
    request = scenario_named("naive-or-continuous").requests_of()[2]
    outputs = workload_of(request["workload"], seed=request["seed"]).output_tokens
    slots = request["settings"]["max_num_seqs"]
    assert records("naive-or-continuous")[request["label"]]["steps"] == outputs.reshape(-1, slots).max(axis=1).sum()


def test_one_slot_takes_a_step_for_every_output_token() -> None:
    assert records("ten-at-once")["one after the other"]["steps"] == 10 * 256
    assert records("ten-at-once")["together"]["steps"] == 256


def test_variants_of_one_workload_serve_the_same_requests() -> None:
    for scenario in scenarios():
        made = [workload_of(request["workload"]) for request in scenario.requests_of()]
        same = [w for w, variant in zip(made, scenario.variants, strict=True) if variant.workload is None]
        assert len({w.digest() for w in same}) == 1


@pytest.mark.parametrize(
    ("expectation", "figures", "sentence"),
    [
        (Expectation("x", ("a", "b")), {"a": 1, "b": 2}, None),
        (Expectation("x", ("a", "b")), {"a": 2, "b": 2}, "x of b is 2, of the one before it 2"),
        (Expectation("x", ("a", "b"), by_at_least=3), {"a": 1, "b": 2}, "x of b is 2, of the one before it 1"),
        (Expectation("x", ("a", "b"), at_most_by=1.5), {"a": 1, "b": 2}, "x of b is 2, of the one before it 1"),
        (Expectation("x", of="a", at_most=0), {"a": 0}, None),
        (Expectation("x", of="a", at_most=0), {"a": 1}, "x of a is 1"),
    ],
)
def test_an_expectation_says_what_does_not_hold(
    expectation: Expectation, figures: dict[str, int], sentence: str | None
) -> None:
    assert expectation.failure({label: {"x": value} for label, value in figures.items()}) == sentence


def test_a_figure_that_a_run_does_not_have_is_named() -> None:
    assert figure_of({"ttft_s": {"p99": np.float64(2.0)}}, "ttft_s.p99") == 2.0
    with pytest.raises(ConfigError, match=r"figure ttft_s\.p98 is None"):
        figure_of({"ttft_s": {"p99": 2.0}}, "ttft_s.p98")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "title": ({"title": ""}, "title is ''; expected a text"),
    "source": ({"source": "http://somewhere"}, "source is 'http://somewhere'; expected an https address"),
    "model": ({"model": "llama-9"}, "unknown model 'llama-9'"),
    "setting": ({"settings": {"max_num_seq": 4}}, "unknown setting 'max_num_seq'"),
    "value": ({"settings": {"max_num_seqs": 0}}, "max_num_seqs is 0; expected a whole number >= 1"),
    "field": ({"wacht": []}, "unknown field of a scenario 'wacht' (did you mean 'watch'?)"),
    "one": ({"variants": [{"label": "a"}]}, "variants has the labels ['a']; expected 2 to 4 different ones"),
    "label": ({"expect": [{"figure": "x", "order": ["a", "c"]}]}, "unknown label in expect 'c'"),
    "unclear": ({"expect": [{"figure": "x", "of": "a"}]}, "expect of x is unclear"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_file_is_named_with_its_field(tmp_path: Path, name: str) -> None:
    change, sentence = MISTAKES[name]
    good = yaml.safe_load((FOLDER / "02-ten-at-once.yaml").read_text(encoding="utf-8"))
    wrong = {**good, "variants": [{"label": "a"}, {"label": "b"}], "expect": [], **change}
    wrong["expect"] = wrong["expect"] or [{"figure": "makespan_s", "order": ["a", "b"]}]
    if name == "one":
        wrong["expect"] = [{"figure": "makespan_s", "of": "a", "at_most": 1}]
    path = tmp_path / "01-wrong.yaml"
    path.write_text(yaml.safe_dump(wrong), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_scenario(path)
    assert str(error.value).startswith(f"01-wrong.yaml: {sentence}")


def test_a_missing_field_and_broken_yaml_are_named(tmp_path: Path) -> None:
    path = tmp_path / "01-wrong.yaml"
    path.write_text("title: nothing else", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"01-wrong\.yaml: a scenario has no question, source"):
        load_scenario(path)
    path.write_text("title: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"01-wrong\.yaml, line 1: not valid YAML"):
        load_scenario(path)


def test_an_unknown_scenario_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown scenario 'blocksize'.*did you mean 'block-size'"):
        scenario_named("blocksize")
