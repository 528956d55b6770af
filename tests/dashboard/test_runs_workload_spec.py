"""Workloads as pages describe them: the same requests as on the command line, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.runs.workload_spec import MOST_REQUESTS, workload_of
from scheduler.errors import ConfigError, UserError
from tests.conftest import ROOT
from traces.formats import read_workload
from traces.presets import resolve_workload
from traces.workload import Workload


def test_a_preset_is_the_command_lines(tmp_path: Path) -> None:
    made = workload_of({"kind": "preset", "name": "azure-conv", "requests": 50, "rate": 2.0}, seed=7)
    assert made.digest() == resolve_workload("azure-conv", requests=50, rate=2.0, seed=7).digest()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"requests": 20, "arrivals": "gamma:rate=5,cv=2", "prompt": "constant:512", "max_tokens": 64},
        {"requests": 30, "prefixes": "groups=4,length=240", "output": "zipf:a=1.2,max=300"},
        {"requests": 40, "sessions": "turns=3,max_context=8192"},
    ],
)
def test_generate_takes_the_words_and_defaults_of_the_command_line(tmp_path: Path, fields: dict[str, Any]) -> None:
    target = tmp_path / "made.jsonl"
    options = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "batchscope.py", "workload", "generate", str(target), "--seed", "3", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert workload_of({"kind": "generate", **fields}, seed=3).digest() == read_workload(target).digest()


def test_a_list_is_taken_as_written() -> None:
    spec = {"kind": "list", "arrival_s": [0, 0.5, 0.5], "prompt_tokens": [8, 9, 10], "output_tokens": [1, 2, 3]}
    made = workload_of(spec)
    assert made.arrival_s.tolist() == [0.0, 0.5, 0.5]
    assert made.prompt_tokens.tolist() == [8, 9, 10]
    assert made.output_tokens.tolist() == [1, 2, 3]


def test_a_mix_holds_all_requests_in_order_of_arrival_and_parts_do_not_move_together() -> None:
    part = {"kind": "generate", "requests": 50, "arrivals": "poisson:rate=4", "prompt": "constant:7"}
    listed = {"kind": "list", "arrival_s": [1.0], "prompt_tokens": [65535], "output_tokens": [9]}
    made = workload_of({"kind": "mix", "parts": [part, part, listed]})
    assert len(made) == 101
    assert np.all(np.diff(made.arrival_s) >= 0)
    assert len(np.unique(made.arrival_s)) == 101
    assert made.output_tokens[made.prompt_tokens == 65535].tolist() == [9]


class Shelf:
    """Uploads with one workload."""

    def workload(self, upload_id: str) -> Workload:
        if upload_id not in ("known", "E750fAKGdqN7ZCiyqUdFdQ", "x1e999-1234567890123456"):
            raise UserError("there is no such upload")
        return resolve_workload("default", requests=40)


def test_an_upload_is_looked_up_by_its_id_cut_and_stretched() -> None:
    made = workload_of({"kind": "upload", "id": "known", "requests": 10, "rate": 3.0}, Shelf())
    assert len(made) == 10
    assert made.rate_per_s == pytest.approx(3.0)
    for upload_id in ("E750fAKGdqN7ZCiyqUdFdQ", "x1e999-1234567890123456"):  # chance makes ids that look like numbers
        assert len(workload_of({"kind": "upload", "id": upload_id}, Shelf())) == 40
    with pytest.raises(UserError, match="no such upload"):
        workload_of({"kind": "upload", "id": "/etc/passwd"}, Shelf())


WRONG: list[tuple[Any, str]] = [
    (None, "workload is None"),
    ([], "expected a mapping"),
    ({}, "workload kind is None"),
    ({"kind": "file", "path": "/etc/passwd"}, "unknown workload kind 'file'"),
    ({"kind": "preset", "name": "/etc/passwd"}, "unknown preset '/etc/passwd'"),
    ({"kind": "preset", "name": "default", "path": "x"}, "unknown field of workload kind preset 'path'"),
    ({"kind": "preset", "name": "default", "requests": 0}, "requests is 0"),
    ({"kind": "preset", "name": "default", "requests": MOST_REQUESTS + 1}, "requests is 200001"),
    ({"kind": "preset", "name": "default", "requests": True}, "requests is True"),
    ({"kind": "preset", "name": "default", "rate": "fast"}, "rate is 'fast'"),
    ({"kind": "preset", "name": "default", "rate": float("nan")}, "rate is nan"),
    ({"kind": "generate", "prompt": "empirical:file=/etc/passwd"}, "no file is read here"),
    ({"kind": "generate", "output": " empirical :/etc/passwd"}, "no file is read here"),
    ({"kind": "generate", "arrivals": "poisson:rate=0"}, "arrival rate is 0"),
    ({"kind": "generate", "arrivals": "gamma:rate=1,cv=1e-200"}, "at most 12 digits"),
    ({"kind": "generate", "prompt": "constant:" + "9" * 200}, "at most 12 digits"),
    ({"kind": "generate", "arrivals": "poisson:" + "x" * 1000}, "at most 300 characters"),
    ({"kind": "generate", "prefixes": "groups=4"}, "needs length"),
    ({"kind": "generate", "prefixes": "groups=1,length=999999999"}, "tokens of shared content"),
    ({"kind": "generate", "prefixes": "groups=99999999999,length=16"}, "prefixes groups is 99999999999"),
    ({"kind": "generate", "sessions": "turns=3"}, "sessions has no max_context"),
    ({"kind": "generate", "sessions": "turns=99999999,max_context=1000"}, "sessions turns is 1e\\+08"),
    ({"kind": "generate", "requests": 200_000, "sessions": "turns=2,max_context=100000"}, "of shared content"),
    ({"kind": "upload", "id": "x"}, "upload is not known here"),
    ({"kind": "generate", "prompt": "lognormal:mean=5,sigma=1.e999"}, "at most 12 digits"),
    ({"kind": "list", "arrival_s": [1, 0], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}, "goes back in time"),
    ({"kind": "list", "arrival_s": [1], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}, "differ in length"),
    ({"kind": "list", "arrival_s": [0], "prompt_tokens": [0], "output_tokens": [1]}, "prompt_tokens is 0"),
    ({"kind": "list", "arrival_s": [0], "prompt_tokens": [10**5000], "output_tokens": [1]}, "over 100 digits"),
    ({"kind": "list", "arrival_s": [0] * 10_001, "prompt_tokens": [1], "output_tokens": [1]}, "list of 1 to 10,000"),
    ({"kind": "mix", "parts": []}, "parts is \\[\\]"),
    ({"kind": "mix", "parts": [{"kind": "mix", "parts": []}]}, "itself a mix"),
    ({"kind": "mix", "parts": [{"kind": "generate", "prefixes": "groups=1,length=16"}]}, "without shared content"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "sentence"), WRONG)
def test_what_is_wrong_is_named(spec: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        workload_of(spec)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
FIELDS = ("requests", "rate", "arrivals", "prompt", "output", "prefixes", "sessions", "max_tokens", "name", "parts",
          "arrival_s", "prompt_tokens", "output_tokens")  # fmt: skip


@settings(deadline=None)
@given(
    st.sampled_from(["preset", "generate", "upload", "list", "mix"]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4),
)
def test_whatever_a_page_sends_is_a_workload_or_one_sentence(kind: str, fields: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert len(workload_of({"kind": kind, **fields})) >= 1
