"""Processes that may not take the machine: little priority, and limits on memory, time and files."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import dashboard
from scheduler.errors import UserError

GIB = 2**30
SCRATCH = "tmp"
_GRACE_S = 10
"""Processor seconds after the limit in which a process can still say that it hit it."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_IO_THREADS"), "1")
"""Libraries that would start a thread a core; the stacks alone count against the memory."""


@dataclass(frozen=True)
class Limits:
    """What one process may take.

    Attributes:
        memory_bytes: address space.
        cpu_s: processor time, seconds.
        file_bytes: the largest file it may write.
        niceness: how far it gives way to others, 0 to 19.
    """

    memory_bytes: int = 4 * GIB
    cpu_s: int = 900
    file_bytes: int = 1 * GIB
    niceness: int = 10

    def arguments(self) -> list[str]:
        """For the command line of the process that shall `apply` them."""
        return [str(value) for value in asdict(self).values()]

    @classmethod
    def of_arguments(cls, arguments: list[str]) -> Limits:
        """From `arguments`."""
        return cls(*map(int, arguments))

    def apply(self) -> None:
        """Bind this process; from then on an excess raises MemoryError, OutOfTime or OSError."""
        os.nice(self.niceness)
        signal.signal(signal.SIGXCPU, _out_of_time)
        _limit(resource.RLIMIT_AS, self.memory_bytes, self.memory_bytes)
        _limit(resource.RLIMIT_CPU, self.cpu_s, self.cpu_s + _GRACE_S)
        _limit(resource.RLIMIT_FSIZE, self.file_bytes, self.file_bytes)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def time_sentence(self) -> str:
        """What to tell somebody whose run took too long."""
        return f"this takes more than {self.cpu_s:,} s of computing, the limit here; fewer requests take less"

    def memory_sentence(self) -> str:
        """What to tell somebody whose run took too much memory."""
        most = f"{self.memory_bytes / GIB:.3g} GiB"
        return f"this takes more than {most} of memory, the limit here; fewer requests take less"

    def file_sentence(self) -> str:
        """What to tell somebody whose run wrote too much."""
        most = f"{self.file_bytes / GIB:.3g} GiB"
        return f"this writes a file of more than {most}, the limit here; fewer requests write less"

    def ended_by(self, signal_number: int) -> str:
        """The sentence for a process that ended before it could say why: by this signal, or 0 or less by itself."""
        if signal_number == signal.SIGXCPU:
            return self.time_sentence()
        if signal_number == signal.SIGKILL:
            return "the system ended it, as it does where memory runs out"
        return f"its process ended ({signal.Signals(signal_number).name if signal_number > 0 else -signal_number})"


class OutOfTime(Exception):
    """A process has used its processor time."""


def start(
    module: str, arguments: list[str], limits: Limits, *, folder: Path, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a module of ours as a process that ends with this one; it calls `obey` first.

    Args:
        module: what ``python -m`` runs; gets the limits, then `arguments`.
        arguments: its own.
        limits: what it may take.
        folder: its working folder: nothing but our own files, so that no name can mean a file of somebody's. What it
            needs for a while goes into `SCRATCH` there, and stays when it is killed.
        log: where all it prints goes.
    """
    command = [sys.executable, "-m", module, *limits.arguments(), *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment(folder),
        start_new_session=True,  # Ctrl-C is for the dashboard, which ends its workers itself
    )  # fmt: skip


def obey(arguments: list[str]) -> tuple[Limits, list[str]]:
    """First thing in such a process: take on the limits and watch the parent; returns them and its own arguments."""
    limits, rest = Limits.of_arguments(arguments[:4]), arguments[4:]
    limits.apply()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return limits, rest


def end(process: subprocess.Popen[bytes], patience_s: float = 5.0) -> None:
    """End a process and wait until it is gone."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait(process: subprocess.Popen[bytes], patience_s: float | None = None) -> int | None:
    """The process's exit code once it is gone; None where it took too long and was ended."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        end(process)
        return None
    finally:
        if process.poll() is None:  # the dashboard itself is ending
            end(process)
        assert process.stdin is not None
        process.stdin.close()


def sentence_of(error: UserError, limits: Limits, hidden: Path, shown: str = "") -> str:
    """An error's sentence, with what people know it by in place of the path of our own folder."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno == errno.EFBIG:
        return limits.file_sentence()
    return str(error).replace(f"{hidden}", shown).strip()


def _limit(which: int, soft: int, hard: int) -> None:
    """Never above what this process was given itself."""
    _, most = resource.getrlimit(which)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(which, (soft, hard))


def _out_of_time(signal_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes every second from now on; once is enough
    raise OutOfTime


def _end_with_parent() -> None:
    """Standard input is a pipe that the parent never writes to: it ends when the parent does."""
    sys.stdin.buffer.read()
    os._exit(1)


def _environment(folder: Path) -> dict[str, str]:
    scratch = folder / SCRATCH
    scratch.mkdir(exist_ok=True)
    root = str(Path(str(dashboard.__file__)).parent.parent)
    paths = dict.fromkeys([root, *(path for path in sys.path if path)])
    return {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(scratch)}
