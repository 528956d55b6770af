"""Which requests of a workload could ever be served with given settings of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from scheduler import Request, Scheduler
from scheduler.config import SchedulerConfig
from scheduler.errors import InputError, RequestRefused

from .workload import IntArray, Workload

NEVER = "could never be served with these settings"
"""Reason in `Workload.skipped` for requests that were left out before a run."""


def servable_with(config: SchedulerConfig, workload: Workload, *, skip_bad: bool = False) -> Workload:
    """The workload, when all of its requests could be served.

    With `skip_bad`, requests that never could be are left out and counted in `Workload.skipped`.

    Raises:
        InputError: a request that could never be served, or with `skip_bad`: not one that could.
    """
    if not _refuses_any(config, workload):
        return workload
    return _without_refused(config, workload) if skip_bad else _name_first_refused(config, workload)


def _limits(workload: Workload) -> IntArray:
    return workload.output_tokens if workload.max_tokens is None else workload.max_tokens


def _refuses_any(config: SchedulerConfig, workload: Workload) -> bool:
    probe = Scheduler(config)
    lengths = sorted({(int(p), int(o)) for p, o in zip(workload.prompt_tokens, _limits(workload), strict=True)})
    return any(_refused(probe, *pair) for pair in _extremes(lengths))


def _refused(probe: Scheduler, prompt: int, limit: int) -> bool:
    try:
        probe.refuse_if_never(Request("probe", prompt, limit))
    except RequestRefused:
        return True
    return False


def _extremes(lengths: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Refusal grows with prompt and with limit, so only pairs that no other pair exceeds in both need a look."""
    kept: list[tuple[int, int]] = []
    for prompt, limit in reversed(lengths):
        if not kept or limit > kept[-1][1]:
            kept.append((prompt, limit))
    return kept


def _without_refused(config: SchedulerConfig, workload: Workload) -> Workload:
    probe = Scheduler(config)
    pairs = np.stack([workload.prompt_tokens, _limits(workload)], axis=1)
    different, place = np.unique(pairs, axis=0, return_inverse=True)
    refused = np.array([_refused(probe, *pair) for pair in different.tolist()])[place.reshape(-1)]
    if refused.all():
        _name_first_refused(config, workload)
    skipped = {**workload.skipped, NEVER: workload.skipped.get(NEVER, 0) + int(refused.sum())}
    return replace(workload.take(np.flatnonzero(~refused)), skipped=skipped)


def _name_first_refused(config: SchedulerConfig, workload: Workload) -> NoReturn:
    probe = Scheduler(config)
    for index in range(len(workload)):
        request = workload.request(index)
        try:
            probe.refuse_if_never(request)
        except RequestRefused as refusal:
            reason = str(refusal).removeprefix(f"request {request.request_id}: ")
            name = "" if workload.request_ids is None else f", id {request.request_id}"
            where = f"request {index + 1} of {len(workload)}{name}"
            raise InputError(f"{where}: {reason}", path=workload.name) from refusal
    raise RuntimeError("a request was refused by its lengths, but not by itself")
