"""ServeGen folders: workloads described as random processes, window by window and client by client.

A folder holds, per client, ``chunk-N-trace.csv`` (no header; ``ts,rate,cv,pattern,arg1,arg2`` for each window of 600 s)
and ``chunk-N-dataset.json`` (per six hours, the distributions of input and output tokens). See ServeGen, "Workload
Characterization and Generation of Large Language Model Serving in Production" (arXiv:2505.09999).

A window yields ``rate x window`` requests. The gaps between them are drawn from its pattern (``Gamma`` or ``Weibull``
with shape `arg1`) and stretched so that they fill the window: the recorded rate is met exactly, the recorded scale
(`arg2`), which describes the busy part of a window only, is not used. Lengths are drawn independently from the latest
non-empty distributions at or before the window.
"""

from __future__ import annotations

import ast
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError

from .workload import FloatArray, IntArray, Workload, load_name

MOST_REQUESTS = 20_000_000
"""More than this is surely a mistake (a folder of thousands of clients over weeks)."""
_LAST_WINDOW_S = 600.0
"""Length of the last window, which has no successor; ServeGen's windows are 600 s."""


@dataclass(frozen=True)
class _Window:
    start_s: float
    end_s: float
    rate: float
    pattern: str
    shape: float


@dataclass(frozen=True)
class _Lengths:
    """Token counts and their probabilities, for inputs and outputs, valid from `start_s`."""

    start_s: float
    prompt: tuple[IntArray, FloatArray]
    output: tuple[IntArray, FloatArray]


def read_servegen(folder: Path, *, seed: int = 0, span_s: tuple[float, float] | None = None) -> Workload:
    """Generate the workload that the ServeGen `folder` describes; same seed, same requests.

    Args:
        folder: holds ``chunk-N-trace.csv`` and ``chunk-N-dataset.json``.
        seed: of the random process.
        span_s: only windows' parts in ``[start, end)`` seconds; `start` becomes 0.

    Raises:
        InputError: it is no such folder, a file is wrong, or nothing is in the span.
    """
    traces = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: (len(path.name), path.name))
    if not traces:
        raise InputError("is a directory without ServeGen's chunk-N-trace.csv files; expected a file", path=folder)
    windows_of = [(path, _read_windows(path, span_s)) for path in traces]
    clients = [(windows, _read_lengths(path) if windows else []) for path, windows in windows_of]
    expected = sum((window.end_s - window.start_s) * window.rate for windows, _ in clients for window in windows)
    if not 1 <= expected <= MOST_REQUESTS:
        what = "no requests" if expected < 1 else f"{expected:.3g} requests, more than {MOST_REQUESTS:,}"
        raise InputError(f"describes {what}; choose a span of seconds (--start, --end)", path=folder)
    parts = []
    for client, (windows, lengths) in enumerate(clients):
        rng = np.random.Generator(np.random.PCG64([seed, client]))
        parts += [_draw_window(rng, window, lengths, client) for window in windows]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    arrival, prompt, output = (column[order] for column in columns)
    return Workload(np.round(arrival - (span_s[0] if span_s else 0.0), 6), prompt, output, name=load_name(folder))


def _draw_window(
    rng: np.random.Generator, window: _Window, lengths: list[_Lengths], client: int
) -> tuple[FloatArray, IntArray, IntArray]:
    n = round(window.rate * (window.end_s - window.start_s))
    valid = [entry for entry in lengths if entry.start_s <= window.start_s] or lengths[:1]
    place = np.cumsum(_gaps(rng, window, n + 1))
    times = window.start_s + (window.end_s - window.start_s) * place[:-1] / place[-1]
    # a microsecond is finer than any serving clock, and hides the last bits in which machines differ; rounded down, a
    # time stays in its window
    return np.floor(times * 1e6) / 1e6, _draw(rng, valid[-1].prompt, n), _draw(rng, valid[-1].output, n)


def _gaps(rng: np.random.Generator, window: _Window, n: int) -> FloatArray:
    return rng.gamma(window.shape, size=n) if window.pattern == "Gamma" else rng.weibull(window.shape, size=n)


def _draw(rng: np.random.Generator, distribution: tuple[IntArray, FloatArray], n: int) -> IntArray:
    values, cumulated = distribution
    chosen: IntArray = values[np.minimum(np.searchsorted(cumulated, rng.random(n), side="right"), len(values) - 1)]
    return chosen


def _read_windows(path: Path, span_s: tuple[float, float] | None) -> list[_Window]:
    """Windows with requests, cut to the span."""
    with _open(path) as file:
        rows = [_read_row(path, line, row) for line, row in enumerate(csv.reader(file), 1) if row]
    windows = []
    for i, (start, rate, pattern, shape) in enumerate(rows):
        end = rows[i + 1][0] if i + 1 < len(rows) else start + _LAST_WINDOW_S
        if end <= start:
            raise InputError(f"ts is {end:g} after {start:g}; expected rising times", path=path, line=i + 2)
        low, high = span_s or (start, end)
        if rate > 0 and max(start, low) < min(end, high):
            windows.append(_Window(max(start, low), min(end, high), rate, pattern, shape))
    return windows


def _read_row(path: Path, line: int, row: list[str]) -> tuple[float, float, str, float]:
    """``(ts, rate, pattern, shape)`` of one window."""
    if len(row) != 6:
        raise InputError(f"has {len(row)} fields; expected ts,rate,cv,pattern,arg1,arg2", path=path, line=line)
    try:
        start, rate, shape = float(row[0]), float(row[1]), float(row[4])
    except ValueError as error:
        raise InputError(f"{error}; expected ts,rate,cv,pattern,arg1,arg2", path=path, line=line) from error
    if not (0 <= start < float("inf") and 0 <= rate < float("inf")):
        raise InputError(f"ts is {start}, rate is {rate}; expected numbers >= 0", path=path, line=line)
    if rate > 0 and (row[3] not in ("Gamma", "Weibull") or not 0 < shape < float("inf")):
        sentence = f"pattern is {row[3]!r} with arg1 {row[4]}; expected Gamma or Weibull with a shape > 0"
        raise InputError(sentence, path=path, line=line)
    return start, rate, row[3], shape


def _read_lengths(trace: Path) -> list[_Lengths]:
    """The non-empty distributions of a client, by time."""
    path = trace.with_name(trace.name.replace("-trace.csv", "-dataset.json"))
    with _open(path) as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise InputError(f"is not JSON: {error}", path=path) from error
    if not isinstance(content, dict):
        raise InputError("is not a JSON object of start times", path=path)
    found = []
    for start, fields in content.items():
        pair = [_read_distribution(path, start, fields, name) for name in ("input_tokens", "output_tokens")]
        if pair[0] is not None and pair[1] is not None:
            found.append(_Lengths(float(start), pair[0], pair[1]))
    if not found:
        raise InputError("holds no distribution of input_tokens and output_tokens", path=path)
    return sorted(found, key=lambda entry: entry.start_s)


def _read_distribution(path: Path, start: str, fields: Any, name: str) -> tuple[IntArray, FloatArray] | None:
    """Token counts (at least 1) with cumulated probabilities; None if empty. The text is a Python dict."""
    where = f"{name} of window {start}"
    try:
        float(start)
        content = ast.literal_eval(fields[name])
        values = np.array(list(content.keys()), dtype=np.float64)
        weights: npt.NDArray[np.float64] = np.array(list(content.values()), dtype=np.float64)
    except (ValueError, TypeError, KeyError, SyntaxError, AttributeError) as error:
        sentence = f"{where} cannot be read; expected the text of a dict of token count: probability"
        raise InputError(sentence, path=path) from error
    if not len(values):
        return None
    if not (np.isfinite(values).all() and np.isfinite(weights).all() and weights.min() >= 0 and weights.sum() > 0):
        raise InputError(f"{where} holds negative or no probabilities", path=path)
    return np.maximum(np.round(values), 1).astype(np.int64), np.cumsum(weights) / weights.sum()


def _open(path: Path) -> TextIO:
    try:
        return open(path, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
