"""The executor: makes a plan into a batch and hands it to the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scheduler import Request, Scheduler, StepPlan
from scheduler.batch import FlatBatch, PaddedBatch, PersistentBatch
from scheduler.request import TokenArray
from scheduler.rows import PlanRows

from .device import Device, DeviceStep, Launched
from .live import Live
from .sampler import SamplingTable

FREE = -1
"""In a row of forced tokens: whatever is sampled stands."""


class Executor:
    """Turns each plan into what the device runs: block table changes, batch, sampling, known outputs.

    Args:
        scheduler: whose plans; it must track blocks and keep token rows.
        device: runs them.
        vocab_size: of the model.
        eos_token_ids: of the model; masked for requests that may not end yet (``min_tokens``).
    """

    def __init__(
        self, scheduler: Scheduler, device: Device, *, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._scheduler = scheduler
        self._device = device
        self._eos = eos_token_ids
        self._batch = PersistentBatch.of(scheduler)
        self._sampling = SamplingTable(scheduler.config.max_num_seqs, vocab_size)
        self._scripts: dict[int, TokenArray] = {}
        """Known outputs, by slot."""

    def launch(self, plan: StepPlan, lives: Mapping[Request, Live]) -> Launched:
        """Hand a plan to the device; call it with the newest plan, before the next `schedule` or `update`."""
        scheduler = self._scheduler
        updates = self._batch.apply(plan)
        rows = scheduler.rows(plan)
        seated = [self._seat(request, lives[request]) for request in plan.admitted]
        return self._device.launch(DeviceStep(
            batch=self._lay_out(plan, rows),
            updates=updates,
            seated=seated,
            slots=rows.slots,
            computed=rows.computed,
            scheduled=rows.scheduled,
            padding=plan.padding_graph,
            samples=rows.samples,
            sampling=self._sampling.batch(rows.slots, rows.computed + rows.scheduled),
            forced=self._forced(rows) if self._scripts else None,
        ))  # fmt: skip

    def _lay_out(self, plan: StepPlan, rows: PlanRows) -> FlatBatch | PaddedBatch | None:
        if plan.layout == "padded":
            return self._batch.build_padded(plan, rows, self._scheduler.burning())
        return None if self._device.lays_out else self._batch.build(plan, rows)

    def close(self) -> None:
        """No more plans will come."""
        self._device.close()

    def _seat(self, request: Request, live: Live) -> tuple[int, TokenArray]:
        """Note how the request in a seat is sampled; returns the seat and the tokens known."""
        slot = request.slot
        stops = () if request.ignore_eos else self._eos
        self._sampling.seat(
            slot, live.params, live.seed, (*stops, *request.stop_token_ids), request.num_prompt_tokens
        )  # fmt: skip
        self._scripts.pop(slot, None)
        if live.script is not None:
            self._scripts[slot] = live.script
        assert request.tokens is not None
        return slot, request.tokens[: request.num_tokens].copy()

    def _forced(self, rows: PlanRows) -> TokenArray:
        """The known outputs of this step's rows."""
        forced = np.full(len(rows.slots), FREE, dtype=np.int32)
        for index, (slot, place) in enumerate(
            zip(rows.slots.tolist(), (rows.computed + rows.scheduled).tolist(), strict=True)
        ):
            script = self._scripts.get(slot)
            if script is not None and place < len(script):
                forced[index] = script[place]
        return forced
