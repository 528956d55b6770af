"""A request while the engine has it: what was asked, what has been sampled, what its client has been told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.request import FinishReason, Request, TokenArray

from .outputs import FinishedRequest, TokenLogprobs, TokenOutput

if TYPE_CHECKING:
    from .sampling import SamplingParams
    from .text import TextStream

OnOutput = Callable[[TokenOutput], None]


class Live:
    """One request and its client.

    Args:
        request: as the scheduler knows it.
        params: how to sample.
        seed: of its sampling noise.
        on_output: told of every delivery, in the engine's thread.
        stream: turns tokens into text; None where nobody reads text.
        script: tokens that its outputs are known to be, prompt included; what is sampled is computed and replaced.
    """

    __slots__ = (
        "_pending", "_told", "first_s", "held", "last_s", "on_output", "params", "request", "scheduled_s", "script",
        "seed", "stream", "token_ids",
    )  # fmt: skip

    def __init__(
        self, request: Request, params: SamplingParams, seed: int, on_output: OnOutput | None,
        stream: TextStream | None, script: TokenArray | None = None,
    ) -> None:  # fmt: skip
        self.request = request
        self.params = params
        self.seed = seed
        self.on_output = on_output
        self.stream = stream
        self.script = script
        self.token_ids: list[int] = []
        self.held = False
        """Whether it has ended by itself and waits for its batch; an abort may still come."""
        self.scheduled_s: float | None = None
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._pending: list[tuple[int, TokenLogprobs | None]] = []
        self._told = 0
        """Tokens handed out."""

    def push(self, token_id: int, logprob: TokenLogprobs | None) -> bool:
        """Take a token just sampled; True when it completes a stop string."""
        self.token_ids.append(token_id)
        self._pending.append((token_id, logprob))
        return self.stream is not None and self.stream.push(token_id)

    def deliver(self, now_s: float) -> tuple[bool, float]:
        """Hand out what has been pushed, more will come; returns whether it held the first token, and the time since
        the one before (else 0).
        """
        told = self._mark(now_s)
        if self.on_output is not None:
            for token_id, logprob in self._pending:
                self._tell(token_id, logprob, now_s)
        self._pending.clear()
        return told

    def end(self, now_s: float, error: str | None = None) -> None:
        """Hand out what is left, and the end."""
        reason = self.request.finish_reason or FinishReason.ABORT
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._pending.clear()
        elif self._pending:
            self._mark(now_s)
        if self.on_output is not None:
            for token_id, logprob in self._pending[:-1]:
                self._tell(token_id, logprob, now_s)
            last_id, last_logprob = self._pending[-1] if self._pending else (None, None)
            self._tell(last_id, last_logprob, now_s, reason, error)
        self._pending.clear()

    def finished(self, now_s: float) -> FinishedRequest:
        """What became of it, for those who count."""
        request = self.request
        return FinishedRequest(
            str(request.request_id), str(request.finish_reason or FinishReason.ABORT), request.num_prompt_tokens,
            len(self.token_ids), request.num_cached_tokens, request.max_tokens, request.arrival_s, self.scheduled_s,
            self.first_s, self.last_s, now_s,
        )  # fmt: skip

    def _mark(self, now_s: float) -> tuple[bool, float]:
        first, gap_s = self.first_s is None, 0.0
        if first:
            self.first_s = now_s
        else:
            gap_s = now_s - (self.last_s or 0.0)
        self.last_s = now_s
        return first, gap_s

    def _tell(
        self, token_id: int | None, logprob: TokenLogprobs | None, now_s: float, reason: FinishReason | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        assert self.on_output is not None
        stream, request = self.stream, self.request
        text, stop_reason = "", None
        if stream is not None:
            text = stream.take() if reason is None else stream.finish()
        if reason is FinishReason.STOP:
            stop_reason = self._stop_reason(token_id)
        self._told += token_id is not None
        self.on_output(TokenOutput(
            str(request.request_id), token_id, text, logprob, None if reason is None else str(reason), stop_reason,
            request.num_prompt_tokens, self._told, request.num_cached_tokens, now_s, error,
        ))  # fmt: skip

    def _stop_reason(self, token_id: int | None) -> str | int | None:
        if self.stream is not None and self.stream.stop_reason is not None:
            return self.stream.stop_reason
        return token_id if token_id in self.request.stop_token_ids else None
