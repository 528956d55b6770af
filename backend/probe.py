"""The probe: a small piece of work that is always the same; how long it takes says how fast the machine is just now."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.config import SchedulerConfig
from traces.probes import PREFIX

from .rounds import Ask, Driver, Round

if TYPE_CHECKING:
    from .weights import Weights

REQUESTS, PROMPT, OUTPUT = 4, 32, 9
"""A batch of four prompts, then eight steps of four decodes."""
_MEASURED_S = 0.3


def probe_round(config: SchedulerConfig) -> Round:
    """The probe's work, or as much of it as the settings leave room for."""
    count = min(REQUESTS, config.max_num_seqs)
    length = min(config.length_cap, config.usable_blocks * config.block_size)
    prompt = max(min(PROMPT, config.max_num_batched_tokens // count, length // 2), 1)
    output = max(min(OUTPUT, length - prompt), 1)
    fits = max(config.usable_blocks // -(-(prompt + output) // config.block_size), 1)
    return Round("probe", (Ask(prompt, output),) * min(count, fits))


class Probe:
    """An engine kept open for the probe alone; ``with Probe(...) as probe``.

    Args:
        model: see `Engine`.
        options: of the engine (device, dtype, threads, policy, layout, ...).

    Raises:
        UserError: an option is wrong, or the model cannot be had.
    """

    def __init__(self, model: str | Path | Weights = "embedded", **options: Any) -> None:
        from .engine import Engine

        small = {"max_num_seqs": REQUESTS, "max_model_len": 4 * PROMPT, "num_blocks": 65, "batch_timeout_s": 0.0}
        self._engine = Engine(model, **{**small, **options})
        self._driver = Driver(self._engine)
        self._round = probe_round(self._engine.config)
        self._count = 0
        self._run()  # the first one warms up

    def seconds(self) -> float:
        """Device and host seconds of the probe's steps just now: the median over about 0.3 s, at least three times."""
        until_s = time.perf_counter() + _MEASURED_S
        found: list[float] = []
        while len(found) < 3 or time.perf_counter() < until_s:
            found.append(self._run())
        return statistics.median(found)

    def close(self) -> None:
        """Give the engine up."""
        self._engine.close()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> float:
        self._count += 1
        return self._driver.run(self._round, f"{PREFIX}{self._count}")
