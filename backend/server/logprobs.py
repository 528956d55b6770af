"""Log-probabilities in the two forms OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backend.outputs import TokenLogprobs

TokenText = Callable[[int], str]
_LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot hold; vLLM's value."""


def completion_logprobs(given: Sequence[TokenLogprobs], token_text: TokenText, start: int) -> dict[str, Any]:
    """Parallel lists, as ``/v1/completions`` gives them.

    Args:
        given: one a token.
        token_text: the text of a token id.
        start: where the first token's text begins in the whole text, characters.
    """
    tokens = [token_text(one.token_id) for one in given]
    offsets = [start]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(one.logprob) for one in given],
        "top_logprobs": [
            {token_text(token_id): _finite(logprob) for token_id, logprob in [(one.token_id, one.logprob), *one.top]}
            for one in given
        ],
        "text_offset": offsets[:-1],
    }


def chat_logprobs(given: Sequence[TokenLogprobs], token_text: TokenText) -> dict[str, Any]:
    """A list of objects, as ``/v1/chat/completions`` gives them."""
    content = [
        {
            **_entry(one.token_id, one.logprob, token_text),
            "top_logprobs": [_entry(token_id, logprob, token_text) for token_id, logprob in one.top],
        }
        for one in given
    ]
    return {"content": content, "refusal": None}


def _entry(token_id: int, logprob: float, token_text: TokenText) -> dict[str, Any]:
    text = token_text(token_id)
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
