"""The What-if address: form and query undo each other, and a link gives the very runs it was made of."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.look import RUN_NAMES
from dashboard.runs.request import RunRequest
from dashboard.runs.workload_spec import workload_of
from dashboard.scenario import Variant, scenarios
from dashboard.what_if.query import FIELDS, FIRST, Form, fields_of, link, of_requests, of_scenario, parse, write
from dashboard.what_if.settings import SHARED, Setting, settings
from dashboard.what_if.words import KINDS, canonical, part_of, part_text
from scheduler.config import SchedulerConfig
from simulator.setup import SYSTEM_SETTINGS, Setup

LABELS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=12)
SPECS: list[dict[str, Any]] = [
    {"kind": "preset", "name": "default"},
    {"kind": "preset", "name": "azure-conv", "requests": 500, "rate": 4.25},
    {"kind": "upload", "id": "abcdefghijklmnopqrstuv", "requests": 10},
    {"kind": "generate", "requests": 7, "arrivals": "gamma:rate=5,cv=2", "prompt": "zipf:a=1.2,max=900",
     "output": "uniform:low=1,high=9", "prefixes": "groups=2,length=240", "max_tokens": 64},
    {"kind": "list", "arrival_s": [0, 0.5], "prompt_tokens": [512, 65535], "output_tokens": [64, 64]},
    {"kind": "mix", "parts": [{"kind": "generate", "requests": 2}, {"kind": "list", "arrival_s": [1.0],
                                                                   "prompt_tokens": [5], "output_tokens": [5]}]},
]  # fmt: skip


def value_of(setting: Setting) -> st.SearchStrategy[Any]:
    """Values as the setting takes them."""
    if setting.choices:
        return st.sampled_from(setting.choices)
    return {
        bool: st.booleans(),
        int: st.integers(0, 10**9),
        float: st.floats(0, 1e6),
        tuple: st.lists(st.integers(1, 512), max_size=5).map(tuple),
    }[setting.kind]


def some_settings(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: value_of(settings()[name]) for name in names})


SPEC = st.sampled_from(SPECS).map(canonical)
VARIANT = st.builds(
    Variant, LABELS, some_settings(list(settings())), st.none() | SPEC, st.none() | st.integers(1, 1000)
)


@st.composite
def forms(draw: st.DrawFn) -> Form:
    variants = draw(st.lists(VARIANT, min_size=1, max_size=4))
    plain = [replace(v, label=RUN_NAMES[at]) if draw(st.booleans()) else v for at, v in enumerate(variants)]
    return Form(
        draw(SPEC),
        draw(some_settings(list(SHARED))),
        tuple(plain),
        draw(st.integers(0, 2**40)),
        draw(st.none() | st.integers(1, 500)),
        draw(st.floats(0, 1e4)),
    )


@given(forms())
def test_a_form_comes_back_from_its_address(form: Form) -> None:
    assert parse(write(form)) == form


@given(forms())
def test_a_form_comes_back_as_a_web_server_reads_its_address(form: Form) -> None:
    found = {name: values[0] for name, values in parse_qs(urlsplit(write(form)).query).items()}
    assert parse(found) == form
    assert write(parse(found)) == write(form)


@given(st.dictionaries(st.sampled_from([*FIELDS, *settings(), "A.policy", "B.label", "D.workload", "run"]), st.text()))
def test_any_address_gives_a_form_whose_address_gives_it_again(query: dict[str, str]) -> None:
    form = parse(query)
    assert parse(write(form)) == form


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda each: each.key)
def test_a_scenario_is_one_short_field_and_asks_for_its_own_runs(scenario: Any) -> None:
    form = of_scenario(scenario)
    assert fields_of(form) == {"scenario": scenario.key}
    assert parse(write(form)) == form
    for mine, asked in zip(form.requests(), scenario.requests_of(), strict=True):
        ours, theirs = RunRequest.of(mine), RunRequest.of(asked)
        assert Setup.of(ours.settings).build().config == Setup.of(theirs.settings).build().config
        assert (ours.label, ours.seed, ours.concurrency) == (theirs.label, theirs.seed, theirs.concurrency)
        assert workload_of(ours.workload).digest() == workload_of(theirs.workload).digest()


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda each: each.key)
def test_a_scenario_that_was_changed_stands_in_full(scenario: Any) -> None:
    form = replace(of_scenario(scenario), seed=7)
    assert "workload" in fields_of(form)
    assert parse(write(form)) == form


def test_an_empty_address_is_the_first_form_and_foreign_fields_do_not_matter() -> None:
    assert parse("") == parse("?utm_source=x") == FIRST
    assert parse(write(FIRST)) == FIRST


def test_a_link_holds_what_the_variants_share_once() -> None:
    made = link({"kind": "preset", "name": "default"}, {"A": {"policy": "static", "max_num_seqs": 2},
                                                        "B": {"policy": "chunked", "max_num_seqs": 2}})  # fmt: skip
    assert made == "/what-if?workload=default&max_num_seqs=2&A.policy=static&B.policy=chunked"


def test_a_workload_may_be_written_as_json() -> None:
    form = parse({"workload": '{"kind":"generate","requests":3,"output":"constant:5"}', "A.policy": "static"})
    assert workload_of(form.workload).output_tokens.tolist() == [5, 5, 5]


@given(forms())
def test_stored_requests_give_back_the_form_that_asked_for_them(form: Form) -> None:
    requests = form.requests()
    asked = of_requests(requests).requests()
    for ours, theirs in zip(asked, requests, strict=True):
        assert ours["settings"] == {**theirs["settings"], **ours["settings"]}
        assert (ours["workload"], ours["seed"]) == (theirs["workload"], theirs["seed"])
        assert ours.get("concurrency") == theirs.get("concurrency") or theirs.get("concurrency") is None


def test_no_field_of_an_address_is_also_a_setting() -> None:
    assert not set(FIELDS) & set(settings())
    assert set(settings()) == {field.name for field in fields(SchedulerConfig)} | set(SYSTEM_SETTINGS)


@given(st.sampled_from(list(settings().values())).flatmap(lambda each: st.tuples(st.just(each), value_of(each))))
def test_a_value_comes_back_from_what_people_type(pair: tuple[Setting, Any]) -> None:
    setting, value = pair
    assert setting.value(setting.text(value)) == value


@pytest.mark.parametrize(("part", "text"), [
    ("arrivals", "poisson:rate=8"), ("arrivals", "all-at-once"), ("arrivals", "bursts:rate=40,on=1,off=3"),
    ("prompt", "constant:value=512"), ("output", "lognormal:mean=200,sigma=0.8,max=1024"),
    ("prefixes", "groups=1,length=240"), ("sessions", "turns=3,max_context=32768"), ("prefixes", ""),
])  # fmt: skip
def test_a_part_of_a_generated_workload_keeps_its_spelling(part: str, text: str) -> None:
    assert part_text(part, *part_of(part, text)) == text
    assert part in KINDS


def test_one_workload_has_one_spelling() -> None:
    short = {"kind": "generate", "requests": 9, "prompt": "constant:5", "output": "lognormal:mean=9,sigma=1,min=1"}
    long = {"kind": "generate", "requests": 9, "prompt": "constant:value=5", "output": "lognormal:sigma=1,mean=9.0"}
    assert canonical(short) == canonical(long)
    assert workload_of(canonical(short)).digest() == workload_of(short).digest()
