"""Whole answers: what `Engine.generate` makes of prompts and parameters, and of the tokens that come back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.errors import ConfigError

from .outputs import RequestOutput, TokenOutput
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .engine import Engine

Prompt = str | Sequence[int]
"""A text, or token ids."""


class Answer:
    """Collects what one request delivers."""

    def __init__(self, engine: Engine, prompt: Prompt, params: SamplingParams) -> None:
        self._outputs: list[TokenOutput] = []
        self._ended = threading.Event()
        self._prompt = engine.encode(prompt)
        self.live = engine.make(self._prompt, params, self._take)

    def _take(self, output: TokenOutput) -> None:
        self._outputs.append(output)
        if output.finish_reason is not None:
            self._ended.set()

    def wait(self) -> RequestOutput:
        """The whole answer; blocks until it is there."""
        self._ended.wait()
        outputs, last = self._outputs, self._outputs[-1]
        tokens = [output for output in outputs if output.token_id is not None]
        logprobs = [output.logprob for output in tokens if output.logprob is not None]
        assert last.finish_reason is not None
        return RequestOutput(
            last.request_id, self._prompt, [output.token_id for output in tokens if output.token_id is not None],
            "".join(output.text for output in outputs), last.finish_reason, last.stop_reason,
            logprobs if self.live.params.logprobs is not None else None, last.num_cached_tokens,
            self.live.request.arrival_s, self.live.first_s, last.time_s, error=last.error,
        )  # fmt: skip


def expand(params: SamplingParams) -> list[SamplingParams]:
    """One set of parameters for each of the `n` answers: seeds count up from the one given."""
    if params.n == 1:
        return [params]
    return [
        replace(params, n=1, seed=None if params.seed is None else params.seed + index) for index in range(params.n)
    ]


def with_choices(answers: list[RequestOutput]) -> RequestOutput:
    """The first of several answers to one prompt, which holds them all."""
    first = answers[0]
    first.choices = answers if len(answers) > 1 else []
    return first


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Prompts as a list, whether one or several were given."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # a str, or a sequence whose first item is an int: one prompt
    return list(prompts)  # type: ignore[arg-type]  # then it is a sequence of prompts


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Parameters for each of `count` prompts; none given: greedy, to the end. Raises ConfigError for another number."""
    if params is None:
        return [SamplingParams(temperature=0.0, max_tokens=None)] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ConfigError(f"{len(params)} sampling parameters for {count} prompts; expected one, or one each")
    return list(params)
