"""The lines that vLLM logs every ten seconds as a run to compare with.

``INFO 09-02 13:08:10 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 238.7
tokens/s, Running: 10 reqs, Waiting: 0 reqs, GPU KV cache usage: 4.1%, ...``: ``vllm/v1/metrics/loggers.py`` in
github.com/vllm-project/vllm; V0 (``vllm/engine/metrics.py``) calls those that wait *Pending*. Dates have no year.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError
from traces.workload import Workload

from .measured import MeasuredRun, StateSeries

MARK = "Avg generation throughput:"
_TIME = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_ENGINE = re.compile(r"Engine (\d+)")
_VALUES = (
    re.compile(r"Avg generation throughput: ([\d.]+)"),
    re.compile(r"Running: (\d+) reqs"),
    re.compile(r"(?:Waiting|Pending): (\d+) reqs"),
    re.compile(r"(?:GPU )?KV cache usage: ([\d.]+)%"),
)
EVERY_S = 10.0
"""Between two lines, unless ``VLLM_LOG_STATS_INTERVAL`` says otherwise."""
LEAP_YEAR = 2000
"""Stands in for the year that is not logged."""
SMOOTHED = "output tokens/s is the mean of the log's own averages, from the first line in which something runs or waits"


def read_log(path: Path, workload: Workload) -> MeasuredRun:
    """The run in a log.

    Args:
        path: what the server wrote, or a part of it.
        workload: what was sent: a log does not say.

    Raises:
        InputError: a line cannot be read, lines go back in time, or are of several engines.
    """
    rows = _rows(path)
    busy = np.flatnonzero((rows[:, 2] > 0) | (rows[:, 3] > 0))
    if not len(busy):
        raise InputError("has no line in which a request runs or waits; expected a log of a busy server", path=path)
    rows = rows[busy[0] :]
    t_s, tokens_per_s, running, waiting, kv_percent = rows.T
    return MeasuredRun(
        path=path,
        name="vLLM's log",
        workload=workload,
        settings=None,
        model=None,
        hardware=None,
        tensor_parallel=1,
        times=None,
        itl_s=None,
        series=StateSeries(t_s - t_s[0], running, waiting, kv_percent),
        cost=None,
        planned=False,
        by="vLLM",
        totals=_totals(t_s, tokens_per_s),
        slack_s=float(np.median(np.diff(t_s))) if len(t_s) > 1 else EVERY_S,
        notes=(SMOOTHED,) if len(t_s) > 1 else (),
    )


def _totals(t_s: npt.NDArray[np.float64], tokens_per_s: npt.NDArray[np.float64]) -> dict[str, float]:
    """A line's average is of the time since the line before it."""
    lasting = np.diff(t_s)
    if not lasting.sum():
        return {}
    return {"output_tokens_per_s": float((tokens_per_s[1:] * lasting).sum() / lasting.sum())}


def _rows(path: Path) -> npt.NDArray[np.float64]:
    """Seconds, output tokens a second, running, waiting, KV percent, a row a line."""
    rows: list[list[float]] = []
    engines: set[str] = set()
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if MARK not in line:
                continue
            engine = _ENGINE.search(line)
            engines.add(engine[1] if engine else "")
            rows.append([_time(line, path, number), *_values(line, path, number)])
            if len(rows) > 1 and rows[-1][0] < rows[-2][0]:
                raise InputError("goes back in time; expected the log of one run", path=path, line=number)
    if len(engines) > 1:
        raise InputError(f"has lines of {len(engines)} engines; expected those of one (grep 'Engine 000')", path=path)
    return np.array(rows, dtype=np.float64)


def _time(line: str, path: Path, number: int) -> float:
    found = _TIME.search(line)
    if found is None:
        raise InputError("has no time; expected MM-DD HH:MM:SS before the figures", path=path, line=number)
    year, *parts, fraction = found.groups()
    try:
        at = datetime(int(year or LEAP_YEAR), *map(int, parts))  # type: ignore[arg-type]  # five numbers
    except ValueError as error:
        raise InputError(f"{found[0]!r} is no time: {error}", path=path, line=number) from error
    return (at - datetime(LEAP_YEAR, 1, 1)).total_seconds() + float(f"0.{fraction or 0}")


def _values(line: str, path: Path, number: int) -> list[float]:
    found = [pattern.search(line) for pattern in _VALUES]
    if None in found:
        raise InputError("misses Running, Waiting or KV cache usage; expected vLLM's line", path=path, line=number)
    return [float(match[1]) for match in found if match is not None]
