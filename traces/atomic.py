"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT}
"""What a system says when there is no room left."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; it takes the place of `path` when the block ends well.

    On any failure, Ctrl-C included, the temporary file (or folder) is removed and `path` is as it was. What already
    exists as a device or a pipe (``/dev/stdout``) is written directly.

    Raises:
        UserError: `path` is a directory, its folder is missing or not writable, or the disk is full.
    """
    target = Path(os.path.realpath(path))
    if _is_special(Path(path)):
        with _write_errors(path):
            yield Path(path)
        return
    _check_target(Path(path), target)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}.tmp{target.suffix}")
    try:
        with _write_errors(path):
            yield temporary
            os.replace(temporary, target)
    except BaseException:
        _remove(temporary)
        raise


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _check_target(path: Path, target: Path) -> None:
    if target.is_dir():
        raise UserError(f"{path} is a directory; expected the name of a file to write")
    if not target.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"cannot write {path}: no permission to write in {path.parent}")


@contextmanager
def _write_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise UserError(f"no space left on device while writing {path}") from error
        if error.errno in {errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG}:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
