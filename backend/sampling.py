"""What a request may ask of sampling and stopping: names, defaults and ranges are vLLM's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.errors import ConfigError

MAX_LOGPROBS = 20
"""Most alternatives per token, the limit of the OpenAI API."""
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: dividing by them would only overflow."""

_WHOLE: dict[str, tuple[int, float]] = {
    "n": (1, math.inf),
    "max_tokens": (1, math.inf),
    "min_tokens": (0, math.inf),
    "top_k": (-1, math.inf),
    "logprobs": (0, MAX_LOGPROBS),
    "seed": (-(2**63), 2**64 - 1),
}
_OPTIONAL = ("max_tokens", "logprobs", "seed")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


@dataclass(frozen=True)
class SamplingParams:
    """How to choose the next token and when to stop. Raises ConfigError naming the field and its range.

    The order is vLLM's: temperature, min-p, top-k, top-p, then one draw. Equal `seed` and prompt give equal tokens
    whatever else is in the batch.

    Attributes:
        n: completions of the prompt; the i-th (from 0) takes ``seed + i``.
        max_tokens: most output tokens; None: as many as ``max_model_len`` leaves.
        min_tokens: no EOS, stop token or stop string ends it before so many output tokens.
        temperature: logits are divided by it; 0 (below 1e-5) takes the likeliest token.
        top_k: only the `top_k` likeliest tokens (and those equal to the last of them); 1 is greedy; 0 or -1: all.
        top_p: only the likeliest tokens that together reach this probability.
        min_p: only tokens at least this fraction as likely as the likeliest.
        seed: 64 bits, signed or unsigned; None: the engine derives one.
        stop: strings that end the text; one string or a list of them is taken too.
        stop_token_ids: tokens that end it, besides EOS.
        ignore_eos: EOS does not end it.
        logprobs: so many alternatives with their log-probabilities besides the sampled token's; None: nothing at all.
        include_stop_str_in_output: leave the stop string (or stop token) in the text.
        skip_special_tokens: leave special tokens out of the text.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            self._check_whole(name, least, most)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "true or false")
        self._check_shape()
        self._check_stops()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _wrong("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")

    @property
    def greedy(self) -> bool:
        """Whether it takes the likeliest token, no draw."""
        return self.temperature < GREEDY_BELOW

    def _check_whole(self, name: str, least: int, most: float) -> None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        if not _is_whole(value) or not least <= value <= most:
            limits = f"a whole number >= {least}" if most == math.inf else f"a whole number from {least} to {most}"
            raise _wrong(name, value, limits + " (or none)" * (name in _OPTIONAL))

    def _check_shape(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise _wrong("temperature", self.temperature, "a number >= 0")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise _wrong("top_p", self.top_p, "a number above 0 and at most 1")
        if not _is_number(self.min_p) or not 0 <= self.min_p <= 1:
            raise _wrong("min_p", self.min_p, "a number from 0 to 1")

    def _check_stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not _is_list(stop) or not all(isinstance(text, str) and text for text in stop):
            raise _wrong("stop", self.stop, "a string or a list of strings, none of them empty")
        ids = self.stop_token_ids
        if not _is_list(ids) or not all(_is_whole(token) and token >= 0 for token in ids):
            raise _wrong("stop_token_ids", ids, "a list of whole numbers >= 0")
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_token_ids", tuple(ids))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _wrong(name: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}; expected {expected}")
