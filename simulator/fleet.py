"""Many runs at once: on this machine's cores, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from scheduler.errors import ConfigError

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_many(
    work: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int | None = None, ray: str | None = None
) -> Iterator[tuple[int, Result]]:
    """Do all tasks and yield ``(index of the task, result)`` as they end; the first failure stops the rest.

    Args:
        work: a module-level function (it is sent to other processes).
        tasks: what to call it with.
        jobs: processes; None: one a core. With 1, or one task, everything runs in this process.
        ray: address of a Ray cluster, or ``local`` to start one on this machine; None: no Ray.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs is {jobs}; expected a whole number of processes >= 1")
    if ray is not None:
        yield from _on_ray(work, tasks, ray)
        return
    workers = min(jobs or os.cpu_count() or 1, len(tasks))
    if workers <= 1:
        for index, task in enumerate(tasks):
            yield index, work(task)
        return
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = {pool.submit(work, task): index for index, task in enumerate(tasks)}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _on_ray(work: Callable[[Task], Result], tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Result]]:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError("Ray is not installed; pip install 'batchscope[ray]'") from error
    started = not ray.is_initialized()
    if started:
        ray.init(address=None if address == "local" else address, log_to_driver=False)
    try:
        remote: Any = ray.remote(work)
        waiting = {remote.remote(task): index for index, task in enumerate(tasks)}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done), ray.get(done)
    finally:
        if started:
            ray.shutdown()
