"""What a page may ask for: the command line's own sentences, and no way to files or code."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.runs.request import RunRequest, checked_grid, checked_settings
from scheduler.errors import ConfigError, UserError
from simulator.setup import SCHEDULER_SETTINGS, SYSTEM_SETTINGS
from tests.conftest import ROOT
from tests.dashboard.test_runs_workload_spec import JSON

DEFAULT = {"kind": "preset", "name": "default"}


def request(**fields: Any) -> RunRequest:
    return RunRequest.of({"workload": DEFAULT, **fields})


def test_a_request_is_the_same_after_json() -> None:
    asked = request(settings={"cudagraph_capture_sizes": [1, 2, 4]}, label="A", seed=3, concurrency=4, explain=True)
    assert RunRequest.of(json.loads(json.dumps(asked.as_dict()))).as_dict() == json.loads(json.dumps(asked.as_dict()))


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"max_num_seqs": 0}, ["--max-num-seqs", "0"]),
        ({"policy": "chunkd"}, ["--policy", "chunkd"]),
        ({"model": "lama-3.1-8b"}, ["--model", "lama-3.1-8b"]),
        ({"hardware": "h1000"}, ["--hardware", "h1000"]),
        ({"cost": "linear:token=1"}, ["--cost", "linear:token=1"]),
        ({"model": "llama-3.1-70b", "hardware": "a100-40gb"}, ["--model", "llama-3.1-70b", "--hardware", "a100-40gb"]),
        ({"tensor_parallel": 3}, ["--tensor-parallel", "3"]),
        ({"num_blocks": 1}, ["--num-blocks", "1"]),
    ],
)
def test_a_wrong_setting_has_the_sentence_of_the_command_line(settings: dict[str, Any], option: list[str]) -> None:
    command = [sys.executable, "batchscope.py", "simulate", *option]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert printed.returncode == 2
    with pytest.raises(ConfigError) as told:
        request(settings=settings).check()
    assert str(told.value) in printed.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "os:system"},
        {"policy": "antigravity:x"},
        {"cost": "os:path"},
        {"cost": "recorded:file=/etc/passwd"},
        {"cost": "fitted:path=cost.txt"},
        {"cost": "linear:step_s=0.01,fitted:slowdown=1,path=cost"},
        {"cost": "profile:dir=tables"},
        {"cost": "linear:step_s=../../x"},
        {"model": "/etc"},
        {"model": "./models"},
        {"model": "~root"},
        {"model": "../x"},
        {"model": "config.json"},
        {"model": "a/b/c"},
    ],
)
def test_no_setting_loads_code_or_reads_a_file(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a name that this dashboard offers"):
        checked_settings(settings)
    with pytest.raises(ConfigError, match="expected a name that this dashboard offers"):
        checked_grid({name: [value, value] for name, value in settings.items()})
    with pytest.raises(ConfigError, match="expected a name that this dashboard offers"):
        checked_grid(settings)


def test_a_folder_of_a_models_name_is_not_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("secret")
    monkeypatch.chdir(tmp_path)
    assert checked_settings({"model": "my-model"}).model == "my-model"  # the worker, in a folder of its own, refuses it
    assert checked_grid({"model": ["my-model"]}) == {"model": ["my-model"]}


def test_whoever_runs_the_dashboard_may_offer_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from scheduler.policies.chunked import Chunked\nclass Mine(Chunked):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    checked_settings({"policy": "mine:Mine"}, allowed=["mine:Mine"])
    with pytest.raises(ConfigError):
        checked_settings({"policy": "mine:Other"}, allowed=["mine:Mine"])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "train"}, "unknown kind of run 'train'"),
        ({"settings": []}, "settings is \\[\\]; expected a mapping"),
        ({"seed": -1}, "seed is -1"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"think_s": 1.0}, "give concurrency too"),
        ({"think_s": "x"}, "think_s is 'x'"),
        ({"explain": 1}, "explain is 1; expected true or false"),
        ({"label": 3}, "label is 3"),
        ({"command": "ls"}, "unknown field of a run 'command'"),
        ({"concurrency": 4, "workload": {**DEFAULT, "rate": 2.0}}, "concurrency and rate contradict each other"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        request(**fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"grid": {}}, "the grid is empty"),
        ({"grid": {"max_num_seqs": "1:500:1"}}, "500 combinations; expected at most 400"),
        ({"grid": {"max_num_seqs": "log:1:1e99999:2"}}, "at most 12 digits"),
        ({"grid": {"seats": [1]}}, "unknown setting in the grid 'seats'"),
        ({"grid": {"max_num_seqs": [8]}, "latency": "slowest"}, "unknown latency figure"),
        ({"grid": {"max_num_seqs": [[1]]}}, "max_num_seqs"),
    ],
)
def test_a_wrong_grid_is_named(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        request(kind="sweep", **fields).check()


def test_a_label_is_one_line_of_text() -> None:
    assert request(label="  <script>alert(1)</script>\n\x00 ").label == "<script>alert(1)</script>"
    assert len(request(label="x" * 500).label) == 120


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*SYSTEM_SETTINGS, *SCHEDULER_SETTINGS]), JSON, max_size=3))
def test_whatever_a_page_sets_is_taken_or_one_sentence(chosen: dict[str, Any]) -> None:
    for kind, field in (("simulate", "settings"), ("sweep", "grid")):
        with suppress(UserError):
            request(kind=kind, **{field: chosen}).check()
