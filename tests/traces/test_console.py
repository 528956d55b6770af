from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from scheduler.errors import ConfigError, UserError
from traces.console import atomic_path, common_options, emit, progress

ROWS = [{"policy": "static", "steps": 3}, {"policy": "chunked", "steps": 2, "note": "a,b"}]


@click.command()
@click.argument("path", default="none")
@click.option("--max-num-seqs", type=int, default=4)
@click.option("--policies", default="chunked")
@click.option("--tag", multiple=True)
@common_options
def show(
    path: str, max_num_seqs: int, policies: str, tag: tuple[str, ...], as_json: bool, out: str | None, seed: int
) -> None:
    result = {"path": path, "max_num_seqs": max_num_seqs, "policies": policies, "tag": list(tag), "seed": seed}
    emit(result, as_json=as_json, out=out, render=lambda console: console.print(f"seed {seed}"))


def run(*args: str) -> Result:
    return CliRunner().invoke(show, list(args), catch_exceptions=False, standalone_mode=False)


def test_json_prints_exactly_one_document() -> None:
    assert json.loads(run("--json", "--seed", "7").stdout)["seed"] == 7


def test_without_json_the_tables_are_printed_plain() -> None:
    assert run("--seed", "7").stdout == "seed 7\n"


def test_out_writes_json_or_csv_by_its_name(tmp_path: Path) -> None:
    emit(ROWS, as_json=False, out=tmp_path / "r.json", render=lambda console: None)
    emit(ROWS, as_json=False, out=tmp_path / "r.csv", render=lambda console: None)
    assert json.loads((tmp_path / "r.json").read_text()) == ROWS
    assert (tmp_path / "r.csv").read_text() == 'policy,steps,note\nstatic,3,\nchunked,2,"a,b"\n'
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.csv", "r.json"]


@pytest.mark.parametrize("result", [{"a": 1}, [{"a": {"b": 1}}], [1]])
def test_a_result_that_is_no_table_is_refused_as_csv(tmp_path: Path, result: object) -> None:
    with pytest.raises(ConfigError, match="not a flat table"):
        emit(result, as_json=True, out=tmp_path / "r.csv", render=lambda console: None)
    assert not list(tmp_path.iterdir())


def test_nan_never_reaches_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        emit({"x": float("nan")}, as_json=True, out=None, render=lambda console: None)


def write_half(target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def write_half_a_folder(target: Path) -> None:
    with atomic_path(target) as temporary:
        temporary.mkdir()
        (temporary / "steps").write_text("x")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_half(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_good_write_replaces_the_file_and_keeps_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "t.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_path(link) as temporary:
        assert temporary.suffix == ".csv"
        assert temporary.parent == tmp_path
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_temporary_folder_is_removed_on_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        write_half_a_folder(tmp_path / "run.trace")
    assert not list(tmp_path.iterdir())


def test_a_directory_and_a_missing_folder_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory; expected the name of a file"), atomic_path(tmp_path):
        pytest.fail("the block must not run")
    missing = tmp_path / "no" / "x"
    with pytest.raises(UserError, match="there is no folder"), atomic_path(missing):
        pytest.fail("the block must not run")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    with pytest.raises(UserError, match="no space left on device while writing /dev/full"):
        emit({"x": 1}, as_json=True, out="/dev/full", render=lambda console: None)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_stdout_is_one_sentence_and_nothing_more() -> None:
    code = (
        "from traces.console import emit\nfrom scheduler.errors import UserError\nimport sys\n"
        "try:\n    emit({}, as_json=True, out=None, render=print)\n"
        "except UserError as e:\n    print(e, file=sys.stderr); sys.exit(2)\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "no space left on device while writing standard output\n")


def test_progress_is_silent_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("reading", 3) as bar:
        bar.advance(1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_piped_tables_are_not_cut_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    def render(console: Console) -> None:
        console.print("x" * 150)

    emit({}, as_json=False, out=None, render=render)
    assert capsys.readouterr().out == "x" * 150 + "\n"
