"""The probe: a small piece of work that is always the same; how long it takes says how slow the machine is just now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scheduler.errors import ConfigError
from traces.probes import META

from .outputs import StepEvent
from .rounds import Ask, Driver, Round

if TYPE_CHECKING:
    from .engine import Engine
    from .weights import Weights

REQUESTS, PROMPT, OUTPUT = 4, 32, 9
WORK = Round("probe", (Ask(PROMPT, OUTPUT),) * REQUESTS)
"""A batch of four prompts, then eight steps of four decodes."""
SETTINGS: dict[str, Any] = {"max_num_seqs": REQUESTS, "max_model_len": 4 * PROMPT, "num_blocks": 65}
MEASURED_S = 1.0
EVERY_S = 0.25
"""Seconds of an engine's time between two probes beside it. After a probe the next two steps take 7 to 10% longer (what
they read has left the caches), so more often would disturb what is measured."""


MACHINE = ("device", "dtype", "ops", "threads")
"""Options of an engine that say where and how it computes."""


def probe_for(model: str | Path | Weights, options: Mapping[str, Any]) -> Probe:
    """The probe for an engine with these options."""
    return Probe(model, **{name: options[name] for name in MACHINE if name in options})


class Probe:
    """An engine kept open for the probe alone; ``with Probe(...) as probe``.

    Args:
        model: see `Engine`.
        machine: options of the engine that say where and how it computes (device, dtype, ops, threads).

    Raises:
        UserError: an option is wrong, or the model cannot be had.
    """

    def __init__(self, model: str | Path | Weights = "embedded", **machine: Any) -> None:
        from .engine import Engine

        self._engine = Engine(model, **SETTINGS, **machine)
        self._driver = Driver(self._engine)
        self._count = 0
        self.once()  # the first one warms up

    def once(self) -> float:
        """Device and host seconds of the probe's steps, once."""
        self._count += 1
        return self._driver.run(WORK, f"probe-{self._count}")

    def seconds(self) -> float:
        """The same, the mean over about a second."""
        until_s, found = time.perf_counter() + MEASURED_S, [self.once()]
        while time.perf_counter() < until_s:
            found.append(self.once())
        return float(np.mean(found))

    def beside(self, engine: Engine) -> list[float]:
        """Run it after every `EVERY_S` of an engine's time, between two steps and off that engine's clock.

        The engine's trace keeps when and how long (`traces.probes`); returns the list of seconds, which grows.
        Neighbours on a shared machine come and go within seconds: only what is measured meanwhile tells how a run was
        disturbed. Raises ConfigError where steps are planned ahead.
        """
        if engine.config.async_scheduling:
            raise ConfigError("a probe needs the time between two steps, and with async_scheduling there is none")
        times_s: list[float] = []
        seconds: list[float] = []
        due_s = 0.0

        def take_step(event: StepEvent) -> None:
            nonlocal due_s
            if event.plan is not None and event.t_end_s >= due_s:
                due_s = event.t_end_s + EVERY_S
                with engine.off_the_clock():
                    seconds.append(self.once())
                times_s.append(event.t_end_s)

        engine.annotate(**{META: {"t_s": times_s, "seconds": seconds}})
        engine.observe(take_step)
        return seconds

    def close(self) -> None:
        """Give the engine up."""
        self._engine.close()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
