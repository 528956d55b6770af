"""The diagnosis: the words of `explain` without a knob, for measured, simulated, live and empty runs."""

from __future__ import annotations

import pytest

from dashboard.parts.diagnosis import description_of, diagnosis, evidence
from simulator.explain import Description, explain

from .runs import SAMPLES, random_run, sample
from .test_summary import _all, _text


def test_a_simulated_run_is_described_as_explain_does(tmp_path: object) -> None:
    found = description_of(sample("chunked-simulated"))
    assert isinstance(found, Description)
    assert "streaming weights" in found.text  # its own cost model split the device's time
    assert found.bound == "blocks"


@pytest.mark.parametrize("name", ["chunked", "static", "orca"])
def test_a_measured_run_is_described_in_explains_own_words(name: str) -> None:
    found, explained = description_of(sample(name)), explain(SAMPLES / f"{name}.trace")
    assert isinstance(found, Description)
    assert explained.text == f"{found.text} The run was measured, not simulated, so no knob was tried."
    assert "knob" not in _text(diagnosis(sample(name)))


def test_shares_are_listed_largest_first_and_parts_add_up() -> None:
    found = description_of(sample("chunked"))
    assert isinstance(found, Description)
    listed = dict(evidence(found.evidence))
    assert listed["Step time on the device"] == f"{found.evidence['parts']['other']:.1%}"
    device_s, host_s = (sample("chunked").column("steps", name).sum() for name in ("device_s", "host_s"))
    assert listed["Step time on the host"] == f"{host_s / (device_s + host_s):.1%}"
    assert len(_all(diagnosis(sample("chunked")), "Dt")) == len(listed)


def test_a_live_run_is_told_to_wait() -> None:
    assert _text(diagnosis(random_run(5))) == "A live run is diagnosed when it has ended."
