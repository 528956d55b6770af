"""`orca`: iteration-level scheduling. Whole prompts join the running decodes in one step."""

from __future__ import annotations

from ..step import Step
from .base import Policy


class Orca(Policy):
    """All running requests take a token; then whole prompts join while the budget lasts.

    A prompt that does not fit beside the decodes runs as its step's only prefill, so that it cannot starve.
    """

    name = "orca"
    repeats = True

    def plan(self, step: Step) -> None:
        """Running requests, then whole prompts."""
        step.run_all()
        while len(step.waiting) and not step.preempted:
            if not step.admit(whole=True, over_budget=not step.admitted):
                break
