"""Runs of `fidelity.py` and `naive_and_continuous.py`: a case predicted by the simulator, and run on the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backend import Engine
from backend.probe import Probe
from backend.replay import replay
from simulator import simulate
from traces.probes import probes_of
from traces.trace import Trace
from traces.workload import Workload

SYSTEM: dict[str, Any] = {"max_model_len": 512, "num_blocks": 1025}
"""Of every run: room for the longest request, and KV blocks for 32 of them."""
FIGURES = ("tpot_s", "e2e_s", "makespan_s", "ttft_p99_s")
"""What is compared: mean TPOT, mean E2E, makespan, p99 of TTFT."""


@dataclass(frozen=True)
class Case:
    """A workload, how it is sent, and the scheduler's settings.

    Attributes:
        name: of the case.
        group: cases of one group have the same requests, so their policies can be ranked.
        workload: the requests.
        concurrency: so many clients that wait for their answers; None: requests arrive when the workload says.
        settings: of the scheduler.
    """

    name: str
    group: str
    workload: Workload
    concurrency: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        load = "at its times" if self.concurrency is None else f"{self.concurrency} clients"
        return {"case": self.name, "group": self.group, "requests": len(self.workload), "load": load,
                "settings": dict(self.settings)}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The engine's side: which model runs, and with how many threads."""

    model: str = "embedded"
    threads: int = 1
    dtype: str = "float32"

    @property
    def options(self) -> dict[str, Any]:
        """Of an Engine."""
        return {"device": "cpu", "dtype": self.dtype, "threads": self.threads}


def probe(machine: Machine) -> Probe:
    """What tells how slow the machine is: before a run, and between the steps of a run."""
    return Probe(machine.model, **machine.options)


def predicted(case: Case, cost: Path, slowdown: float) -> dict[str, Any]:
    """Figures of the case by the simulator, on a machine that takes `slowdown` times as long as the calibrated one."""
    trace = simulate(
        case.workload,
        concurrency=case.concurrency,
        cost=f"fitted:path={cost},slowdown={slowdown!r}",
        **SYSTEM,
        **case.settings,
    )
    extrapolated = trace.meta.get("extrapolation")
    return {**figures(trace), "extrapolated_steps": extrapolated["steps"] if extrapolated else 0}


def measured(case: Case, machine: Machine, meter: Probe) -> tuple[dict[str, Any], float]:
    """Figures of the case run for real, and the probe's mean seconds meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        trace = record(case, machine, meter, Path(folder) / "run.trace")
        return figures(trace), float(probes_of(trace)[1].mean())


def record(case: Case, machine: Machine, meter: Probe, path: Path) -> Trace:
    """The case run for real, recorded into `path`."""
    with Engine(machine.model, trace=path, **machine.options, **SYSTEM, **case.settings) as engine:
        meter.beside(engine)
        replay(engine, case.workload, realtime=case.concurrency is None, concurrency=case.concurrency)
    return Trace.open(path)


def figures(trace: Trace) -> dict[str, Any]:
    """The figures of `FIGURES`, and those that explain them."""
    summary = trace.summary()
    tpot, ttft = summary["tpot_s"], summary["ttft_s"]
    return {
        "tpot_s": None if tpot is None else tpot["mean"],
        "e2e_s": summary["e2e_s"]["mean"],
        "makespan_s": summary["makespan_s"],
        "ttft_p99_s": ttft["p99"],
        "ttft_s": ttft["mean"],
        "e2e_p99_s": summary["e2e_s"]["p99"],
        "output_tokens_per_s": summary["output_tokens_per_s"],
        "padding_fraction": summary["padding_fraction"],
        "steps": summary["steps"],
    }


def median(values: list[float]) -> float:
    return float(np.median(values))


def spread(values: list[float]) -> float:
    """How far the run that strays most is from the median of identical runs, as a share of it."""
    middle = median(values)
    return max(abs(value / middle - 1) for value in values)
