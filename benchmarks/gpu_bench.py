"""What the parts of `gpu.py` share: the device, how it is timed, how much is measured, what has been found so far."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

CYCLES_PER_S = 2e9
"""At least the clock of any card: for how long to keep it waiting."""
HEAD_START = 1.5
"""The device waits so many times as long as the host takes to queue the work: all is queued before it begins."""
TIMED_S = 0.25
"""Repetitions go on for about so long, within `REPEATS`."""
REPEATS = (3, 25)
LEAST_FLUSH = 128 << 20
"""Bytes written between repetitions to empty the L2 cache: this, or twice the cache."""
LARGEST_COPY = 4 << 30

Item = TypeVar("Item")
Found = TypeVar("Found")


class Bench:
    """A part's surroundings.

    Args:
        scale: ``full``, ``quick`` or ``dry``.
        seconds: the part may take, from now on.
        save: told of all figures each time one is added.
    """

    def __init__(self, scale: str, seconds: float, save: Callable[[dict[str, Any]], None]) -> None:
        self.scale = scale
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.gpu = self.device.type == "cuda"
        self.figures: dict[str, Any] = {}
        self._save = save
        self._ends_s = time.perf_counter() + seconds
        if not self.gpu:
            torch.set_num_threads(1)
        torch.manual_seed(0)

    @property
    def dry(self) -> bool:
        """Whether only the way matters, not the figures."""
        return self.scale == "dry"

    def of(self, full: Found, quick: Found, dry: Found) -> Found:
        """The one for this scale."""
        return {"full": full, "quick": quick, "dry": dry}[self.scale]

    def note(self, name: str, figures: Any) -> None:
        """Keep figures under a name."""
        self.figures[name] = figures
        self._save(self.figures)

    def each(self, name: str, items: Sequence[Item], measure: Callable[[Item], dict[str, Any]]) -> list[dict[str, Any]]:
        """Measure one item after the other while there is time; each is kept at once. What fails is told in its place,
        and raised when all have been tried.
        """
        rows: list[dict[str, Any]] = []
        first: Exception | None = None
        for item in items:
            if self.left_s() < 0:
                rows.append({"item": str(item), "skipped": "no time left"})
            else:
                row, error = attempt(lambda item=item: measure(item))  # type: ignore[misc]  # mypy: lambda defaults
                first = first or error
                rows.append(row if error is None else {"item": str(item), **row})
                print(f"  {name}: {rows[-1]}", file=sys.stderr, flush=True)
            self.note(name, rows)
        if first is not None:
            raise first
        return rows

    def seconds(self, run: Callable[[], object], *, ahead: bool = True, flush: bool = False) -> float:
        """Seconds of the device that `run` takes: the median of several, after a warm-up.

        Args:
            run: queues work.
            ahead: let the host queue all of it before the device begins, so that its own pace does not show.
            flush: empty the L2 cache before each repetition.
        """
        if not self.gpu:
            return self._cpu_seconds(run)
        run()
        self.wait()
        cycles = int(CYCLES_PER_S * (HEAD_START * self._cpu_seconds(run) + 1e-4)) if ahead else 0
        once_s = self._once(run, cycles, flush)
        repeats = min(max(int(TIMED_S / max(once_s, 1e-6)), REPEATS[0]), REPEATS[1])
        return statistics.median(self._once(run, cycles, flush) for _ in range(repeats))

    def _cpu_seconds(self, run: Callable[[], object]) -> float:
        began_s = time.perf_counter()
        run()
        return time.perf_counter() - began_s

    def _once(self, run: Callable[[], object], cycles: int, flush: bool) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if flush:
            self._flush.zero_()
        if cycles:
            torch.cuda._sleep(cycles)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    @cached_property
    def _flush(self) -> Tensor:
        cache = getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0)
        return torch.empty(max(2 * cache, LEAST_FLUSH), dtype=torch.int8, device=self.device)

    def wall_seconds(self, run: Callable[[], object]) -> float:
        """Seconds of the host from the first call to the device's last work."""
        self.wait()
        began_s = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - began_s

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def copy(self, count: int) -> dict[str, float]:
        """A copy of so many bytes (at most `LARGEST_COPY`) on the device; its bandwidth counts reads and writes."""
        count = min(count, LARGEST_COPY)
        source, target = (torch.empty(count, dtype=torch.int8, device=self.device) for _ in range(2))
        source.zero_()
        taken_s = self.seconds(lambda: target.copy_(source), flush=True)
        return {"bytes": count, "seconds": taken_s, "bytes_per_s": 2 * count / taken_s}

    @cached_property
    def bandwidth(self) -> float:
        """Bytes a second, reads and writes, of a large copy."""
        return self.copy(1 << 20 if self.dry else 1 << 30)["bytes_per_s"]

    def left_s(self) -> float:
        """Seconds that the part still has."""
        return self._ends_s - time.perf_counter()

    def free_bytes(self) -> int:
        """Memory of the device that is left, what torch holds and does not use included."""
        if not self.gpu:
            return 1 << 28
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]


def attempt(measure: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], Exception | None]:
    """What was measured, or what went wrong, in a line."""
    try:
        return measure(), None
    except Exception as error:
        return {"failed": sentence(error)}, error


def sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
