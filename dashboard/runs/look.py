"""A look at an upload, in a process of its own: ``python -m dashboard.runs.look LIMITS... KIND FOLDER NAME``."""

from __future__ import annotations

import stat
import sys
import traceback
import zipfile
from pathlib import Path
from typing import Any

from scheduler.errors import InputError, UserError
from traces.sound import FILES, check_sound
from traces.trace import Trace

from .folders import write_json
from .sandbox import Limits, OutOfTime, obey, sentence_of
from .uploads import DATA, TRACE, VERDICT, read_named
from .workload_spec import MOST_REQUESTS

MOST_UNPACKED_BYTES = 1 * 2**30
"""Of all files in a zip together."""
_PIECE = 1 << 20
_MACS = ("__MACOSX/", ".DS_Store")
"""What the Finder adds to a zip; left out."""


def main(arguments: list[str]) -> None:
    """Write the verdict into the upload's folder: ``{"facts": ...}`` or ``{"error": sentence}``."""
    limits, (kind, folder_name, name) = obey(arguments)
    folder = Path(folder_name)
    write_json(folder / VERDICT, verdict(kind, folder, name, limits))


def verdict(kind: str, folder: Path, name: str, limits: Limits) -> dict[str, Any]:
    """What an upload is, or the one sentence why it is refused; the user's `name` for it stands in it."""
    try:
        return {"facts": _workload(folder, name) if kind == "workload" else _trace(folder, name)}
    except UserError as error:
        return {"error": sentence_of(error, limits, folder / TRACE, name)}
    except MemoryError:
        return {"error": f"{name}: {limits.memory_sentence()}"}
    except OutOfTime:
        return {"error": f"{name}: {limits.time_sentence()}"}
    except Exception as error:  # whatever a reader stumbles over in a file made to trip it
        traceback.print_exc()
        return {"error": f"{name}: cannot be read: {type(error).__name__}"}


def _workload(folder: Path, name: str) -> dict[str, Any]:
    found = read_named(folder / DATA, name)
    if len(found) > MOST_REQUESTS:
        raise InputError(f"has {len(found):,} requests; expected at most {MOST_REQUESTS:,}", path=name)
    return found.stats()


def _trace(folder: Path, name: str) -> dict[str, Any]:
    unpack(folder / DATA, folder / TRACE, name)
    (folder / DATA).unlink()
    trace = Trace.open(folder / TRACE)
    check_sound(trace)
    return {
        "steps": len(trace.column("steps", "step")),
        "requests": len(trace.column("requests", "request")),
        "status": trace.status,
        **{key: trace.meta[key] for key in ("source", "policy", "layout")},
    }


def unpack(archive: Path, target: Path, name: str) -> None:
    """Unpack the zip of a folder NAME.trace into the new folder `target`; raises InputError about `name`.

    Only the files of a step trace are taken, all of one folder or of none, each written under its own plain name.
    """
    target.mkdir()
    try:
        with zipfile.ZipFile(archive) as zipped:
            for info in _files(zipped, name):
                _unpack_one(zipped, info, target, name)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError("is no whole zip of a folder NAME.trace", path=name) from error


def _files(zipped: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
    """The trace's files in a zip, each once."""
    infos = [info for info in zipped.infolist() if not (info.is_dir() or _is_finders(info.filename))]
    names = [info.filename.rpartition("/")[2] for info in infos]
    folders = {info.filename.rpartition("/")[0] for info in infos}
    for info, plain in zip(infos, names, strict=True):
        _check_member(info, plain, name)
    if len(folders) > 1 or len(set(names)) < len(names):
        raise InputError("holds more than one folder; expected the files of one NAME.trace", path=name)
    unpacked = sum(info.file_size for info in infos)
    if unpacked > MOST_UNPACKED_BYTES:
        raise InputError(
            f"unpacks to {unpacked / 2**20:,.0f} MiB; expected at most {MOST_UNPACKED_BYTES / 2**20:,.0f}", path=name
        )
    return infos


def _check_member(info: zipfile.ZipInfo, plain: str, name: str) -> None:
    folder = info.filename.rpartition("/")[0]
    nested = "/" in folder or "\\" in info.filename or ".." in folder or info.filename.startswith("/")
    if plain not in FILES or nested:
        raise InputError(f"holds {info.filename[:80]!r}; expected only the files of one folder NAME.trace", path=name)
    mode = info.external_attr >> 16
    if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
        raise InputError(f"holds {plain} as a link; expected plain files", path=name)
    if info.flag_bits & 1:
        raise InputError("is encrypted; expected a plain zip", path=name)


def _unpack_one(zipped: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, name: str) -> None:
    left = info.file_size
    with zipped.open(info) as source, open(target / info.filename.rpartition("/")[2], "xb") as file:
        while piece := source.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise InputError("unpacks to more than it says", path=name)
            file.write(piece)


def _is_finders(filename: str) -> bool:
    return filename.startswith(_MACS[0]) or filename.rpartition("/")[2] == _MACS[1]


if __name__ == "__main__":
    main(sys.argv[1:])
