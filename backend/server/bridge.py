"""From the engine's thread to asyncio: one wake-up for many outputs, and calls that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.engine import Engine
    from backend.outputs import TokenOutput
    from backend.sampling import SamplingParams

Delivery = tuple[int, "TokenOutput"]
"""The number of an answer within its call, and what the engine delivered for it."""


class Bridge:
    """Carries outputs to the event loop. The engine's thread only appends, and wakes the loop when it sleeps.

    Args:
        loop: runs the server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[tuple[Call, int, TokenOutput]] = deque()
        self._woken = False

    def deliver(self, call: Call, index: int, output: TokenOutput) -> None:
        """Called in the engine's thread; costs about a microsecond."""
        self._pending.append((call, index, output))
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:
            if not self._loop.is_closed():  # else the server has stopped and nobody waits any more
                raise

    def _hand_out(self) -> None:
        self._woken = False  # before the deque is emptied: what comes after that wakes the loop again
        while self._pending:
            call, index, output = self._pending.popleft()
            call.take(index, output)


class Call:
    """The answers that one HTTP request waits for.

    Args:
        engine: gives them.
        bridge: carries them.
        call_id: begins the ids of the engine's requests, ``CALL_ID-0``, ``CALL_ID-1``, ...
    """

    def __init__(self, engine: Engine, bridge: Bridge, call_id: str) -> None:
        self.call_id = call_id
        self._engine = engine
        self._bridge = bridge
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._unfinished: set[int] = set()

    def start(
        self, asked: Sequence[tuple[list[int], SamplingParams]], *, priority: int = 0, cache_salt: str = ""
    ) -> None:
        """Hand all prompts to the engine, or none. Raises its UserErrors."""
        lives = [
            self._engine.make(
                prompt, params, partial(self._bridge.deliver, self, index), request_id=f"{self.call_id}-{index}",
                priority=priority, cache_salt=cache_salt,
            )
            for index, (prompt, params) in enumerate(asked)
        ]  # fmt: skip
        self._engine.send(lives)
        self._unfinished.update(range(len(lives)))

    def take(self, index: int, output: TokenOutput) -> None:
        """Called in the event loop for each delivery."""
        if output.finish_reason is not None:
            self._unfinished.discard(index)
        self._deliveries.put_nowait((index, output))

    async def batches(self) -> AsyncIterator[list[Delivery]]:
        """Deliveries as they come, those already here together, until every answer has ended."""
        while self._unfinished or not self._deliveries.empty():
            batch = [await self._deliveries.get()]
            while not self._deliveries.empty():
                batch.append(self._deliveries.get_nowait())
            yield batch

    def abort(self) -> None:
        """End what has not ended, at once. Nothing happens when all has."""
        for index in self._unfinished:
            self._engine.abort(f"{self.call_id}-{index}")
        self._unfinished.clear()
