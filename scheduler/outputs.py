"""Sampled tokens coming back: where they are stored and whom they end."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from .config import SchedulerConfig
from .plan import StepPlan
from .request import Request, RequestStatus, TokenArray
from .rows import PlanRows
from .seats import Seats


class OutputChecker:
    """Stores a step's sampled tokens and finds the requests that EOS or a stop token ends."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._eos = frozenset(config.eos_token_ids)
        self._watched = sorted(self._eos)

    def watch(self, stop_token_ids: Iterable[int]) -> None:
        """A request with stop tokens of its own was added."""
        if not set(stop_token_ids) <= set(self._watched):
            self._watched = sorted({*self._watched, *stop_token_ids})

    def take(
        self, plan: StepPlan, rows: PlanRows, sampled: TokenArray, seats: Seats, by_string: Collection[Request] = ()
    ) -> list[tuple[Request, int]]:
        """Store the kept tokens of a step; returns ``(request, number of outputs)`` of those that stop with it.

        `sampled` has shape ``(rows,)``; raises ValueError otherwise. `by_string` have completed a stop string with it.
        """
        if sampled.shape != rows.slots.shape:
            raise ValueError(f"{sampled.shape} sampled tokens for {rows.slots.shape} rows")
        positions = rows.computed + rows.scheduled
        keep = self._keep(plan, rows)
        self._store(rows, sampled, positions, keep, seats)
        stops = []
        watched = self._is_watched(sampled)
        if by_string:
            watched |= np.array([request in by_string for request in rows.requests])
        for index in np.flatnonzero(watched & keep):
            request = rows.requests[index]
            outputs = int(positions[index]) + 1 - request.num_prompt_tokens
            if self._stops(request, int(sampled[index]), outputs, by_string):
                stops.append((request, outputs))
        return stops

    def _keep(self, plan: StepPlan, rows: PlanRows) -> npt.NDArray[np.bool_]:
        if not plan.dropped:
            return rows.samples
        dropped = set(plan.dropped)
        kept: npt.NDArray[np.bool_] = np.array([request not in dropped for request in rows.requests])
        kept &= rows.samples
        return kept

    def _store(
        self, rows: PlanRows, sampled: TokenArray, positions: npt.NDArray[np.int64], keep: npt.NDArray[np.bool_],
        seats: Seats,
    ) -> None:  # fmt: skip
        if seats.token_ids is None:
            return
        if seats.unseated:  # preempted while this step was in flight: their tokens are no longer in a seat's row
            keep = keep.copy()
            for index, request in enumerate(rows.requests):
                if request in seats.unseated and keep[index]:
                    keep[index] = False
                    if request.tokens is not None:
                        request.tokens[positions[index]] = sampled[index]
            seats.unseated.clear()
        if keep.all():
            seats.token_ids[rows.slots, positions] = sampled
        else:
            seats.token_ids[rows.slots[keep], positions[keep]] = sampled[keep]

    def _is_watched(self, sampled: TokenArray) -> npt.NDArray[np.bool_]:
        found = np.zeros(sampled.shape, dtype=np.bool_)
        for token in self._watched:
            found |= sampled == token
        return found

    def _stops(self, request: Request, token: int, outputs: int, by_string: Collection[Request]) -> bool:
        if outputs < request.min_tokens or request.status is RequestStatus.FINISHED:
            return False
        return (
            request in by_string or token in request.stop_token_ids or (token in self._eos and not request.ignore_eos)
        )
