"""Answers as they grow: a call's deliveries become one JSON document or a stream of chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .bridge import Call
from .errors import ApiError, busy
from .sse import DONE, event

if TYPE_CHECKING:
    from backend.outputs import TokenLogprobs, TokenOutput

    from .protocol import SamplingRequest

Json = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """One answer so far."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_chars: int = 0
    """Characters of the tokens whose log-probabilities were told."""

    def count(self, output: TokenOutput) -> None:
        """Note a delivery, all but its text and log-probabilities. Raises ApiError where it is a failure."""
        if output.finish_reason == "error":
            raise ApiError(500, output.error or "the engine ended this request", code="engine_error")
        if output.finish_reason == "abort":
            raise busy("the server is stopping and ended this request", "aborted")
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.num_tokens, self.num_cached_tokens = output.num_output_tokens, output.num_cached_tokens

    def keep(self, output: TokenOutput) -> None:
        """Note its text and log-probabilities too, for an answer that is told at its end."""
        self.pieces.append(output.text)
        if output.logprob is not None:
            self.logprobs.append(output.logprob)


class Shape(ABC):
    """How an endpoint tells its answers.

    Args:
        call_id: id of the response.
        model: name to give.
        token_text: the text of a token id.
        prompts: token ids of each; answer i belongs to prompt ``i // n``.
        n: answers to each prompt.
    """

    whole_object: str
    chunk_object: str

    def __init__(
        self, call_id: str, model: str, token_text: Callable[[int], str], prompts: Sequence[list[int]], n: int
    ) -> None:
        self.call_id = call_id
        self.token_text = token_text
        self.prompts = prompts
        self.n = n
        self._model = model
        self._created = int(time.time())

    @abstractmethod
    def choice(self, index: int, answer: Answer) -> Json:
        """A whole answer: all that stands beside ``index``, ``finish_reason`` and ``stop_reason``."""

    @abstractmethod
    def delta(self, index: int, output: TokenOutput, answer: Answer, first: bool) -> Json:
        """What one delivery adds; `first` says that nothing of this answer was told before."""

    def whole(self, answers: Sequence[Answer]) -> Json:
        """The response of a call that does not stream."""
        choices = [
            {"index": index, **self.choice(index, answer), "finish_reason": answer.finish_reason,
             "stop_reason": answer.stop_reason}
            for index, answer in enumerate(answers)
        ]  # fmt: skip
        return {**self._head(self.whole_object), "choices": choices, "usage": self.usage(answers)}

    def chunk(self, choices: list[Json], usage: Json | None, *, with_usage: bool) -> Json:
        """One chunk of a stream."""
        chunk = {**self._head(self.chunk_object), "choices": choices}
        return {**chunk, "usage": usage} if with_usage else chunk

    def usage(self, answers: Sequence[Answer]) -> Json:
        """Token counts of the whole call: a prompt counts once, however many answers it gets."""
        cached = sum(answer.num_cached_tokens for answer in answers[:: self.n])
        return usage_of(sum(map(len, self.prompts)), sum(answer.num_tokens for answer in answers), cached)

    def usage_so_far(self, index: int, answer: Answer) -> Json:
        """Token counts of one answer."""
        return usage_of(len(self.prompts[index // self.n]), answer.num_tokens, answer.num_cached_tokens)

    def _head(self, kind: str) -> Json:
        return {"id": self.call_id, "object": kind, "created": self._created, "model": self._model}


def usage_of(prompt: int, output: int, cached: int) -> Json:
    """OpenAI's ``usage`` object."""
    return {
        "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


async def collect(call: Call, shape: Shape) -> Json:
    """Wait for all answers of a call. Raises ApiError when the engine ended one by force."""
    answers = [Answer() for _ in range(len(shape.prompts) * shape.n)]
    async for batch in call.batches():
        for index, output in batch:
            answers[index].count(output)
            answers[index].keep(output)
    return shape.whole(answers)


async def events(call: Call, shape: Shape, asked: SamplingRequest) -> AsyncGenerator[bytes, None]:
    """A call as server-sent events, one a delivery; an answer that fails ends the stream with an error event."""
    answers = [Answer() for _ in range(len(shape.prompts) * shape.n)]
    told: set[int] = set()
    ready: list[bytes] = []
    try:
        async for batch in call.batches():
            for delivery in batch:
                ready.append(event(_chunk(shape, asked, answers, told, *delivery)))
            yield b"".join(ready)
            ready.clear()
        if asked.usage_chunk:
            ready.append(event(shape.chunk([], shape.usage(answers), with_usage=True)))
    except ApiError as error:
        ready.append(event(error.body()))
    yield b"".join([*ready, DONE])


def _chunk(
    shape: Shape, asked: SamplingRequest, answers: list[Answer], told: set[int], index: int, output: TokenOutput
) -> Json:
    answer = answers[index]
    answer.count(output)
    delta = shape.delta(index, output, answer, index not in told)
    told.add(index)
    choice = {"index": index, **delta, "finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
    usage = shape.usage_so_far(index, answer) if asked.usage_always else None
    return shape.chunk([choice], usage, with_usage=asked.usage_chunk or asked.usage_always)
