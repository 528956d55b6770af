"""The text of a request as its tokens come: what can be shown now, and whether a stop string ends it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from scheduler.errors import ConfigError

from .pieces import pieces_of
from .stop_strings import START, automaton

if TYPE_CHECKING:
    from .sampling import SamplingParams
    from .tokenizer import Tokenizer


class TextStream:
    """Tokens to text, cut at the first stop string.

    The stop string that is complete first ends it, wherever it begins and however tokens divide it; of several that are
    complete with the same character, the longest. Text is held back while it may become a stop string or is half a
    character. Before more than ``min_tokens`` tokens have come nothing ends it, as in vLLM. The text of an EOS or stop
    token is left out, unless ``include_stop_str_in_output``.

    Args:
        tokenizer: None: tokens have no text; stop strings are a ConfigError then.
        params: of the request.
        eos_token_ids: tokens that end it; default: the tokenizer's.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, params: SamplingParams, *, eos_token_ids: Collection[int] | None = None
    ) -> None:
        if tokenizer is None and params.stop:
            raise ConfigError(f"stop is {list(params.stop)!r}; expected none: this model has no tokenizer, so no text")
        self._pieces = pieces_of(tokenizer.backend, skip_special=params.skip_special_tokens) if tokenizer else None
        eos = eos_token_ids if eos_token_ids is not None else tokenizer.eos_token_ids if tokenizer else ()
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos))
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._automaton = automaton(params.stop) if params.stop else None
        self._state = START
        self._count = 0
        self._pending = ""
        self._delivered: list[str] = []
        self.stop_reason: str | None = None
        """The stop string that ended it."""

    @property
    def text(self) -> str:
        """All text delivered so far."""
        return "".join(self._delivered)

    def push(self, token_id: int) -> bool:
        """Take the next token; True when it completes a stop string. No token may follow that one."""
        if self.stop_reason is not None:
            raise RuntimeError(f"token {token_id} follows the stop string {self.stop_reason!r}")
        self._count += 1
        if self._pieces is None or (not self._include_stop and self._is_end(token_id)):
            return False
        return self._add(self._pieces.push(token_id))

    def take(self) -> str:
        """The text that can be shown now and was not delivered yet."""
        held = 0
        if self._automaton is not None and not self._include_stop and self.stop_reason is None:
            held = self._automaton.held[self._state]
        return self._deliver(len(self._pending) - held)

    def finish(self) -> str:
        """The rest: no token will come. Half a character becomes U+FFFD."""
        if self._pieces is not None and self.stop_reason is None:
            self._pending += self._pieces.flush()
        return self._deliver(len(self._pending))

    def _is_end(self, token_id: int) -> bool:
        """Whether the request ends by this token: the scheduler's rule."""
        return token_id in self._ends and self._count >= self._min_tokens

    def _add(self, piece: str) -> bool:
        """Append text, up to the end of a stop string."""
        if self._automaton is None:
            self._pending += piece
            return False
        end = self._search(piece)
        self._pending += piece[:end]
        if self.stop_reason is None:
            return False
        if not self._include_stop:
            self._pending = self._pending[: -len(self.stop_reason)]
        return True

    def _search(self, piece: str) -> int:
        """Read a piece; returns its length, or where in it the stop string found ends."""
        assert self._automaton is not None
        step, match, state = self._automaton.step, self._automaton.match, self._state
        looking = self._count > self._min_tokens
        for place, character in enumerate(piece, 1):
            state = step(state, character)
            if looking and match[state] is not None:
                self.stop_reason = match[state]
                return place
        self._state = state
        return len(piece)

    def _deliver(self, length: int) -> str:
        text, self._pending = self._pending[:length], self._pending[length:]
        if text:
            self._delivered.append(text)
        return text
