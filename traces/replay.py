"""Plans and block tables of any step, rebuilt from the plan log."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .schema import ABORTED, ARRIVED, DROPPED, FINISHED, JOINED, LEFT, LOST_SEAT, ROW, STEADY
from .store import Columns

Steps = npt.NDArray[np.int64]
PlanRow = tuple[int, int, int, int, bool]
"""``(request, slot, computed, scheduled, samples)``"""

CHECKPOINT_STEPS = 256


@dataclass
class _State:
    """What is known after the steps before `place`."""

    place: int = 0
    steady: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Member of the steady prefix -> its slot, tokens computed when it joined, steady steps before that."""
    computed: dict[int, int] = field(default_factory=dict)
    """Request outside the prefix -> tokens computed."""
    blocks: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Ended with the step before: gone from the next one on, unless that was planned before this was known."""

    def keep(self, requests: set[int]) -> None:
        """Forget all other requests."""
        for held in (self.steady, self.computed, self.blocks):
            for request in held.keys() - requests:
                del held[request]
        self.ended &= requests

    def copy(self) -> _State:
        """An independent copy."""
        blocks = {request: list(held) for request, held in self.blocks.items()}
        return _State(self.place, dict(self.steady), dict(self.computed), blocks, set(self.ended))


class PlanReplay:
    """Replays the log of a trace.

    A jump starts from whichever is nearest before it: the step looked at last, a checkpoint, or the step in which the
    oldest of those who are seated got its seat, with nothing known before.

    Args:
        steps: the numbers of all steps.
        plans: all columns of the plan log.
        blocks: all columns of the blocks handed out.
    """

    def __init__(self, steps: Steps, plans: Columns, blocks: Columns) -> None:
        self._steps = steps
        order = np.argsort(plans["step"], kind="stable")
        self._log = {name: column[order] for name, column in plans.items()}
        self._bounds = _bounds(self._log["step"], self._steps)
        self._ticking = self._find_ticks()
        self._ticks_before = np.concatenate([[0], np.cumsum(self._ticking)])
        self._blocks = blocks
        self._block_bounds = _bounds(blocks["step"], self._steps)
        self._lives = _lives(self._log, self._steps)
        self._state = _State()
        self._checkpoints: dict[int, _State] = {}
        self._last: tuple[int, list[PlanRow], dict[int, list[int]]] | None = None

    def plan_at(self, step: int) -> list[PlanRow]:
        """Rows of a step: the steady prefix in running order, then the tail."""
        return self._at(step)[0]

    def block_table_at(self, step: int) -> dict[int, list[int]]:
        """Request -> block ids in logical order, during a step."""
        return self._at(step)[1]

    def events_at(self, step: int, event: int) -> list[int]:
        """Requests with this event in a step's plan."""
        return self._events(self._place(step))[event]

    def _find_ticks(self) -> npt.NDArray[np.bool_]:
        """Whether the steady prefix ran, for each step."""
        lines = np.flatnonzero(self._log["event"] == STEADY)
        rows = np.concatenate([[0], self._log["scheduled"][lines]])
        return rows[np.searchsorted(self._log["step"][lines], self._steps, side="right")] > 0

    def _at(self, step: int) -> tuple[list[PlanRow], dict[int, list[int]]]:
        place = self._place(step)
        if self._last is None or self._last[0] != place:
            self._seek(place)
            rows = self._advance()
            self._last = place, rows, {request: list(held) for request, held in self._state.blocks.items()}
        return self._last[1], self._last[2]

    def _place(self, step: int) -> int:
        place = int(np.searchsorted(self._steps, step))
        if place == len(self._steps) or self._steps[place] != step:
            raise LookupError(f"the trace holds no step {step}")
        return place

    def _seek(self, place: int) -> None:
        known = [state for state in (self._state, self._checkpoint(place)) if state.place <= place]
        start = max(known, key=lambda state: state.place)
        oldest = self._lives.oldest(place)
        if oldest > start.place:
            self._state = _State(oldest)
            while self._state.place < place:
                self._advance()
            self._state.keep(self._lives.at(place))  # of others the beginning was not seen
            return
        self._state = start if start is self._state else start.copy()
        while self._state.place < place:
            if self._state.place % CHECKPOINT_STEPS == 0 and self._state.place not in self._checkpoints:
                self._checkpoints[self._state.place] = self._state.copy()
            self._advance()

    def _checkpoint(self, place: int) -> _State:
        """The last checkpoint that is not beyond a place."""
        for start in range(place - place % CHECKPOINT_STEPS, 0, -CHECKPOINT_STEPS):
            if start in self._checkpoints:
                return self._checkpoints[start]
        return _State()

    def _advance(self) -> list[PlanRow]:
        """Take in the step at the state's place; returns its rows."""
        state = self._state
        place = state.place
        events = self._events(place)
        self._remove(state.ended - set(events[DROPPED]))
        self._remove(events[ABORTED])
        self._join(place)
        for request in events[LEFT] + events[LOST_SEAT]:
            self._leave(request)
        for request in events[LOST_SEAT]:
            state.computed.pop(request, None)
            state.blocks.pop(request, None)
        rows = self._steady_rows(place) + self._tail_rows(place)
        self._take_blocks(place)
        state.ended = set(events[FINISHED]) | (state.ended & set(events[DROPPED]))
        state.place = place + 1
        return rows

    def _events(self, place: int) -> dict[int, list[int]]:
        start, stop = self._bounds[place], self._bounds[place + 1]
        found: dict[int, list[int]] = {event: [] for event in range(STEADY + 1)}
        for event, request in zip(
            self._log["event"][start:stop].tolist(), self._log["request"][start:stop].tolist(), strict=True
        ):
            found[event].append(request)
        return found

    def _remove(self, requests: set[int] | list[int]) -> None:
        for request in requests:
            for held in (self._state.steady, self._state.computed, self._state.blocks):
                held.pop(request, None)

    def _leave(self, request: int) -> None:
        member = self._state.steady.pop(request, None)
        if member is not None:
            _, computed, ticks = member
            self._state.computed[request] = computed + int(self._ticks_before[self._state.place]) - ticks

    def _join(self, place: int) -> None:
        start, stop = self._bounds[place], self._bounds[place + 1]
        ticks = int(self._ticks_before[place])
        for at in start + np.flatnonzero(self._log["event"][start:stop] == JOINED):
            request, slot = int(self._log["request"][at]), int(self._log["slot"][at])
            computed = self._state.computed.pop(request, None)
            if computed is not None:  # else it has just ended, and leaves again in the same plan
                self._state.steady[request] = slot, computed, ticks

    def _steady_rows(self, place: int) -> list[PlanRow]:
        if not self._ticking[place]:
            return []
        ticks = int(self._ticks_before[place])
        return [
            (request, slot, computed + ticks - joined, 1, True)
            for request, (slot, computed, joined) in self._state.steady.items()
        ]

    def _tail_rows(self, place: int) -> list[PlanRow]:
        start, stop = self._bounds[place], self._bounds[place + 1]
        rows: list[PlanRow] = []
        for at in start + np.flatnonzero(self._log["event"][start:stop] == ROW):
            request, slot, computed, scheduled, samples = (
                int(self._log[name][at]) for name in ("request", "slot", "computed", "scheduled", "samples")
            )
            rows.append((request, slot, computed, scheduled, bool(samples)))
            self._state.computed[request] = computed + scheduled
        return rows

    def _take_blocks(self, place: int) -> None:
        part = slice(self._block_bounds[place], self._block_bounds[place + 1])
        for request, logical, block in zip(
            *(self._blocks[name][part].tolist() for name in ("request", "logical", "block")), strict=True
        ):
            held = self._state.blocks.setdefault(request, [])
            del held[logical:]
            held.append(block)


def _bounds(log_steps: Steps, steps: Steps) -> list[int]:
    """For each step, where its lines begin; one more at the end."""
    starts: list[int] = np.searchsorted(log_steps, steps).tolist()
    return [*starts, int(np.searchsorted(log_steps, steps[-1], side="right")) if len(steps) else 0]


@dataclass(frozen=True)
class _Lives:
    """From which to which step requests were seated; a request that was preempted has several. Ordered by `first`.

    Attributes:
        request: ``(lives,)``.
        first, last: places of steps, each ``(lives,)``; `last` may be beyond the end, never before it.
        latest: largest `last` up to each, ``(lives,)``.
    """

    request: Steps
    first: Steps
    last: Steps
    latest: Steps

    def oldest(self, place: int) -> int:
        """Where the one who sits longest at a place sat down; the place itself when nobody sits there."""
        at = int(np.searchsorted(self.latest, place))
        return min(place, int(self.first[at])) if at < len(self.first) else place

    def at(self, place: int) -> set[int]:
        """Who sits at a place."""
        return set(self.request[(self.first <= place) & (place <= self.last)].tolist())


def _lives(log: Columns, steps: Steps) -> _Lives:
    """From the plan log: a life lasts to the loss of the seat, or else to the request's last line.

    Two steps are added to the last: who has ended is gone from the next step on, or from the one after that where it
    was planned before this was known.
    """
    lines = np.flatnonzero((log["event"] != STEADY) & (log["event"] != ARRIVED))
    lines = lines[np.argsort(log["request"][lines], kind="stable")]
    request, event = log["request"][lines].astype(np.int64), log["event"][lines]
    place = np.searchsorted(steps, log["step"][lines])
    if not len(lines):
        return _Lives(request, place, place, place)
    begins = np.flatnonzero(np.concatenate([[True], (request[1:] != request[:-1]) | (event[:-1] == LOST_SEAT)]))
    ends = np.append(begins[1:], len(lines)) - 1
    ended = np.logical_or.reduceat((event == FINISHED) | (event == ABORTED), begins) | (event[ends] == LOST_SEAT)
    last = np.where(ended, place[ends] + 2, len(steps))
    order = np.argsort(place[begins], kind="stable")
    first, last = place[begins][order], last[order]
    return _Lives(request[begins][order], first, last, np.maximum.accumulate(last))
