"""Recorded runs to validate against: a served vLLM run in a folder, or a measured trace of our own engine."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError, InputError
from traces.formats import read_workload
from traces.metrics import weighted_spread
from traces.store import WORKLOAD
from traces.trace import Trace
from traces.workload import Workload

from .costs.operator_tables import DENSE
from .server_meta import captured_sizes, entry, needed, read_server, whole

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

META, REQUESTS, SERIES, CONTENTS = "meta.json", "requests.jsonl", "timeseries.csv", "workload.jsonl"
_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_COUNTS = ("input_toks", "output_toks")
_SERIES = ("t", "running", "waiting", "kv_cache_pct")


@dataclass(frozen=True)
class RunTimes:
    """When things happened to each request, ``(requests,)`` seconds after the first arrival; nan: never.

    `scheduled` is the moment at which it was planned to run, not that at which the device began.
    """

    arrival: Floats
    scheduled: Floats
    first: Floats
    last: Floats
    output_tokens: Ints


@dataclass(frozen=True)
class StateSeries:
    """How full the server was, ``(samples,)`` each; times are seconds after the first arrival."""

    t_s: Floats
    running: Floats
    waiting: Floats
    kv_percent: Floats


@dataclass(frozen=True)
class MeasuredRun:
    """A run that was measured, and what it takes to simulate it.

    Attributes:
        path, name: where it is, and what to call it.
        workload: its requests; they arrive when the engine took them in.
        settings: of the scheduler.
        model, hardware: as the recording names them.
        tensor_parallel: devices that shared each layer.
        times: of its requests, in the workload's order.
        itl_s: gaps between tokens: mean and percentiles; None: not recorded.
        series: None: not recorded.
        cost: options of the ``profile`` cost model that came with it; None: none did.
        planned: `times` tell when requests were planned (else when their first step began).
    """

    path: Path
    name: str
    workload: Workload
    settings: Mapping[str, Any]
    model: str
    hardware: str | None
    tensor_parallel: int
    times: RunTimes
    itl_s: dict[str, float] | None
    series: StateSeries | None
    cost: Mapping[str, Any] | None
    planned: bool


def read_reference(path: str | Path) -> MeasuredRun:
    """A recorded run: a folder with `META` and `REQUESTS`, or a measured trace; raises InputError."""
    path = Path(path).expanduser()
    if (path / REQUESTS).exists():
        return _read_folder(path)
    trace = Trace.open(path)
    if trace.meta.get("source") != "measured":
        raise InputError("is a simulated run; expected a measured one", path=path)
    return _read_trace(trace)


def series_of(trace: Trace, t_s: Floats, zero_s: float) -> StateSeries:
    """The state of a trace at given times after `zero_s`: as the last step that had ended by then left it."""
    names = ["t_end_s", "running", "waiting", "blocks_used", "blocks_total"]
    steps = trace.columns("steps", names)
    at = np.searchsorted(steps["t_end_s"] - zero_s, t_s, side="right") - 1
    seen = np.maximum(at, 0)

    def column(values: npt.NDArray[Any]) -> Floats:
        return np.where(at < 0, 0.0, values[seen].astype(np.float64))

    full = 100.0 * steps["blocks_used"] / np.maximum(steps["blocks_total"], 1)
    return StateSeries(t_s, column(steps["running"]), column(steps["waiting"]), column(full))


def trace_times(trace: Trace, *, planned: bool) -> RunTimes:
    """Of a trace's requests, after its first arrival; `planned`: with the moments at which requests were planned."""
    columns = trace.columns("requests")
    columns = {name: column[np.argsort(columns["request"])] for name, column in columns.items()}
    zero_s = float(columns["arrival_s"].min())
    scheduled = columns["scheduled_s"]
    if planned:
        scheduled = np.maximum(_planned(trace, scheduled), columns["arrival_s"])
    return RunTimes(
        arrival=columns["arrival_s"] - zero_s,
        scheduled=scheduled - zero_s,
        first=columns["first_token_s"] - zero_s,
        last=columns["finished_s"] - zero_s,
        output_tokens=columns["output_tokens"].astype(np.int64),
    )


def _planned(trace: Trace, started_s: Floats) -> Floats:
    """When steps that began at given times were planned.

    An engine that plans ahead plans a step when the results of the second last one are in; where the device waited, the
    host's time before the start. Else a step is planned when it begins.
    """
    steps = trace.columns("steps", ["t_start_s", "t_end_s", "host_s"])
    start, end = steps["t_start_s"], steps["t_end_s"]
    plan = start
    if trace.meta["config"]["async_scheduling"]:
        before = np.concatenate(([-np.inf], end[:-1]))
        second = np.concatenate(([-np.inf, -np.inf], end[:-2]))[: len(end)]
        plan = np.where(start > before, start - steps["host_s"], second)
    which = np.searchsorted(start, started_s)
    return np.where(np.isnan(started_s), np.nan, plan[np.minimum(which, len(plan) - 1)])


def _read_folder(folder: Path) -> MeasuredRun:
    meta = read_server(folder / META)
    rows = _read_requests(folder / REQUESTS)
    zero_s = float(rows["queued_ts"].min())
    order = np.argsort(rows["queued_ts"], kind="stable")
    workload = _workload(folder, rows, zero_s).take(order)
    ready = {name: column[order] for name, column in rows.items()}
    queued, scheduled, first, last = (ready[name] - zero_s for name in _TIMES)
    times = RunTimes(queued, scheduled, first, last, ready["output_toks"].astype(np.int64))
    return MeasuredRun(
        path=folder,
        name=f"vLLM {meta.get('vllm_version', '')}".strip(),
        workload=replace(workload, arrival_s=times.arrival),
        settings=_settings(meta, folder / META),
        model=str(needed(meta, folder / META, "model")),
        hardware=entry(meta, "hardware", "device_name"),
        tensor_parallel=int(entry(meta, "engine_kwargs", "tensor_parallel_size") or 1),
        times=times,
        itl_s=None,
        series=_read_series(folder / SERIES, _lead_s(meta, ready)) if (folder / SERIES).exists() else None,
        cost={"dir": str(folder)} if (folder / DENSE).exists() else None,
        planned=True,
    )


def _read_requests(path: Path) -> dict[str, Floats]:
    rows: list[list[float]] = []
    names = (*_TIMES, *_COUNTS)
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                rows.append([*_request(line, path, number, names), *_client_time(line)])
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text; expected one JSON object a line", path=path) from error
    if not rows:
        raise InputError("is empty; expected one JSON object a line", path=path)
    table = np.array(rows, dtype=np.float64)
    return {name: table[:, at] for at, name in enumerate((*names, "arrival_time"))}


def _request(line: str, path: Path, number: int, names: tuple[str, ...]) -> list[float]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError("is not JSON; expected one object a line", path=path, line=number) from error
    values = []
    for name in names:
        value = row.get(name) if isinstance(row, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name} is {value!r}; expected a number", path=path, line=number)
        values.append(float(value))
    times = values[: len(_TIMES)]
    if times != sorted(times):
        raise InputError(f"{', '.join(_TIMES)} go backwards; expected them in this order", path=path, line=number)
    return values


def _client_time(line: str) -> list[float]:
    """The client's clock when it sent the request, seconds since 1970; nan where it did not say."""
    value = json.loads(line).get("arrival_time")
    return [float(value) if isinstance(value, int | float) else float("nan")]


def _workload(folder: Path, rows: Mapping[str, Floats], zero_s: float) -> Workload:
    """The requests with their contents, where those were kept, in the order of the file."""
    prompt, output = (rows[name].astype(np.int64) for name in _COUNTS)
    path = folder / CONTENTS
    if not path.exists():
        return Workload(rows["queued_ts"] - zero_s, prompt, output, name=folder.name)
    workload = read_workload(path)
    if len(workload) != len(prompt):
        raise InputError(f"has {len(workload)} requests; {REQUESTS} has {len(prompt)}", path=path)
    wrong = np.flatnonzero((workload.prompt_tokens != prompt) | (workload.output_tokens != output))
    if len(wrong):
        raise InputError(f"the request has other lengths than in {REQUESTS}", path=path, line=int(wrong[0]) + 1)
    return replace(workload, name=folder.name)


def _settings(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The resolved configuration of vLLM as ours; one of its blocks is the null block, too."""
    scheduler = entry(meta, "resolved_config", "scheduler_config") or {}
    settings = {
        "policy": "chunked",
        "max_model_len": whole(meta, path, "engine_kwargs", "max_model_len"),
        "num_blocks": whole(meta, path, "kv_cache", "num_gpu_blocks"),
        "block_size": whole(meta, path, "kv_cache", "block_size"),
        "enable_prefix_caching": bool(needed(meta, path, "kv_cache", "enable_prefix_caching")),
        "cudagraph_capture_sizes": captured_sizes(meta, path),
        "scheduling_policy": scheduler.get("policy", "fcfs"),
    }
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        settings[name] = scheduler.get(name) or whole(meta, path, "engine_kwargs", name)
    for name in ("async_scheduling", "enable_chunked_prefill", "long_prefill_token_threshold"):
        if name in scheduler:
            settings[name] = scheduler[name]
    return settings


def _lead_s(meta: Mapping[str, Any], rows: Mapping[str, Floats]) -> float:
    """Seconds from the recording's start to the first arrival; 0 where the clocks are not both there."""
    started, sent = meta.get("started_at"), rows["arrival_time"][0]
    if not isinstance(started, str) or np.isnan(sent):
        return 0.0
    return float(sent - datetime.fromisoformat(started).timestamp())


def _read_series(path: Path, lead_s: float) -> StateSeries:
    rows: list[list[float]] = []
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                rows.append([float(row[name]) for name in _SERIES])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"expected numbers in {', '.join(_SERIES)}", path=path, line=reader.line_num
                ) from error
    t_s, running, waiting, kv_percent = np.array(rows, dtype=np.float64).reshape(-1, len(_SERIES)).T
    return StateSeries(t_s - lead_s, running, waiting, kv_percent)


def _read_trace(trace: Trace) -> MeasuredRun:
    path = trace.path / WORKLOAD
    if not path.exists():
        raise InputError(f"holds no {WORKLOAD}; expected a measured run that kept its workload", path=trace.path)
    workload = read_workload(path)
    times = trace_times(trace, planned=False)
    if len(times.arrival) != len(workload):
        raise ConfigError(f"{trace.path} has {len(times.arrival)} requests, its workload {len(workload)}")
    config = dict(trace.meta["config"])
    config["cudagraph_capture_sizes"] = tuple(config["cudagraph_capture_sizes"])
    config["eos_token_ids"] = ()  # ends come from the recorded lengths
    zero_s = float(trace.column("requests", "arrival_s").min())
    gaps = trace.columns("gaps", ["gap_s", "count"])
    every = np.linspace(0.0, float(np.nanmax(times.last)), 201)[1:]
    return MeasuredRun(
        path=trace.path,
        name=str(trace.meta.get("model", trace.path.name)),
        workload=replace(workload, arrival_s=times.arrival),
        settings=config,
        model=str(trace.meta.get("model", "")),
        hardware=trace.meta.get("hardware"),
        tensor_parallel=1,
        times=times,
        itl_s=weighted_spread(gaps["gap_s"], gaps["count"]),
        series=series_of(trace, every, zero_s),
        cost=None,
        planned=False,
    )
