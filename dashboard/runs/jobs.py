"""The queue of runs: a few workers, each one subprocess at a time, and how far every run is."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.errors import UserError
from traces import schema
from traces.store import read_rows

from .folders import read_json
from .request import RunRequest
from .sandbox import Limits, start, wait
from .store import CUT_SHORT, TRACE, RunStore, StoredRun
from .uploads import Uploads

LOG = "worker.log"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        state: as in `StoredRun`.
        done, total: requests that have ended, or points of a sweep that are done; 0 of 0 where that is not known yet.
        sentence: for people.
    """

    state: str
    done: int
    total: int
    sentence: str

    @property
    def fraction(self) -> float:
        """Done of total, 0 to 1."""
        return self.done / self.total if self.total else 0.0


@dataclass
class _Job:
    """A run that waits or runs, in this process."""

    id: str
    owner: str
    running: bool = False
    cancelled: bool = False
    process: subprocess.Popen[bytes] | None = None
    rows_read: int = 0
    ended: int = 0
    reading: threading.Lock = field(default_factory=threading.Lock)


class Jobs:
    """Runs what people ask for, `workers` at a time, in order.

    Args:
        store: where runs are kept; their owner's queue counts there.
        uploads: what a workload of kind ``upload`` means.
        workers: subprocesses at a time.
        limits: what each may take.
        most_queued: runs that may wait, of all people.
        most_of_one: runs of one person that may wait or run.
        allowed: policies and cost models ``module:Class`` and model files that requests may name.
    """

    def __init__(
        self,
        store: RunStore,
        uploads: Uploads | None = None,
        *,
        workers: int = 1,
        limits: Limits | None = None,
        most_queued: int = 32,
        most_of_one: int = 4,
        allowed: Collection[str] = (),
    ) -> None:
        self._store, self._uploads, self._limits = store, uploads, limits or Limits()
        self._most_queued, self._most_of_one, self.allowed = most_queued, most_of_one, tuple(allowed)
        self._workers = workers
        self._guard = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        """In the order they came."""
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="run")
        self._closed = False

    def submit(self, owner: str, request: Mapping[str, Any] | RunRequest) -> str:
        """Queue a run and return its id.

        Args:
            owner: an opaque token; lists show the run to whoever has it.
            request: as `RunRequest`, or a mapping for `RunRequest.of`.

        Raises:
            ConfigError: a wrong setting, with the sentence of the command line.
            UserError: too many runs wait already.
        """
        asked = request if isinstance(request, RunRequest) else RunRequest.of(request)
        asked.check(self.allowed)
        self._store.evict(time.time())
        with self._guard:
            self._check_room(owner)
            run = self._store.create(owner, asked.as_dict())
            job = self._jobs[run.id] = _Job(run.id, owner)
            self._pool.submit(self._work, job)
        return run.id

    def cancel(self, run_id: object, owner: str) -> bool:
        """Take one's own run out of the queue, or end it; its partial trace goes.

        Returns False where it had ended already. Raises UnknownId (a UserError) for another's.
        """
        run = self._store.own_one(run_id, owner)
        with self._guard:
            job = self._jobs.get(run.id)
            if job is None:
                return False
            self._cancel(job)
        return True

    def progress(self, run_id: object) -> Progress:
        """How far a run is; raises UnknownId (a UserError)."""
        run = self._store.get(run_id)
        if run.state == "queued":
            return Progress(run.state, 0, 0, self._place(run.id))
        if run.state == "running":
            return self._running(run)
        if run.state == "done":
            return Progress(run.state, 1, 1, "Done.")
        return Progress(run.state, 0, 0, run.sentence)

    def close(self) -> None:
        """End all workers; runs that had not ended are failed ones."""
        with self._guard:
            self._closed = True
            for job in list(self._jobs.values()):
                self._cancel(job)
        self._pool.shutdown(wait=True)

    def _check_room(self, owner: str) -> None:
        if self._closed:
            raise UserError("the dashboard is closing; no more runs are taken")
        own = sum(job.owner == owner for job in self._jobs.values())
        if own >= self._most_of_one:
            raise UserError(f"{own} of your runs have not ended yet; wait for one or cancel it")
        waiting = sum(not job.running for job in self._jobs.values())
        if waiting >= self._most_queued:
            raise UserError(f"{waiting} runs are waiting already; try again in a minute")

    def _cancel(self, job: _Job) -> None:
        job.cancelled = True
        if job.process is not None and job.process.poll() is None:
            job.process.terminate()
        elif not job.running:
            self._settle_cancelled(job)

    def _work(self, job: _Job) -> None:
        try:
            self._run(job)
        except Exception as error:  # a thread's error would be lost: tell it, and keep it in the log
            _log.exception("run %s", job.id)
            self._store.set_state(job.id, "failed", f"the run could not be started: {error}")
        finally:
            with self._guard:
                self._jobs.pop(job.id, None)

    def _run(self, job: _Job) -> None:
        with self._guard:
            if job.cancelled:
                return
            job.running = True
            self._store.set_state(job.id, "running")
            job.process = self._start(self._store.get(job.id).folder)
        code = wait(job.process)
        with self._guard:
            self._settle(job, code or 0)
        self._store.evict(time.time())

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        arguments = [str(folder), str(self._uploads.root) if self._uploads else "", *self.allowed]
        with open(folder / LOG, "wb") as log:
            return start("dashboard.runs.worker", arguments, self._limits, folder=folder, log=log)

    def _settle(self, job: _Job, code: int) -> None:
        """The worker is gone: it has said how the run ended, or it was ended."""
        if not self._store.get(job.id).active:
            return
        if job.cancelled:
            self._settle_cancelled(job)
        else:
            sentence = self._limits.ended_by(-code)
            self._store.set_state(job.id, "failed", f"the run failed inside batchscope: {sentence}")

    def _settle_cancelled(self, job: _Job) -> None:
        if self._closed:
            self._store.set_state(job.id, "failed", CUT_SHORT)
        else:
            self._store.set_state(job.id, "cancelled", "Cancelled.")
        self._jobs.pop(job.id, None)

    def _place(self, run_id: str) -> str:
        with self._guard:
            ahead = list(self._jobs).index(run_id) - self._workers + 1 if run_id in self._jobs else 0
        if ahead < 1:
            return "Starting."
        return f"Waiting: {ahead} run{'' if ahead == 1 else 's'} to end first."

    def _running(self, run: StoredRun) -> Progress:
        told = read_json(run.folder / "progress.json") or {"phase": "", "done": 0, "total": 0}
        done, total = told["done"], told["total"]
        if told["phase"] == "sweeping":
            return Progress(run.state, done, total, f"{done:,} of {total:,} combinations are done.")
        if told["phase"] == "explaining":
            return Progress(run.state, 0, 0, "The run is done; trying what the next setting would bring.")
        if told["phase"] != "simulating":
            return Progress(run.state, 0, 0, "Starting.")
        job = self._jobs.get(run.id)
        done = min(total, _requests_ended(run.folder / TRACE, job) if job is not None else total)
        return Progress(run.state, done, total, f"{done:,} of {total:,} requests have ended.")


def _requests_ended(trace: Path, job: _Job) -> int:
    """Requests that have ended, by the rows that the growing trace has gained since we last looked."""
    with job.reading:
        try:
            rows = read_rows(trace, schema.REQUESTS, job.rows_read)
        except FileNotFoundError:  # not there yet; or Parquet already, and then no more are to come
            return job.ended
        job.rows_read += len(rows)
        job.ended += int(np.count_nonzero(rows["finish_reason"]))
        return job.ended
