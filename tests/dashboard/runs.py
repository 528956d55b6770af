"""Runs in memory for the panels' tests: drawn by hypothesis, long ones from a seed, real ones by simulation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from dashboard.data.run import TraceRun
from dashboard.data.window import Window, step_edges
from dashboard.look import DARK, LIGHT, Figure, Look
from dashboard.scene import Scene
from dashboard.view import View
from scheduler.plan import WAIT_REASONS
from simulator import simulate
from tests.conftest import ROOT
from traces import schema
from traces.schema import PADDING_COLUMNS
from traces.trace import Trace
from traces.workload import Workload

SAMPLES = ROOT / "traces" / "samples"
HOSTILE = "<script>alert(1)</script><a href='javascript:x'>&"
LOOKS = (LIGHT, DARK)
Array = npt.NDArray[Any]


class MemoryRun:
    """A run whose tables are arrays; columns that were not given are zeros."""

    def __init__(
        self,
        steps: Mapping[str, Array],
        *,
        requests: Mapping[str, Array] | None = None,
        spans: Mapping[str, Array] | None = None,
        gaps: Mapping[str, Array] | None = None,
        meta: Mapping[str, Any] | None = None,
        names: Mapping[int, str] | None = None,
        key: str = "memory",
        name: str = "memory",
        status: str = "finished",
        trace: Trace | None = None,
    ) -> None:
        tables = {"steps": steps, "requests": requests or {}, "spans": spans or {}, "gaps": gaps or {}}
        self._tables = {table: _filled(table, columns) for table, columns in tables.items()}
        self._names = dict(names or {})
        self._meta = {"source": "simulated", "streams": True, **(meta or {})}
        self.key, self.name, self.status, self.trace = key, name, status, trace

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._meta

    @property
    def source(self) -> str:
        return str(self._meta["source"])

    @property
    def slots_total(self) -> int:
        return int(self._meta.get("slots_total", self.column("steps", "slots_total").max(initial=1)))

    @property
    def num_steps(self) -> int:
        return len(self.column("steps", "step"))

    @property
    def origin_s(self) -> float:
        firsts = [self.column("requests", "arrival_s"), self.column("steps", "t_start_s")[:1]]
        return float(min((column.min() for column in firsts if len(column)), default=0.0))

    def column(self, table: str, name: str) -> Array:
        return self._tables[table][name]

    def names(self) -> Mapping[int, str]:
        return self._names


def _filled(table: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    dtype = schema.table_named(table).dtype
    rows = len(next(iter(columns.values()))) if columns else 0
    made = {name: np.asarray(columns.get(name, np.zeros(rows)), dtype=dtype[name]) for name in dtype.names or ()}
    for column in made.values():
        column.flags.writeable = False
    return made


def steps_of(num_steps: int, seed: int = 0, *, slots: int = 8, blocks: int = 64) -> dict[str, Array]:
    """Columns of `steps` that keep the laws of `traces.check`, else drawn at random; some steps stand apart in time."""
    draw = np.random.default_rng(seed)
    parts = {name: draw.integers(0, 40, num_steps) for name in _PARTS}
    device_s, host_s = draw.exponential(0.01, num_steps), draw.exponential(0.002, num_steps)
    idle_s = np.where(draw.random(num_steps) < 0.1, draw.exponential(0.05, num_steps), 0.0)
    ends = np.cumsum(device_s + host_s + idle_s)
    computed = sum(parts.values(), np.zeros(num_steps, dtype=np.int64))
    running = draw.integers(0, slots + 1, num_steps)
    used = draw.integers(0, blocks + 1, num_steps)
    waiting = draw.integers(0, 6, num_steps)
    reason = np.where(waiting > 0, draw.integers(1, len(WAIT_REASONS), num_steps), 0)
    return {
        "step": np.arange(num_steps), "t_start_s": ends - device_s - host_s, "t_end_s": ends, "device_s": device_s,
        "host_s": host_s, "padding_s": device_s * draw.random(num_steps) / 2, **parts, "computed_tokens": computed,
        "context_tokens": used * 16, "padding_context": draw.integers(0, 100, num_steps),
        "cached_tokens": draw.integers(0, 50, num_steps), "slots_total": np.full(num_steps, slots),
        "running": running, "slots_busy": running, "waiting": waiting, "wait_reason": reason, "num_reqs": running,
        "logits_rows": running, "sampled": running, "blocks_used": used, "blocks_total": np.full(num_steps, blocks),
        "blocks_cached": draw.integers(0, blocks - used + 1), "decode_rows": parts["decode_tokens"],
        "decode_context": parts["decode_tokens"] * 20, "prefill_rows": parts["prefill_tokens"],
        "prefill_context": parts["prefill_tokens"] * 2, "prefill_pairs": parts["prefill_tokens"] * 10,
        "preempted": draw.integers(0, 2, num_steps),
    }  # fmt: skip


_PARTS = ("prefill_tokens", "decode_tokens", "recomputed_tokens", *PADDING_COLUMNS.values())


def random_run(num_steps: int, seed: int = 0, **more: Any) -> MemoryRun:
    """A run of random steps; `more` goes to `MemoryRun`."""
    return MemoryRun(steps_of(num_steps, seed), **more)


@st.composite
def runs(draw: st.DrawFn, *, most: int = 1500) -> MemoryRun:
    """Random runs: none, few, or more steps than a figure has pieces."""
    sizes = st.one_of(st.integers(0, 5), st.integers(6, most))
    return random_run(draw(sizes), draw(st.integers(0, 2**16)))


@st.composite
def views(draw: st.DrawFn) -> dict[str, Any]:
    """Random fields of a view: an axis and a part of it."""
    axis = draw(st.sampled_from(("time", "step")))
    ends = sorted(draw(st.lists(st.floats(0, 20 if axis == "time" else 1500), min_size=2, max_size=2, unique=True)))
    return {"axis": axis, **draw(st.sampled_from(({}, {"start": ends[0], "end": ends[1]})))}


def scene(*shown: Any, look: Look = LIGHT, **view: Any) -> Scene:
    """A scene of runs, in the view that `view` says."""
    return Scene(tuple(shown), View(runs=tuple(run.key for run in shown), **view), look)


@cache
def sample(name: str) -> TraceRun:
    """A recording that ships with the project."""
    return TraceRun(name, name, Trace.open(SAMPLES / f"{name}.trace"))


def simulated_run(folder: Path, *, requests: int = 40, seed: int = 1, **settings: Any) -> TraceRun:
    """A simulated run with plans of an 8B model on one device, unless `settings` say otherwise."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(5, 200, requests), draw.integers(2, 60, requests)
    workload = Workload(np.sort(draw.random(requests)) * 2, *lengths, name="drawn")
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_blocks": 60, **settings}
    trace = simulate(workload, out=folder / "run.trace", plans=True, **given)
    return TraceRun("simulated", "simulated run", trace)


def time_means(window: Window, name: str) -> Array:
    """Mean of a column over the width of each piece, step by step; over its steps where that is 0."""
    left, right = step_edges(window.run, window.axis)
    bounds = [*window.starts.tolist(), window.num_steps]
    means = []
    for first, last in pairwise(bounds):
        rows = slice(window.low + first, window.low + last)
        widths, values = (right - left)[rows], window.run.column("steps", name)[rows]
        means.append(np.average(values, weights=widths if widths.sum() > 0 else None))
    return np.array(means)


def array_of(value: Any) -> Array:
    """What a figure's field holds, be it a list or a typed array."""
    import base64

    if not isinstance(value, dict):
        return np.asarray(value)
    array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=f"<{value['dtype']}")
    return array.reshape([int(size) for size in value["shape"].split(",")]) if "shape" in value else array


def traces_named(figure: Figure, name: str) -> list[dict[str, Any]]:
    """The Plotly traces of that name, in the order of rows."""
    return [trace for trace in figure["data"] if trace.get("name") == name]


def texts(figure: Figure) -> str:
    """All text of a figure that Plotly reads as HTML."""
    found: list[str] = []
    _collect(figure, found)
    return "\n".join(found)


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "bdata":
                _collect(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
