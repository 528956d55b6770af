"""Runs on disk: whose they are, how long they stay, and that no id reaches beyond their folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.runs.folders import Folders, UnknownId
from dashboard.runs.store import CUT_SHORT, RunStore
from scheduler.errors import UserError

REQUEST = {"workload": {"kind": "preset", "name": "default"}, "label": "a run"}


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs")
    yield opened
    opened.close()


def test_a_run_is_kept_as_it_was_asked_for(store: RunStore) -> None:
    run = store.get(store.create("anna", REQUEST).id)
    assert (run.request, run.label, run.state) == (REQUEST, "a run", "queued")


def test_ids_are_128_bits_from_the_systems_randomness_and_all_different(store: RunStore) -> None:
    ids = {store.create("anna", REQUEST).id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(run_id) == 22 for run_id in ids)  # 128 bits take 22 letters of 6 bits


@pytest.mark.parametrize(
    "asked",
    ["", ".", "..", "../../etc/passwd", "/etc/passwd", "a/../../b", "x" * 22 + "/..", ".lock", "\0" * 22, "é" * 22,
     "x" * 21 + "\n", "x" * 100_000, None, 3, ["x" * 22], b"x" * 22],
)  # fmt: skip
def test_what_is_no_id_is_refused_and_touches_no_file(
    store: RunStore, asked: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.runs.store.read_json", lambda path: pytest.fail(f"read {path}"))
    with pytest.raises(UnknownId, match="there is no run of this id"):
        store.get(asked)


def test_an_id_nobody_was_given_is_unknown(store: RunStore) -> None:
    with pytest.raises(UnknownId):
        store.get("x" * 22)


def test_a_list_shows_ones_own_runs_newest_first_and_a_link_shows_anybody_the_run(tmp_path: Path) -> None:
    clock = Clock()
    store = RunStore(tmp_path, clock=clock)
    ids = []
    for owner in ("anna", "berta", "anna"):
        clock.now_s += 1
        ids.append(store.create(owner, REQUEST).id)
    assert [run.id for run in store.own("anna")] == [ids[2], ids[0]]
    assert [run.id for run in store.own("berta")] == [ids[1]]
    assert store.get(ids[0]).request == REQUEST
    store.close()


def test_only_the_owner_removes_a_run_and_not_while_it_runs(store: RunStore) -> None:
    run = store.create("anna", REQUEST)
    with pytest.raises(UnknownId, match="somebody else's"):
        store.remove(run.id, "berta")
    with pytest.raises(UserError, match="cancel it"):
        store.remove(run.id, "anna")
    store.set_state(run.id, "done")
    store.remove(run.id, "anna")
    assert not run.folder.exists()
    with pytest.raises(UnknownId):
        store.get(run.id)


def test_the_owners_token_is_never_written_down(store: RunStore) -> None:
    run = store.create("a-secret-cookie", REQUEST)
    assert not any("a-secret-cookie" in file.read_text() for file in run.folder.iterdir())


def test_runs_survive_a_restart_and_those_cut_short_have_failed(tmp_path: Path) -> None:
    first = RunStore(tmp_path)
    done, running, queued = (first.create("anna", REQUEST) for _ in range(3))
    first.set_state(done.id, "done")
    first.set_state(running.id, "running")
    (running.folder / "run.trace").mkdir()
    first.close()
    second = RunStore(tmp_path)
    assert [second.get(run.id).state for run in (done, running, queued)] == ["done", "failed", "failed"]
    assert second.get(running.id).sentence == CUT_SHORT
    assert not (running.folder / "run.trace").exists()
    assert {run.id for run in second.own("anna")} == {done.id, running.id, queued.id}
    second.close()


def test_two_dashboards_never_share_a_folder(tmp_path: Path) -> None:
    first = RunStore(tmp_path)
    with pytest.raises(UserError, match="another dashboard uses"):
        RunStore(tmp_path)
    first.close()
    RunStore(tmp_path).close()


def test_a_root_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot hold the dashboard's runs"):
        RunStore(tmp_path / "file" / "runs")


def test_a_folder_that_was_never_finished_goes_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / ("x" * 22)).mkdir()
    RunStore(tmp_path).close()
    assert not (tmp_path / ("x" * 22)).exists()


def test_what_is_not_ours_in_the_root_stays_and_a_link_there_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "request.json").write_text(json.dumps({"owner": "", "created_s": 0, "about": {}}))
    root = tmp_path / "runs"
    root.mkdir()
    (root / ("x" * 22)).symlink_to(other)
    (root / "notes.txt").write_text("mine")
    store = RunStore(root, max_age_s=0)
    store.evict(1e12)
    store.close()
    assert (other / "request.json").exists()
    assert (root / "notes.txt").read_text() == "mine"


def test_a_failed_fill_leaves_nothing(tmp_path: Path) -> None:
    folders = Folders(tmp_path, "upload")

    def fail(folder: Path) -> dict[str, str]:
        (folder / "half").write_text("x")
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        folders.create("anna", {}, fail)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    folders.close()


def filled_with(size: int) -> Callable[[Path], dict[str, str]]:
    """What puts a file of so many bytes into a folder."""

    def fill(folder: Path) -> dict[str, str]:
        (folder / "data").write_bytes(b"x" * size)
        return {}

    return fill


RUNS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50), st.booleans()), max_size=12)
"""Of each run: when it was made, its size, and whether it runs."""


@settings(deadline=None)
@given(RUNS, st.integers(0, 150), st.integers(0, 300))
def test_eviction_keeps_the_newest_that_fit_and_whatever_runs(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, bool]], now_s: int, most: int
) -> None:
    root, clock = tmp_path_factory.mktemp("runs"), Clock()
    folders = Folders(root, "run", max_age_s=60, max_bytes=0, clock=clock)
    busy, sizes = set(), {}
    for created_s, size, active in runs:
        clock.now_s = created_s
        entry = folders.create("anna", {}, filled_with(size))
        sizes[entry.id] = entry.size_bytes()
        busy |= {entry.id} if active else set()
    folders.max_bytes = most + sum(sizes.values()) // 2
    before = folders.all()
    removed = set(folders.evict(now_s, lambda entry: entry.id in busy))
    after = folders.all()
    assert [entry for entry in before if entry.id not in removed] == after
    assert not removed & busy
    assert all(now_s - entry.created_s <= 60 for entry in after if entry.id not in busy)
    assert sum(sizes[entry.id] for entry in after) <= folders.max_bytes or all(entry.id in busy for entry in after)
    young = [entry for entry in before if entry.id in removed and now_s - entry.created_s <= 60]
    for entry in young:  # gone for want of room: all that is older has gone too
        assert all((old.created_s, old.id) > (entry.created_s, entry.id) for old in after if old.id not in busy)
    if young:  # and one fewer would have been too few
        newest = max(young, key=lambda entry: (entry.created_s, entry.id))
        assert sum(sizes[other.id] for other in after) + sizes[newest.id] > folders.max_bytes
    assert {path.name for path in root.iterdir()} == {".lock", *(entry.id for entry in after)}
    folders.close()
    shutil.rmtree(root)
