"""Uploads: read by the same readers, refused with the same sentences, and harmless whatever is in them."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.runs import look
from dashboard.runs.folders import UnknownId
from dashboard.runs.sandbox import Limits
from dashboard.runs.uploads import DATA, Uploads, shown_name
from scheduler.errors import InputError, UserError
from simulator.run import simulate
from traces.formats import read_workload
from traces.trace import Trace

CSV = b"arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,20,5\n"


@pytest.fixture
def uploads(tmp_path: Path) -> Iterator[Uploads]:
    opened = Uploads(tmp_path / "uploads")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "small.trace"
    simulate("default", requests=6, out=path, plans=True, token_times=True)
    return path


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip of these files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def files_of(trace: Path, folder: str = "small.trace/") -> dict[str, bytes]:
    """A trace's files as they lie in a zip of its folder."""
    return {f"{folder}{file.name}": file.read_bytes() for file in sorted(trace.iterdir())}


def unpacked(tmp_path: Path, data: bytes) -> Path:
    """What `look` takes out of a zip."""
    (tmp_path / "in.zip").write_bytes(data)
    look.unpack(tmp_path / "in.zip", tmp_path / "out", "mine.zip")
    return tmp_path / "out"


def test_a_workload_is_read_like_any_file_and_known_by_the_users_name(uploads: Uploads) -> None:
    upload = uploads.add_workload("anna", "C:\\data\\my load.csv", CSV)
    assert (upload.name, upload.requests, upload.facts["prompt_tokens"]["total"]) == ("my load.csv", 2, 30)
    assert uploads.workload(upload.id).name == "my load.csv"
    assert [one.id for one in uploads.own("anna")] == [upload.id]
    assert uploads.own("berta") == []


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x1f\x8b123", b"PK\x03\x04", b"PAR1", b"a\0b", b"a,b,c\n1,2,3\n", b"[1]", b'{"arrival_s": 1',
        b"arrival_s,prompt_tokens,output_tokens\n0,10\n", b"arrival_s,prompt_tokens,output_tokens\n0,-3,1\n",
        b"arrival_s,prompt_tokens,output_tokens\n5,1,1\n0,1,1\n", b"\xff\xfe\x00", b"timestamp,input_length\n1,2\n",
    ],
)  # fmt: skip
def test_a_workload_is_refused_with_the_readers_own_sentence(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / DATA
    file.write_bytes(data)
    with pytest.raises(UserError) as expected:
        read_workload(file)
    told = look.verdict("workload", tmp_path, "mine.csv", Limits())
    assert told == {"error": str(expected.value).replace(str(file), "mine.csv")}


def test_a_refused_workload_leaves_nothing(uploads: Uploads) -> None:
    with pytest.raises(UserError, match=r"^mine\.csv, line 2: has 2 fields; expected 3"):
        uploads.add_workload("anna", "mine.csv", b"arrival_s,prompt_tokens,output_tokens\n0,10\n")
    assert uploads.own("anna") == []
    assert [path.name for path in uploads.root.iterdir()] == [".lock"]


def test_nesting_without_end_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / DATA).write_bytes(b'{"arrival_s": ' + b"[" * 200_000)
    told = look.verdict("workload", tmp_path, "deep.jsonl", Limits())
    assert told == {"error": "deep.jsonl: cannot be read: RecursionError"}


def test_an_upload_has_a_size_and_what_looks_at_it_a_limit(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, most_upload_bytes=100, limits=Limits(memory_bytes=140 * 2**20, cpu_s=60))
    with pytest.raises(InputError, match=r"big\.csv: has 0\.0 MiB; expected at most"):
        uploads.add_workload("anna", "big.csv", CSV * 10)
    uploads.most_upload_bytes = 2**26
    with pytest.raises(UserError, match=r"big\.csv: .*(memory|cannot be read)"):
        uploads.add_workload("anna", "big.csv", CSV + b"2,20,5\n" * 500_000)
    assert uploads.own("anna") == []
    uploads.close()


def test_uploads_go_by_age_and_their_owner_alone_removes_them(tmp_path: Path) -> None:
    now = [1000.0]
    uploads = Uploads(tmp_path, max_age_s=10, clock=lambda: now[0])
    old = uploads.add_workload("anna", "old.csv", CSV)
    now[0] += 20
    new = uploads.add_workload("anna", "new.csv", CSV)  # the old one goes when another comes
    with pytest.raises(UserError, match="it was removed"):
        uploads.workload(old.id)
    with pytest.raises(UnknownId):
        uploads.remove(new.id, "berta")
    uploads.remove(new.id, "anna")
    assert uploads.own("anna") == []
    uploads.close()


@pytest.mark.parametrize("asked", ["../../etc/passwd", "/etc/passwd", "", ".", "x" * 22])
def test_an_id_is_never_a_path(uploads: Uploads, asked: str) -> None:
    with pytest.raises(UnknownId):
        uploads.workload(asked)
    with pytest.raises(UnknownId):
        uploads.get(asked)


@pytest.mark.parametrize("folder", ["", "small.trace/"])
def test_a_trace_comes_back_as_it_was(uploads: Uploads, trace: Path, folder: str) -> None:
    extra = {"__MACOSX/small.trace/._meta.json": b"x", "small.trace/.DS_Store": b"x"}
    upload = uploads.add_trace("anna", "small.zip", zipped({**files_of(trace, folder), **extra}))
    expected = Trace.open(trace)
    assert upload.facts == {
        "steps": len(expected.steps), "requests": 6, "status": "finished", "source": "simulated", "policy": "chunked",
        "layout": "ragged",
    }  # fmt: skip
    assert Trace.open(upload.path).requests.equals(expected.requests)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json", "/etc/passwd", "small.trace/../../meta.json", "small.trace/sub/steps.rows", "a\\..\\meta.json",
        "small.trace/run.py", "C:\\meta.json", "other.trace/meta.json", "small.trace/tokens.parquet", "..",
        "../meta.json", "/meta.json",
    ],
)  # fmt: skip
def test_nothing_leaves_the_folder_and_nothing_else_comes_in(tmp_path: Path, trace: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    before = {path for path in tmp_path.rglob("*") if path.parent != tmp_path / "x"}
    with pytest.raises(InputError, match=r"^mine\.zip: (holds|is no whole zip)"):
        unpacked(tmp_path / "x", zipped({**files_of(trace), name: b"evil"}))
    assert {path for path in tmp_path.rglob("*") if (tmp_path / "x") not in path.parents} == before
    assert not list((tmp_path / "x" / "out").iterdir())


def test_a_link_in_a_zip_is_refused(tmp_path: Path, trace: Path) -> None:
    packed = io.BytesIO(zipped(files_of(trace)))
    info = zipfile.ZipInfo("small.trace/names.jsonl")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InputError, match=r"holds names\.jsonl as a link"):
        unpacked(tmp_path, packed.getvalue())


def test_the_same_name_twice_is_refused(tmp_path: Path, trace: Path) -> None:
    packed = io.BytesIO(zipped(files_of(trace)))
    with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("small.trace/meta.json", "{}")
    with pytest.raises(InputError, match="more than one folder"):
        unpacked(tmp_path, packed.getvalue())


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MOST_UNPACKED_BYTES", 32 * 2**20)
    bomb = zipped({f"a.trace/{name}.rows": bytes(17 * 2**20) for name in ("steps", "spans")})
    assert len(bomb) < 50_000
    with pytest.raises(InputError, match=r"unpacks to 34 MiB; expected at most 32"):
        unpacked(tmp_path, bomb)
    assert not list((tmp_path / "out").iterdir())


def test_a_bomb_that_lies_about_its_size_stops_where_it_said(tmp_path: Path) -> None:
    packed = bytearray(zipped({"a.trace/steps.rows": bytes(2**22)}))
    true, false = (2**22).to_bytes(4, "little"), (10).to_bytes(4, "little")
    lying = bytes(packed).replace(true, false)
    assert lying != bytes(packed)
    with pytest.raises(InputError, match=r"mine\.zip"):
        unpacked(tmp_path, lying)
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) <= 10


def verdict(folder: Path, data: bytes) -> Any:
    """What is said of an uploaded zip."""
    (folder / DATA).write_bytes(data)
    return look.verdict("trace", folder, "mine.zip", Limits())


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04torn", b"no zip at all", CSV])
def test_what_is_no_zip_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    assert verdict(tmp_path, data) == {"error": "mine.zip: is no whole zip of a folder NAME.trace"}


def test_a_torn_zip_is_one_sentence(tmp_path: Path, trace: Path) -> None:
    told = verdict(tmp_path, zipped(files_of(trace))[:-2000])
    assert told == {"error": "mine.zip: is no whole zip of a folder NAME.trace"}


def test_an_empty_zip_is_no_trace(tmp_path: Path) -> None:
    assert verdict(tmp_path, zipped({})) == {"error": "mine.zip: is no step trace: it holds no meta.json"}


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_flipped_bytes_are_a_trace_or_one_sentence(
    trace: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    files = files_of(trace)
    name = data.draw(st.sampled_from(sorted(files)))
    at = data.draw(st.integers(0, len(files[name]) - 1))
    files[name] = files[name][:at] + data.draw(st.binary(min_size=1, max_size=8)) + files[name][at + 1 :]
    told = verdict(tmp_path_factory.mktemp("flipped"), zipped(files))
    assert "facts" in told or (told["error"].startswith("mine.zip") and "\n" not in told["error"])


def test_a_broken_table_is_told_by_the_users_name_and_leaves_nothing(uploads: Uploads, trace: Path) -> None:
    files = {**files_of(trace), "small.trace/steps.parquet": b"PAR1 not really PAR1"}
    with pytest.raises(UserError, match=r"^mine\.zip: table steps is no whole Parquet file$"):
        uploads.add_trace("anna", "mine.zip", zipped(files))
    assert [path.name for path in uploads.root.iterdir()] == [".lock"]


def test_a_script_in_a_file_name_or_a_requests_name_stays_text(uploads: Uploads, tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    load = tmp_path / "load.jsonl"
    line: dict[str, Any] = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2, "request_id": script}
    load.write_text(json.dumps(line) + "\n")
    simulate(load, out=tmp_path / "a.trace")
    upload = uploads.add_trace("anna", f"{script}.zip", zipped(files_of(tmp_path / "a.trace")))
    assert upload.name == "script>.zip"  # a slash ends a folder's name
    assert Trace.open(upload.path).names() == {0: script}


@pytest.mark.parametrize(
    ("given", "shown"),
    [("/etc/passwd", "passwd"), ("..", ".."), ("", "upload"), ("a\nb\x00.csv", "ab.csv"), ("x" * 300, "x" * 100)],
)
def test_a_file_name_is_shown_as_one_line_of_text(given: str, shown: str) -> None:
    assert shown_name(given) == shown
