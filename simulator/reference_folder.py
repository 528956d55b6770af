"""A served vLLM run in a folder: `META`, `REQUESTS`, and as far as they are there series, contents, operator tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.errors import InputError
from traces.formats import read_workload
from traces.workload import Workload

from .costs.operator_tables import DENSE
from .measured import MeasuredRun, RunTimes, StateSeries
from .server_meta import captured_sizes, entry, needed, read_server, whole

Floats = npt.NDArray[np.float64]

META, REQUESTS, SERIES, CONTENTS = "meta.json", "requests.jsonl", "timeseries.csv", "workload.jsonl"
_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_COUNTS = ("input_toks", "output_toks")
_SERIES = ("t", "running", "waiting", "kv_cache_pct")


def read_folder(folder: Path) -> MeasuredRun:
    """The run in a folder; raises InputError."""
    meta = read_server(folder / META)
    rows = _read_requests(folder / REQUESTS)
    zero_s = float(rows["queued_ts"].min())
    order = np.argsort(rows["queued_ts"], kind="stable")
    workload = _workload(folder, rows, zero_s).take(order)
    ready = {name: column[order] for name, column in rows.items()}
    queued, scheduled, first, last = (ready[name] - zero_s for name in _TIMES)
    times = RunTimes(
        queued, scheduled, first, last, ready["output_toks"].astype(np.int64), np.zeros(len(queued), dtype=bool)
    )
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
        by="vLLM",
        notes=_missing(folder, meta),
    )


def _missing(folder: Path, meta: Mapping[str, Any]) -> tuple[str, ...]:
    """What the folder does not hold and is taken for something instead."""
    notes = []
    if not (folder / CONTENTS).exists():
        notes.append(f"no {CONTENTS}: what requests have in common is unknown, none finds its prefix in the cache")
    if not entry(meta, "resolved_config", "scheduler_config"):
        notes.append(
            f"{META} holds no resolved_config: what the engine chose by itself (async scheduling, captured graphs) is "
            "taken as not used"
        )
    return tuple(notes)


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


def _read_series(path: Path, lead_s: float) -> StateSeries | None:
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
    if not rows:
        return None
    t_s, running, waiting, kv_percent = np.array(rows, dtype=np.float64).reshape(-1, len(_SERIES)).T
    return StateSeries(t_s - lead_s, running, waiting, kv_percent)
