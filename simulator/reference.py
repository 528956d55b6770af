"""Recorded runs to validate against: which kind a path holds, and reading it.

A served vLLM run in a folder, a measured trace of our own engine, the result of a load generator (``vllm bench serve``,
guidellm), vLLM's log, looks at a server's ``/metrics``.
"""

from __future__ import annotations

from pathlib import Path

from scheduler.errors import ConfigError, InputError
from traces.result_files import is_result
from traces.trace import Trace
from traces.workload import Workload

from .import_client import read_client
from .import_log import MARK, read_log
from .import_metrics import looks_like_metrics, read_metrics
from .measured import MeasuredRun as MeasuredRun
from .measured import trace_times as trace_times
from .reference_folder import REQUESTS, read_folder
from .reference_trace import read_trace

KNOWN = (
    "expected the folder of a served run (meta.json, requests.jsonl), a measured trace, a result of vllm bench serve "
    "or guidellm (JSON), vLLM's log, or its /metrics"
)
_HEAD = 1 << 20
"""Characters in which a text must show what it is."""


def read_reference(path: str | Path, *, workload: Workload | None = None, benchmark: int | None = None) -> MeasuredRun:
    """A recorded run.

    Args:
        path: folder or file.
        workload: what was sent; needed where the recording does not say, and only there of use.
        benchmark: which one, from 1, of a result file that holds several.

    Raises:
        UserError: it cannot be read, or says too little to be simulated.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return _read_file(path, workload, benchmark)
    if benchmark is not None:
        raise ConfigError(f"--benchmark chooses in a result file; {path} is none")
    if workload is not None:
        raise ConfigError(f"{path} holds its own requests; --workload goes with recordings that hold none")
    return read_folder(path) if (path / REQUESTS).exists() else read_trace(Trace.open(path))


def _read_file(path: Path, workload: Workload | None, benchmark: int | None) -> MeasuredRun:
    if is_result(path):
        return read_client(path, workload, benchmark)
    if benchmark is not None:
        raise ConfigError(f"--benchmark chooses in a result file; {path} is none")
    head = _head(path)
    is_log = MARK in head
    if not is_log and not looks_like_metrics(head):
        raise InputError(f"is no recorded run; {KNOWN}", path=path)
    if workload is None:
        raise ConfigError(
            f"{path} does not say which requests were sent; give them with --workload, a file or a preset"
        )
    return read_log(path, workload) if is_log else read_metrics(path, workload)


def _head(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
