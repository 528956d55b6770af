"""The live view's feed: memory over an hour's worth of steps, and what it costs the engine to be watched. JSON.

    python benchmarks/dashboard_live.py memory [--steps 360000] [--slots 256] [--seconds 120]
    python benchmarks/dashboard_live.py engine [--rounds 10] [--interval 4]
    python benchmarks/dashboard_live.py cost [--rounds 4] [--interval 10]

`memory`: a simulated trace is played over the server's own routes by one process and followed by another, in which a
reader takes a snapshot twice a second and looks at every column, as a page does. Steps lost or doubled must be 0, or
explained by explicit gaps; exit code 1 otherwise.

`engine`: a real `batchscope serve` under closed-loop load; in each round it is watched for two intervals and left alone
for two (alone, watched, watched, alone), so that what changes with time hits both alike. Losses are medians over
rounds, with quartiles: of steps and tokens per second, and of what the engine's process needs of the processor for a
step. The last is what being watched takes from an engine that has a core of its own; on a machine whose cores are all
taken, the watcher's own work (`watcher_cpu_share`, of one core) comes on top, wherever it runs.

`cost`: what being watched takes from the server's process, as a share of one core, measured on a process that does
nothing else (it plays 100 steps a second). Processor time hardly depends on what else the machine does, so this holds
where `engine` drowns in noise. An engine that keeps a core busy loses at most that share of its speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dashboard.live.engine_feed import EngineFeed
from dashboard.live.live_run import Gap, LiveRun
from traces.schema import GAPS, REQUESTS, SPANS, STEPS

LOOK_S = 0.5
"""A page is drawn anew twice a second."""
STEP_S = 0.01
"""Of the simulated trace: 360,000 steps are an hour."""
MEAN_OUTPUT = 512
SERVE = ("--max-num-seqs", "16", "--threads", "1", "--num-blocks", "2000", "--max-model-len", "1024")
MOST_LOSS = 0.02


def main() -> None:
    """Run one of the two and print its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "engine", "cost"])
    parser.add_argument("--steps", type=int, default=360_000)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=120.0, help="for which the hour is played")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--interval", type=float, default=4.0, help="seconds watched or alone at a time")
    options = parser.parse_args()
    if options.what == "memory":
        result = memory(options.steps, options.slots, options.seconds)
        fine = result["unexplained_steps"] == 0 and result["steps_doubled"] == 0
    elif options.what == "cost":
        result = cost(options.rounds, options.interval)
        fine = result["share_of_a_core"]["median"] <= MOST_LOSS
    else:
        result = engine(options.rounds, options.interval)
        fine = result["more_engine_cpu_per_step"]["median"] <= MOST_LOSS
    print(json.dumps(result, indent=1))
    sys.exit(0 if fine else 1)


# -- memory ----------------------------------------------------------------------------------------------------------


def memory(steps: int, slots: int, seconds: float) -> dict[str, Any]:
    """An hour, played at speed: what the process that follows it holds at 10%, 50% and 100%."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hour.trace"
        facts = _simulate(path, steps, slots)
        with _playing(path, facts["trace_s"] / seconds) as (url, _), EngineFeed(url) as feed:
            reader = _Reader(feed)
            mib = {f"{share:.0%}": _mib_at(feed, facts["steps"] * share) for share in (0.1, 0.5, 1.0)}
            looks = reader.stop()
            run, counts = feed.snapshot(), feed.counts()
    assert run is not None
    return {
        "benchmark": "live feed, memory",
        **facts,
        "played_for_s": seconds,
        "steps_per_s": round(facts["steps"] / seconds),
        "resident_mib": mib,
        "steps_held": run.num_steps,
        "rows_held": {table: len(rows) for table, rows in run.rows.items()},
        "looks": looks,
        "steps_lost": counts["lost"],
        "unexplained_steps": facts["steps"] - 1 - run.last_step + counts["lost"] - sum(map(len, reader.gaps)),
        "steps_doubled": counts["doubled"],
    }


def _simulate(path: Path, steps: int, slots: int) -> dict[str, Any]:
    """A trace of about so many steps in which every slot is taken and some requests wait; in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks import dashboard_live as b; " \
           f"b.record({str(path)!r}, {steps}, {slots})"  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    facts: dict[str, Any] = json.loads(told)
    return facts


def record(path: str, steps: int, slots: int) -> None:
    """Simulate that trace and print its facts."""
    from simulator import simulate
    from traces.workload import Workload

    requests, draw = steps * slots // MEAN_OUTPUT, np.random.Generator(np.random.PCG64(0))
    output = draw.integers(1, 2 * MEAN_OUTPUT, requests)
    workload = Workload(np.zeros(requests), draw.integers(16, 256, requests), output)
    trace = simulate(
        workload, out=path, concurrency=slots + slots // 8, cost=f"linear:step_s={STEP_S}", policy="chunked",
        max_num_seqs=slots, num_blocks=slots * 90, max_num_batched_tokens=2048,
    )  # fmt: skip
    t_end_s = trace.column("steps", "t_end_s")
    print(json.dumps({"steps": len(t_end_s), "slots": slots, "requests": requests, "trace_s": float(t_end_s[-1])}))


@contextmanager
def _playing(path: Path, speed: float) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "dashboard.live.player", str(path), "--speed", f"{speed}", "--linger", "3600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["url"]), process.pid
    finally:
        process.kill()
        process.wait()


def _mib_at(feed: EngineFeed, step: float) -> float:
    """Resident memory of this process once the feed shows this step (the last one for the trace's end), MiB."""
    while (run := feed.snapshot()) is None or run.last_step + 1 < step:
        time.sleep(0.1)
    return round(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20, 1)


class _Reader:
    """Looks at a feed twice a second: every column of every table of a fresh snapshot."""

    def __init__(self, feed: EngineFeed) -> None:
        self._feed = feed
        self._over = threading.Event()
        self._times_s: list[float] = []
        self.gaps: set[Gap] = set()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """How many looks there were, and how long they took."""
        self._over.set()
        self._thread.join()
        times_s = self._times_s or [0.0]
        p50, p99 = np.quantile(times_s, [0.5, 0.99]) * 1e3
        return {"count": len(times_s), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S):
            begun_s = time.perf_counter()
            run = self._feed.snapshot()
            if run is not None:
                _touch_all(run)
                self.gaps.update(run.gaps_in_feed)
            self._times_s.append(time.perf_counter() - begun_s)


def _touch_all(run: LiveRun) -> None:
    for table in (STEPS, SPANS, REQUESTS, GAPS):
        for name in table.names:
            run.column(table.name, name)


# -- what serving a watcher takes -------------------------------------------------------------------------------------


def cost(rounds: int, interval_s: float) -> dict[str, Any]:
    """Processor time of a process that plays a trace at its own pace, watched less alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cost.trace"
        needed_s = rounds * 2 * (interval_s + 2) + 30
        facts = _simulate(path, round(needed_s / STEP_S), 256)
        with _playing(path, 1.0) as (url, pid):
            shares = [_cost_round(url, pid, interval_s) for _ in range(rounds)]
    return {"benchmark": "live feed, cost to the server", "rounds": rounds, "interval_s": interval_s,
            "steps_per_s": round(1 / STEP_S), "slots": facts["slots"],
            "share_of_a_core": _spread(shares)}  # fmt: skip


def _cost_round(url: str, pid: int, interval_s: float) -> float:
    alone = _cpu_share(pid, interval_s)
    with EngineFeed(url) as feed:
        while feed.state.kind != "live":
            time.sleep(0.05)
        time.sleep(2.0)  # catching up is over
        reader = _Reader(feed)
        watched = _cpu_share(pid, interval_s)
        reader.stop()
    return watched - alone


def _cpu_share(pid: int, interval_s: float) -> float:
    begun_s, cpu_s = time.monotonic(), _cpu_s(pid)
    time.sleep(interval_s)
    return (_cpu_s(pid) - cpu_s) / (time.monotonic() - begun_s)


# -- the engine's speed ----------------------------------------------------------------------------------------------


def engine(rounds: int, interval_s: float) -> dict[str, Any]:
    """A real engine, watched and alone by turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.trace"
        with _serving(path) as (url, pid), _loaded(url):
            _warm_up(path)
            pairs = [_round(url, path, pid, interval_s) for _ in range(rounds)]
    alone, watched = ({key: np.array([pair[which][key] for pair in pairs]) for key in pairs[0][0]} for which in (0, 1))
    return {
        "benchmark": "live feed, the engine's speed",
        "rounds": rounds,
        "interval_s": interval_s,
        "alone": {name: round(float(np.median(values)), 3) for name, values in alone.items()},
        "watched": {name: round(float(np.median(values)), 3) for name, values in watched.items()},
        "loss_of_steps_per_s": _spread(1 - watched["steps_per_s"] / alone["steps_per_s"]),
        "loss_of_tokens_per_s": _spread(1 - watched["tokens_per_s"] / alone["tokens_per_s"]),
        "longer_median_step": _spread(watched["step_p50_ms"] / alone["step_p50_ms"] - 1),
        "more_engine_cpu_per_step": _spread(watched["engine_cpu_ms_per_step"] / alone["engine_cpu_ms_per_step"] - 1),
        "watcher_cpu_share": _spread(watched["watcher_cpu_share"]),
    }


def _warm_up(path: Path) -> None:
    """Until all slots are taken and the first steps are over."""
    while (path / "steps.rows").stat().st_size < 100 * STEPS.dtype.itemsize:
        time.sleep(0.1)


def _spread(values: Any) -> dict[str, float]:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": round(float(median), 4), "p25": round(float(low), 4), "p75": round(float(high), 4)}


def _round(url: str, path: Path, pid: int, interval_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """Alone, watched, watched, alone; each as the mean of its two."""
    first = _measure(path, pid, interval_s)
    with EngineFeed(url) as feed:
        reader = _Reader(feed)
        while feed.state.kind != "live" or (run := feed.snapshot()) is None or run.num_steps < 1:
            time.sleep(0.05)
        time.sleep(0.5)  # catching up is over
        watched = [_measure(path, pid, interval_s), _measure(path, pid, interval_s)]
        reader.stop()
    alone = [first, _measure(path, pid, interval_s)]
    mean_alone, mean_watched = ({key: (a[key] + b[key]) / 2 for key in a} for a, b in (alone, watched))
    return mean_alone, mean_watched


def _measure(path: Path, pid: int, interval_s: float) -> dict[str, float]:
    """What the engine did in an interval, from the steps that it recorded meanwhile, and what that cost."""
    file = path / "steps.rows"
    begun_s, before = time.monotonic(), file.stat().st_size // STEPS.dtype.itemsize
    cpu_s, own_cpu_s = _cpu_s(pid), time.process_time()
    time.sleep(interval_s)
    cpu_s, own_cpu_s = _cpu_s(pid) - cpu_s, time.process_time() - own_cpu_s
    after, took_s = file.stat().st_size // STEPS.dtype.itemsize, time.monotonic() - begun_s
    offset = before * STEPS.dtype.itemsize
    rows = np.fromfile(file, dtype=STEPS.dtype, count=after - before, offset=offset)
    tokens = int((rows["prefill_tokens"] + rows["decode_tokens"]).sum())
    step_ms = float(np.median(rows["t_end_s"] - rows["t_start_s"])) * 1e3
    return {
        "steps_per_s": len(rows) / took_s, "tokens_per_s": tokens / took_s, "step_p50_ms": step_ms,
        "engine_cpu_ms_per_step": cpu_s / len(rows) * 1e3, "watcher_cpu_share": own_cpu_s / took_s,
    }  # fmt: skip


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far, seconds (proc(5): utime and stime are fields 14 and 15, in ticks)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _serving(path: Path) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "batchscope.py", "serve", "--json", "--port", "0", "--grace", "0", "--trace", str(path)]
    process = subprocess.Popen([*command, *SERVE], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["url"]), process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _loaded(url: str) -> Iterator[None]:
    """Twice as many requests under way as there are slots."""
    options = ("--rate", "1e6", "--concurrency", "32", "--full-length")
    process = subprocess.Popen([sys.executable, "-m", "dashboard.live.load", url, *options], cwd=ROOT,
                               stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
