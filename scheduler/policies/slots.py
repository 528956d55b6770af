"""`slots`: seats and a queue. A free seat takes the queue's front and prefills it alone; then all seats decode."""

from __future__ import annotations

from ..config import SchedulerConfig
from ..step import Step
from .base import Policy


class Slots(Policy):
    """A sweep over the seats in index order: each free one takes a prompt, whole and in a step of its own, which
    samples one token; after the sweep all active seats decode once. The token budget does not bind.
    """

    name = "slots"
    repeats = True
    budgeted = False
    slot_order = True

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._next_slot = 0

    def plan(self, step: Step) -> None:
        """The sweep's next prefill, or the decode that ends the sweep."""
        for _ in range(2):  # a sweep may end with every seat empty again (one-token answers): then sweep anew
            if self._fill_next(step):
                return
            self._next_slot = 0
            if step.num_running:
                step.run_all()
                return

    def _fill_next(self, step: Step) -> bool:
        if not len(step.waiting):
            return False
        slot = step.next_free_slot(self._next_slot)
        if slot is None:
            step.wait("seqs" if step.next_free_slot() is None else "batch-closed")
            return False
        if not step.admit(whole=True, over_budget=True, slot=slot):
            return False
        self._next_slot = slot + 1
        if len(step.waiting):
            step.wait("batch-closed")
        return True
