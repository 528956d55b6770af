"""`prefill-first`: vLLM V0. A step is all prefill or all decode, and prefill goes first."""

from __future__ import annotations

from ..step import Step
from .base import Policy


class PrefillFirst(Policy):
    """Whole prompts while any can be admitted, up to the budget (one over it runs alone); else one decode of all."""

    name = "prefill-first"
    repeats = True

    def plan(self, step: Step) -> None:
        """Admissions if possible, otherwise decodes."""
        while len(step.waiting) and step.admit(whole=True, over_budget=not step.admitted):
            pass
        if not step.admitted:
            step.run_all()
