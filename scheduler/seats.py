"""Who sits where: slots, and the running list as a steady prefix and a tail."""

from __future__ import annotations

import heapq
from bisect import insort
from operator import attrgetter

import numpy as np

from .request import Request, RequestStatus, TokenArray
from .steady import SteadyPrefix

_NOBODY: list[Request] = []
_by_slot = attrgetter("slot")
_RUNNING = RequestStatus.RUNNING


class Seats:
    """Slots and their holders.

    The running list is `steady` followed by `tail`. `ending` requests have planned their last token and wait for its
    result; `held` rows have ended but keep their seat until their batch ends.

    Args:
        num_slots: seats (`max_num_seqs`).
        block_size: tokens a KV block.
        most_steady: largest steady prefix (the token budget).
        plain: never use the steady prefix; the reference that the fast path is compared with.
        slot_order: the running list goes by slot rather than by admission.
        token_rows: columns of a `[slot, position]` token array to keep; 0 for none (simulations).
    """

    def __init__(
        self, num_slots: int, block_size: int, most_steady: int, *, plain: bool, slot_order: bool, token_rows: int
    ) -> None:
        self.num_slots = num_slots
        self.slot_order = slot_order
        self.steady = SteadyPrefix(block_size, num_slots)
        self.tail: list[Request] = []
        self.ending: dict[int, Request] = {}
        self.held: dict[int, Request] = {}
        self.held_width = 0
        """Longest row of those held, its left padding included, tokens."""
        self.unseated: set[Request] = set()
        """Preempted since the last results came: a token in flight for them is theirs, but their row is not."""
        self._most_steady = 0 if plain else most_steady
        self.free = list(range(num_slots))
        """Free slots, a heap."""
        self.token_ids: TokenArray | None = None
        """Known token ids, shape ``(slots, max_model_len)``, one row per seat."""
        if token_rows:
            self.token_ids = np.zeros((num_slots, token_rows), dtype=np.int32)

    @property
    def num_running(self) -> int:
        """Unfinished requests in seats."""
        return len(self.steady.members) + len(self.tail) + len(self.ending)

    @property
    def num_taken(self) -> int:
        """Seats taken, held ones included."""
        return self.num_slots - len(self.free)

    def running(self) -> list[Request]:
        """Unfinished requests in seats, in running order (the ending ones last)."""
        running = [*self.steady.members.values(), *self.tail]
        if self.slot_order:
            running.sort(key=_by_slot)
        return [*running, *self.ending.values()]

    def next_free(self, at_least: int = 0) -> int | None:
        """The lowest free slot that is not below `at_least`."""
        if not self.free:
            return None
        lowest = self.free[0]
        if lowest >= at_least:
            return lowest
        return min((slot for slot in self.free if slot >= at_least), default=None)

    def sit(self, request: Request, slot: int | None = None) -> None:
        """Seat a request at the end of the running list, in the lowest free slot or the one given."""
        if slot is None or slot == self.free[0]:
            slot = heapq.heappop(self.free)
        else:
            self.free.remove(slot)
            heapq.heapify(self.free)
        request.slot = slot
        request.status = _RUNNING
        request.admissions += 1
        if self.slot_order:
            insort(self.tail, request, key=_by_slot)
        else:
            self.tail.append(request)
        if self.token_ids is not None and request.tokens is not None:
            row = self.token_ids[slot]
            known = request.stored_tokens if request.stored_tokens <= len(request.tokens) else len(request.tokens)
            row[:known] = request.tokens[:known]
            request.tokens = row

    def join_steady(self) -> list[Request]:
        """Move decoding requests from the front of the tail to the end of the steady prefix; returns them."""
        room = self._most_steady - len(self.steady.members)
        joined = 0
        for request in self.tail:
            decoding = request.stored_computed + 1 == request.stored_tokens > request.num_prompt_tokens
            if joined >= room or not decoding:
                break
            self.steady.join(request)
            joined += 1
        if not joined:
            return _NOBODY
        moved = self.tail[:joined]
        del self.tail[:joined]
        return moved

    def dissolve_steady(self) -> list[Request]:
        """Put the steady prefix back at the front of the tail; returns its members."""
        members = self.steady.dissolve()
        self.tail[:0] = members
        if self.slot_order:
            self.tail.sort(key=_by_slot)
        return members

    def set_aside(self, request: Request) -> None:
        """Take a request whose last token is in flight out of the running list; it keeps its seat."""
        self.take_out(request)
        self.ending[request.slot] = request

    def hold(self, request: Request) -> None:
        """Let an ended request burn on in its seat."""
        self.take_out(request)
        self.held[request.slot] = request
        self.held_width = max(self.held_width, request.stored_tokens + request.pad)
        request.status = RequestStatus.HELD

    def take_out(self, request: Request) -> None:
        """Take a request out of whichever list it is in; it keeps its slot."""
        slot = request.slot
        if request.steady is not None:
            self.steady.leave(request)
        elif self.ending.get(slot) is request:
            del self.ending[slot]
        elif self.held.get(slot) is request:
            del self.held[slot]
            if not self.held:
                self.held_width = 0
        elif request in self.tail:
            self.tail.remove(request)

    def vacate(self, request: Request) -> None:
        """Take a request out and free its slot; its tokens move with it."""
        self.take_out(request)
        heapq.heappush(self.free, request.slot)
        if self.token_ids is not None and request.tokens is not None:
            request.tokens = request.tokens[: request.stored_tokens].copy()

    def check(self) -> None:
        """Raise AssertionError unless every seat has one holder and every holder one seat."""
        self.steady.check()
        seated = [*self.running(), *self.held.values()]
        slots = sorted(request.slot for request in seated)
        if sorted([*slots, *self.free]) != list(range(self.num_slots)):
            raise AssertionError(f"seats: {slots} taken and {sorted(self.free)} free are not all {self.num_slots}")
        wrong = [r.request_id for r in self.running() if r.status is not RequestStatus.RUNNING]
        wrong += [r.request_id for r in self.held.values() if r.status is not RequestStatus.HELD]
        if wrong:
            raise AssertionError(f"seats: requests {wrong} sit with a status that has no seat")
