"""The recordings that ship with the project are sound, comparable, small, and tell nothing of the machine."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scheduler.errors import ConfigError
from scheduler.policies import policy_names
from simulator.rerun import rerun
from traces.check import check
from traces.record import record_of
from traces.same_plans import first_difference
from traces.samples import sample_names, sample_path
from traces.trace import Trace

TWIN = "chunked-simulated"
MEASURED = [name for name in sample_names() if name != TWIN]
MOST_BYTES, MOST_BYTES_ALL = 150_000, 1_000_000


def size(name: str) -> int:
    return sum(path.stat().st_size for path in sample_path(name).iterdir())


def test_there_is_one_of_every_policy_and_a_simulated_twin() -> None:
    assert set(MEASURED) == set(policy_names())
    assert TWIN in sample_names()


@pytest.mark.parametrize("name", sample_names())
def test_it_is_finished_and_keeps_every_law(name: str) -> None:
    trace = Trace.open(sample_path(name))
    assert trace.status == "finished"
    assert check(trace) == ([], {})


@pytest.mark.parametrize("name", MEASURED)
def test_it_was_measured_under_the_policy_of_its_name(name: str) -> None:
    meta = Trace.open(sample_path(name)).meta
    assert (meta["source"], meta["policy"], meta["model"]) == ("measured", name, "embedded")


def test_the_twin_is_simulated_under_the_same_settings() -> None:
    twin, measured = (Trace.open(sample_path(name)).meta for name in (TWIN, "chunked"))
    assert twin["source"] == "simulated"
    ends = {"eos_token_ids": None}  # the engine's are the model's; lengths are the workload's in both
    assert {**twin["config"], **ends} == {**measured["config"], **ends}


def test_all_serve_the_same_workload() -> None:
    traces = [Trace.open(sample_path(name)) for name in sample_names()]
    assert len({trace.meta["workload"]["digest"] for trace in traces}) == 1
    for column in ("prompt_tokens", "output_tokens"):
        lengths = [trace.columns("requests")[column] for trace in traces]
        assert all(np.array_equal(lengths[0], other) for other in lengths)


@pytest.mark.parametrize("name", MEASURED)
def test_the_scheduler_still_decides_as_it_did_when_it_was_recorded(name: str) -> None:
    trace = Trace.open(sample_path(name))
    assert first_difference(trace, rerun(trace)) is None


def test_something_happens_in_them() -> None:
    records = {name: record_of(Trace.open(sample_path(name))) for name in sample_names()}
    assert records["chunked"]["preemptions"] > 0
    assert records[TWIN]["preemptions"] > 0
    assert records["chunked"]["cached_tokens"] > 0
    assert records["static"]["padding_fraction"] > 0


@pytest.mark.parametrize("name", sample_names())
def test_it_is_small_and_its_meta_names_no_path_and_no_host(name: str) -> None:
    assert size(name) < MOST_BYTES
    text = (sample_path(name) / "meta.json").read_text(encoding="utf-8")
    assert not re.search(r'"/|[A-Za-z]:\\\\|/(home|root|tmp|work|opt|usr)/|host_?name', text)


def test_all_together_are_small() -> None:
    assert sum(map(size, sample_names())) < MOST_BYTES_ALL


def test_an_unknown_sample_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown sample 'chunk'.*did you mean 'chunked'"):
        sample_path("chunk")
