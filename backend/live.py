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
        "_logprobs", "_name", "_told", "first_s", "held", "last_s", "on_output", "params", "request", "scheduled_s",
        "script", "seed", "stream", "token_ids",
    )  # fmt: skip

    def __init__(
        self, request: Request, params: SamplingParams, seed: int, on_output: OnOutput | None,
        stream: TextStream | None, script: TokenArray | None = None,
    ) -> None:  # fmt: skip
        self._name = str(request.request_id)
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
        self._logprobs: list[TokenLogprobs] = []
        """Of all tokens, where they were asked for."""
        self._told = 0
        """Tokens handed out."""

    def push(self, token_id: int, logprob: TokenLogprobs | None) -> bool:
        """Take a token just sampled; True when it completes a stop string."""
        self.token_ids.append(token_id)
        if logprob is not None:
            self._logprobs.append(logprob)
        stream = self.stream
        return stream is not None and stream.push(token_id)

    def deliver(self, now_s: float) -> float | None:
        """Hand out what has been pushed, more will come; returns seconds since the token before, None at the first."""
        before_s = self._mark(now_s)
        if self.on_output is not None:
            self._hand_out(len(self.token_ids), now_s)
        return None if before_s is None else now_s - before_s

    def end(self, now_s: float, error: str | None = None) -> None:
        """Hand out what is left, and the end."""
        reason = self.request.finish_reason or FinishReason.ABORT
        cut_off = reason in (FinishReason.ABORT, FinishReason.ERROR)
        last = None if cut_off or self._told == len(self.token_ids) else len(self.token_ids) - 1
        if last is not None:
            self._mark(now_s)
        if self.on_output is not None:
            if last is not None:
                self._hand_out(last, now_s)
            self._tell_end(last, now_s, reason, error)

    def finished(self, now_s: float) -> FinishedRequest:
        """What became of it, for those who count."""
        request = self.request
        return FinishedRequest(
            str(request.request_id), str(request.finish_reason or FinishReason.ABORT), request.num_prompt_tokens,
            len(self.token_ids), request.num_cached_tokens, request.max_tokens, request.arrival_s, self.scheduled_s,
            self.first_s, self.last_s, now_s,
        )  # fmt: skip

    def _mark(self, now_s: float) -> float | None:
        """Note a delivery; returns when the one before was."""
        before_s, self.last_s = self.last_s, now_s
        if before_s is None:
            self.first_s = now_s
        return before_s

    def _hand_out(self, until: int, now_s: float) -> None:
        """The tokens before place `until` that have not been; more will come."""
        tell, stream, request, logprobs = self.on_output, self.stream, self.request, self._logprobs
        assert tell is not None
        for place in range(self._told, until):
            tell(TokenOutput(
                self._name, self.token_ids[place], "" if stream is None else stream.take(),
                logprobs[place] if logprobs else None, None, None, request.num_prompt_tokens, place + 1,
                request.num_cached_tokens, now_s,
            ))  # fmt: skip
        self._told = until

    def _tell_end(self, last: int | None, now_s: float, reason: FinishReason, error: str | None) -> None:
        """The end, with the token at place `last` if there is one to tell."""
        assert self.on_output is not None
        token_id = None if last is None else self.token_ids[last]
        logprob = None if last is None or not self._logprobs else self._logprobs[last]
        stream, request = self.stream, self.request
        text = "" if stream is None else stream.finish()
        stop_reason = self._stop_reason(token_id) if reason is FinishReason.STOP else None
        self._told += token_id is not None
        self.on_output(TokenOutput(
            self._name, token_id, text, logprob, str(reason), stop_reason, request.num_prompt_tokens, self._told,
            request.num_cached_tokens, now_s, error,
        ))  # fmt: skip

    def _stop_reason(self, token_id: int | None) -> str | int | None:
        if self.stream is not None and self.stream.stop_reason is not None:
            return self.stream.stop_reason
        return token_id if token_id in self.request.stop_token_ids else None
