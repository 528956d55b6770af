"""`chunked`: vLLM V1. No phases; running requests first, prompts in chunks of whatever budget is left."""

from __future__ import annotations

from ..config import SchedulerConfig
from ..errors import RequestRefused
from ..request import Request
from ..step import UNLIMITED, Step
from .base import Policy


class Chunked(Policy):
    """Each request's computed tokens chase its known tokens; running ones go first, then the queue in order."""

    name = "chunked"
    repeats = True
    splits_prompts = True

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._threshold = config.long_prefill_token_threshold
        # vLLM never splits with chunking off, so there a preempted request that outgrew the budget blocks the queue
        # for ever; here `admit` recomputes it in chunks.
        self._whole = not config.enable_chunked_prefill

    def plan(self, step: Step) -> None:
        """Running requests, then admissions while budget, slots and blocks last (none after a preemption)."""
        limit, threshold = UNLIMITED, self._threshold
        if threshold and step.num_running + len(step.waiting) > 1:
            limit = threshold
        step.run_all(limit)
        while step.waiting and not step.preempted:
            if not step.admit(limit, whole=self._whole):
                break

    def refuse(self, request: Request) -> RequestRefused | None:
        """With chunked prefill off, a prompt over the budget never fits."""
        budget = self.config.max_num_batched_tokens
        if self.config.enable_chunked_prefill or request.num_prompt_tokens <= budget:
            return None
        return RequestRefused(
            f"request {request.request_id}: its prompt of {request.num_prompt_tokens} tokens exceeds "
            f"max_num_batched_tokens {budget} with chunked prefill off; raise it or enable chunked prefill"
        )
