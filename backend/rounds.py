"""Rounds: requests of chosen lengths sent to an engine together, so that the scheduler makes the steps one wants."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .outputs import StepEvent, TokenOutput
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .engine import Engine
    from .live import Live


@dataclass(frozen=True)
class Ask:
    """A request: the beginning of a document, then tokens that nobody has seen, then its output.

    With prefix caching, a document that has been read once costs nothing: only the `fresh` tokens are computed, after
    a `history` as long as one likes.

    Attributes:
        fresh: prompt tokens of its own, at least 1.
        output: tokens it answers.
        document: which document.
        history: tokens of it, whole KV blocks if they are to be found in the cache.
    """

    fresh: int
    output: int
    document: int = 0
    history: int = 0


@dataclass(frozen=True)
class Round:
    """Requests that run alone on an engine.

    Attributes:
        kind: of work, for people.
        first: arrive together.
        then: arrive together once the first of `first` has its first token, to run beside its decodes.
    """

    kind: str
    first: tuple[Ask, ...]
    then: tuple[Ask, ...] = ()


class Driver:
    """Sends rounds to an engine, one after the other.

    Outputs are computed and then replaced by known tokens, as in a replay, so that every length is as asked.

    Args:
        engine: where to; nobody else may use it.
        documents: how long they are, in tokens.
        seed: of all tokens.
    """

    def __init__(self, engine: Engine, documents: Sequence[int] = (), seed: int = 0) -> None:
        vocab = np.arange(engine.model_config.vocab_size, dtype=np.int32)
        self._allowed = np.setdiff1d(vocab, np.array(engine.config.eos_token_ids, dtype=np.int32))
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._documents = [self._tokens(length) for length in documents]
        self._engine = engine
        self._then: list[Live] = []
        self._left = 0
        self._seconds = 0.0
        self._over = threading.Event()
        engine.observe(self._take_step)

    def run(self, asked: Round, name: str) -> float:
        """Run a round to its end; returns the device and host seconds of its steps. Raises what stopped the engine.

        The i-th request is called ``NAME.i``.
        """
        lives = [self._live(ask, f"{name}.{i}") for i, ask in enumerate((*asked.first, *asked.then))]
        first, self._then = lives[: len(asked.first)], lives[len(asked.first) :]
        self._left, self._seconds = len(lives), 0.0
        self._over.clear()
        self._send(first)
        self._over.wait()
        if self._engine.failure is not None:
            raise self._engine.failure
        return self._seconds

    def _tokens(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return self._allowed[self._rng.integers(len(self._allowed), size=count)]

    def _live(self, ask: Ask, name: str) -> Live:
        script = self._tokens(ask.history + ask.fresh + ask.output)
        if ask.history:
            script[: ask.history] = self._documents[ask.document][: ask.history]
        return self._engine.make(
            script[: ask.history + ask.fresh].tolist(),
            SamplingParams(temperature=0.0, max_tokens=ask.output),
            self._take_token, request_id=name, text=False, script=script,
        )  # fmt: skip

    def _send(self, lives: list[Live]) -> None:
        now_s = self._engine.now()
        for live in lives:
            live.request.arrival_s = now_s
        self._engine.send(lives)

    def _take_token(self, output: TokenOutput) -> None:
        """A delivery, in the engine's thread: the first one lets the second wave in."""
        if output.finish_reason == "error":
            self._over.set()
        elif self._then and not self._engine.closed:
            lives, self._then = self._then, []
            self._send(lives)

    def _take_step(self, event: StepEvent) -> None:
        """A step, in the engine's thread, after it has been recorded."""
        self._seconds += event.device_s + event.host_s
        self._left -= len(event.finished)
        if not self._left:
            self._over.set()
