"""`static`: naive batching. A batch starts together, ends together, and takes nobody in between."""

from __future__ import annotations

from itertools import islice

from ..request import Request
from ..step import Step
from .base import Policy


class Static(Policy):
    """Takes up to `max_num_seqs` waiting requests, at the latest `batch_timeout_s` after the first of them came.

    Only as many start as fit rows x (longest prompt + longest `max_tokens`) of KV, which is reserved. The prefill is
    one step, whatever the token budget. Rows that end keep their seat, and in the padded layout go on computing, until
    the last one ends.
    """

    name = "static"
    repeats = True
    layout = "padded"
    holds = True
    budgeted = False
    reserves = True

    def plan(self, step: Step) -> None:
        """Go on with the batch, or start one."""
        if step.num_seated:
            step.run_all()
            if len(step.waiting):
                step.wait("batch-closed")
            return
        if len(step.waiting) and self._may_start(step):
            self._start(step)

    def _may_start(self, step: Step) -> bool:
        if len(step.waiting) >= self.config.max_num_seqs:
            return True
        # under priority the head need not be the first that came
        start_s = min(request.queued_s for request in step.waiting) + self.config.batch_timeout_s
        if step.now_s >= start_s:
            return True
        step.wake_s = start_s
        step.wait("batch-closed")
        return False

    def _start(self, step: Step) -> None:
        batch, blocks = self._roster(step)
        longest = max(request.num_prompt_tokens for request in batch)
        for request in batch:
            request.pad = longest - request.num_prompt_tokens if self.config.padding_side == "left" else 0
            step.admit(request=request, whole=True, over_budget=True, reserve=blocks)
        if len(step.waiting):
            step.wait("seqs" if len(batch) == self.config.max_num_seqs else "blocks")

    def _roster(self, step: Step) -> tuple[list[Request], int]:
        """The requests that start together and the KV blocks each row reserves."""
        batch: list[Request] = []
        blocks = prompt = outputs = 0
        for request in islice(step.waiting, self.config.max_num_seqs):
            prompt = max(prompt, request.num_prompt_tokens)
            outputs = max(outputs, request.end_at - request.num_prompt_tokens)
            row = self._row_blocks(prompt + outputs)
            if batch and row * (len(batch) + 1) > step.num_free_blocks:
                break
            batch.append(request)
            blocks = row
        return batch, blocks

    def _row_blocks(self, tokens: int) -> int:
        if self.config.kv_memory == "reserve-max-model-len":
            tokens = max(tokens, self.config.max_model_len)
        return -(-tokens // self.config.block_size)
