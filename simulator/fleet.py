"""Many runs at once: on this machine's cores, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from scheduler.errors import ConfigError, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

KNOCK_S = 5.0
"""Seconds to wait for a cluster's first answer."""
IN_FLIGHT = 4
"""Tasks a core that wait at the cluster: enough to keep it busy, few enough to stop soon."""


def run_many(
    work: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int | None = None, ray: str | None = None
) -> Iterator[tuple[int, Result]]:
    """Do all tasks and yield ``(index of the task, result)`` as they end; the first failure stops the rest.

    Args:
        work: a module-level function (it is sent to other processes).
        tasks: what to call it with.
        jobs: processes; None: one a core. With 1, or one task, everything runs in this process.
        ray: address of a Ray cluster, or ``local`` to start one on this machine; None: no Ray.

    Raises:
        UserError: `jobs` is no number of processes; Ray is missing or not there; a worker process was killed.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs is {jobs}; expected a whole number of processes >= 1")
    if ray is not None:
        yield from _on_ray(work, tasks, ray)
        return
    workers = min(jobs or cores(), len(tasks))
    if workers <= 1:
        for index, task in enumerate(tasks):
            yield index, work(task)
        return
    yield from _on_processes(work, tasks, workers)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_processes(work: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Result]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])  # imported once, not in every worker
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_work)
    waiting = {pool.submit(work, task): index for index, task in enumerate(tasks)}
    try:
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process ended before its run did: for want of memory (try fewer jobs), or because the script "
            "that started it has no `if __name__ == '__main__':`"
        ) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()  # nobody wants the runs under way any more
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin_work() -> None:
    """Ctrl-C goes to all processes of a terminal; the parent alone answers it, and ends its workers.

    A parent that was killed cannot: a worker that sees it gone ends itself, and the fork server with the last of them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _on_ray(work: Callable[[Task], Result], tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Result]]:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError("Ray is not installed; pip install 'batchscope[ray]'") from error
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        yield from _ray_results(ray, work, tasks)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _knock(address)
    try:
        if address == "local":
            ray.init(num_cpus=cores(), include_dashboard=False, log_to_driver=False)
        else:
            ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise UserError(f"no Ray cluster at {address!r}: {str(error).splitlines()[0]}") from error


def _knock(address: str) -> None:
    """Raise UserError when nobody listens at ``host:port``; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}") from error


def _ray_results(ray: Any, work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
    remote: Any = ray.remote(work)
    most = IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = iter(enumerate(tasks))
    waiting: dict[Any, int] = {}
    while True:
        while len(waiting) < most and (entry := next(left, None)) is not None:
            waiting[remote.remote(entry[1])] = entry[0]
        if not waiting:
            return
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        try:
            result = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        yield waiting.pop(done), result
