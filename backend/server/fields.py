"""Which fields of OpenAI's and vLLM's requests this server takes, takes without effect, or refuses."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from .errors import invalid

WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
})  # fmt: skip
"""Taken with any value: they label or bill a request, the answer is the same."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "chat_template": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""They would change the answer: refused, but for the values that mean "as usual" (null always does)."""


def checked(given: object, known: Collection[str]) -> object:
    """A request's fields without nulls and without those that have no effect.

    Args:
        given: the JSON document.
        known: the fields that the endpoint understands.

    Raises:
        ApiError: names a field that is not supported, or unknown.
    """
    if not isinstance(given, Mapping):
        return given
    for name, value in given.items():
        if name not in known and value is not None and name not in WITHOUT_EFFECT:
            _refuse(name, value, known)
    return {name: value for name, value in given.items() if name in known and value is not None}


def _refuse(name: str, value: object, known: Collection[str]) -> None:
    if name in UNSUPPORTED:
        if any(value == usual and isinstance(value, bool) == isinstance(usual, bool) for usual in UNSUPPORTED[name]):
            return
        raise invalid(f"{name} is not supported by this server", name, "unsupported_parameter")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise invalid(f"unknown field {name[:60]!r}{hint}", name[:60], "unknown_parameter")
