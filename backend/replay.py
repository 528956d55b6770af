"""Replay of a workload on the engine: its arrivals, its lengths, its shared prefixes, on real tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from scheduler.errors import ConfigError
from scheduler.request import TokenArray
from traces.servable import servable_with
from traces.tokens import TokenSource
from traces.workload import Workload

from .outputs import TokenOutput
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .engine import Engine
    from .live import Live


class ReplayTokens:
    """Prompts and outputs for a workload: equal units of content become equal tokens, all else differs.

    Args:
        workload: whose lengths and contents.
        vocab_size: of the model.
        avoid: token ids that are never used (EOS: an output must not end before its time).
    """

    def __init__(self, workload: Workload, vocab_size: int, avoid: tuple[int, ...]) -> None:
        ids, offsets = workload.hash_ids, workload.hash_offsets
        if ids is None or offsets is None:
            ids, offsets = np.zeros(0, dtype=np.int64), np.zeros(len(workload) + 1, dtype=np.int64)
        self._source = TokenSource(
            workload.prompt_tokens, workload.output_tokens, ids, offsets, max(workload.hash_block, 1),
            covers_output=workload.hash_covers == "sequence",
        )  # fmt: skip
        self._allowed = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.array(avoid, dtype=np.int32))

    def script(self, i: int) -> TokenArray:
        """Prompt and output of request `i`, int32 ``(prompt + output,)``, below the vocabulary's size."""
        script: TokenArray = self._allowed[self._source.script(i) % len(self._allowed)]
        return script


def replay(
    engine: Engine, workload: Workload, *, realtime: bool = False, concurrency: int | None = None,
    on_end: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Send a workload to an engine and wait until the last answer is there.

    Every output is computed and then replaced by the workload's own (`ReplayTokens`), so that lengths and later prefix
    hits are those of the workload.

    Args:
        engine: where to.
        workload: what.
        realtime: requests arrive when the workload says; else all at the start, in its order.
        concurrency: so many clients that wait for their answers instead.
        on_end: told whenever a request has ended.

    Raises:
        InputError: a request could never run on this engine (it is named, and nothing has been sent).
        ConfigError: `realtime` and `concurrency` contradict each other.
    """
    check_load(realtime, concurrency)
    workload = servable_with(engine.config, workload)
    ends = _Ends(len(workload), on_end)
    lives = list(_requests(engine, workload, ends))
    if concurrency is not None:
        ends.feed(engine, lives, concurrency)
    elif realtime:
        _send_in_time(engine, lives, workload)
    else:
        _arrive_now(engine, lives)
    ends.wait()
    if engine.failure is not None:
        raise engine.failure


def check_load(realtime: bool, concurrency: int | None) -> None:
    """Raise ConfigError for ways of sending that contradict each other."""
    if realtime and concurrency is not None:
        raise ConfigError("real time and concurrency contradict each other; give one of them")
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; expected a whole number of clients >= 1")


class _Ends:
    """Counts the requests that have ended; in a closed loop each end lets the next request in."""

    def __init__(self, total: int, on_end: Callable[[], None] | None) -> None:
        self._left = total
        self._on_end = on_end
        self._all = threading.Event()
        self._engine: Engine | None = None
        self._queue: list[Live] = []

    def feed(self, engine: Engine, lives: list[Live], concurrency: int) -> None:
        """Send the first few, the others one by one as those end."""
        self._engine, self._queue = engine, lives[concurrency:][::-1]
        _arrive_now(engine, lives[:concurrency])

    def take(self, output: TokenOutput) -> None:
        """A delivery, in the engine's thread."""
        if output.finish_reason is None:
            return
        self._left -= 1
        if self._on_end is not None:
            self._on_end()
        if self._queue and self._engine is not None and not self._engine.closed:
            _arrive_now(self._engine, [self._queue.pop()])
        if self._left == 0 or (self._engine is not None and self._engine.closed):
            self._all.set()

    def wait(self) -> None:
        """Until all have."""
        self._all.wait()


def _requests(engine: Engine, workload: Workload, ends: _Ends) -> Iterator[Live]:
    tokens = ReplayTokens(workload, engine.model_config.vocab_size, engine.config.eos_token_ids)
    limits = workload.output_tokens if workload.max_tokens is None else workload.max_tokens
    start_s = engine.now()
    for i in range(len(workload)):
        prompt, output = int(workload.prompt_tokens[i]), int(workload.output_tokens[i])
        script = tokens.script(i)
        yield engine.make(
            script[:prompt].tolist(),
            SamplingParams(temperature=0.0, max_tokens=int(limits[i])),
            ends.take,
            request_id=str(i if workload.request_ids is None else workload.request_ids[i].item()),
            priority=0 if workload.priority is None else int(workload.priority[i]),
            arrival_s=start_s,
            text=False,
            script=script,
            eos_at=output if limits[i] > output else None,
        )


def _arrive_now(engine: Engine, lives: list[Live]) -> None:
    """Send requests that arrive at this moment, however long it took to make them."""
    now_s = engine.now()
    for live in lives:
        live.request.arrival_s = now_s
    engine.send(lives)


def _send_in_time(engine: Engine, lives: list[Live], workload: Workload) -> None:
    start_s = engine.now()
    for live, offset_s in zip(lives, workload.arrival_s.tolist(), strict=True):
        live.request.arrival_s = start_s + offset_s
        while (left_s := live.request.arrival_s - engine.now()) > 0:  # its clock may have been held meanwhile
            time.sleep(max(left_s, 0.0005))
        engine.send([live])
