"""Runs by key, and by nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dashboard.data import catalog
from dashboard.data.catalog import Catalog, given_traces, sample_traces
from dashboard.data.live_keys import Recent, live_key
from scheduler.errors import UserError
from traces.samples import sample_path

from .runs import random_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("static", "chunked"):
        shutil.copytree(sample_path(name), tmp_path / "mine" / f"{name}.trace")
    return tmp_path / "mine"


def test_a_folder_gives_the_traces_in_it_and_a_trace_itself(folder: Path) -> None:
    assert list(given_traces([folder])) == ["given-chunked", "given-static"]
    assert list(given_traces([folder / "static.trace"])) == ["given-static"]


def test_two_traces_of_one_name_get_two_keys(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "yours")
    keys = given_traces([folder, folder.parent / "yours"])
    assert list(keys) == ["given-chunked", "given-static", "given-chunked-2", "given-static-2"]


def test_a_path_that_holds_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds none"):
        given_traces([tmp_path])


@pytest.mark.parametrize("key", ["../../etc/passwd", "/etc", "given-nobody", "", "given-static/../static", "\x00"])
def test_a_key_is_looked_up_and_never_a_path(folder: Path, key: str) -> None:
    with pytest.raises(UserError, match="there is no run"):
        Catalog(given_traces([folder])).run(key)


def test_a_run_is_opened_once(folder: Path) -> None:
    runs = Catalog(given_traces([folder]))
    assert runs.run("given-static") is runs.run("given-static")


def test_runs_looked_at_long_ago_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Catalog(given_traces([folder]))
    first = runs.run("given-static")
    first.column("steps", "step")
    monkeypatch.setattr(catalog, "MOST_HELD_BYTES", 1)
    runs.run("given-chunked")
    assert runs.run("given-static") is not first


def test_samples_are_there_at_the_first_visit() -> None:
    assert {"sample-static", "sample-slots", "sample-orca", "sample-prefill-first", "sample-chunked"} <= set(
        sample_traces()
    )


def test_panels_of_one_moment_share_a_snapshot() -> None:
    taken = [random_run(1), random_run(2)]
    recent = Recent(lambda: taken.pop(0))
    assert recent() is recent()


def test_before_anything_came_a_live_run_says_so() -> None:
    with pytest.raises(UserError, match="nothing has come"):
        Recent(lambda: None)()


def test_a_live_key_tells_nothing_of_the_address() -> None:
    assert "secret" not in live_key("http://secret:1")
