"""The steady prefix: running requests that take exactly one token a step, at a cost that follows what changes."""

from __future__ import annotations

import numpy as np

from .plan import IntArray, StepPlan
from .request import Request


class SteadyPrefix:
    """The leading part of the running list whose members all decode.

    While a request is a member its counts are not stored but follow the clock: ``num_computed = offset + clock``, so a
    tick moves all of them at once. Who needs a KV block is a calendar of `block_size` phases, who ends by length (or by
    a recorded EOS) a dictionary from clock to members.
    """

    def __init__(self, block_size: int, num_slots: int) -> None:
        self.clock = 0
        self.members: dict[int, Request] = {}
        """Slot -> request, in running order."""
        self.context = 0
        """Sum of the members' computed tokens."""
        self._block_size = block_size
        self._phases: list[dict[int, Request]] = [{} for _ in range(block_size)]
        self.needing_block = self._phases[0]
        """Members whose next token is the first of a block, in running order."""
        self._ends: dict[int, dict[int, Request]] = {}
        self._joins = 0
        self.offsets = np.zeros(num_slots, dtype=np.int64)
        """Slot -> offset of the member in it, shape ``(slots,)``."""
        self.ones = np.ones(num_slots, dtype=np.int64)
        self.trues = np.ones(num_slots, dtype=np.bool_)
        self._slots: IntArray | None = None
        """Room for the members' slots in running order; kept up to date once `slots` has been asked for."""
        self._requests: list[Request] | None = None
        self._max_offset: int | None = None

    def __len__(self) -> int:
        return len(self.members)

    def join(self, request: Request) -> None:
        """Take in a request that has computed all but its last token; it becomes the last member."""
        slot, clock = request.slot, self.clock
        offset = request.stored_computed - clock
        request.steady, request.offset, request.join_no = self, offset, self._joins
        request.joined_clock = clock
        self._joins += 1
        if self._slots is not None:
            self._slots[len(self.members)] = slot
        self.members[slot] = request
        self.context += request.stored_computed
        self._phases[-offset % self._block_size][slot] = request
        self._ends.setdefault(end_key(request), {})[slot] = request
        self.offsets[slot] = offset
        self._requests = None
        if self._max_offset is not None and offset + request.pad > self._max_offset:
            self._max_offset = offset + request.pad

    def leave(self, request: Request) -> None:
        """Let a member go; its counts are stored again."""
        slot, offset = request.slot, request.offset
        if self._slots is not None:
            place = int((self._slots == slot).argmax())  # what lies behind the members may be stale: the first counts
            self._slots[place : len(self.members) - 1] = self._slots[place + 1 : len(self.members)]
        del self.members[slot]
        del self._phases[-offset % self._block_size][slot]
        key = end_key(request)
        ends = self._ends[key]
        del ends[slot]
        if not ends:
            del self._ends[key]
        request.stored_computed = offset + self.clock
        request.stored_tokens = request.stored_computed + 1
        request.steady, request.left_clock = None, self.clock
        self.context -= request.stored_computed
        self._requests = None
        if offset + request.pad == self._max_offset:
            self._max_offset = None

    def dissolve(self) -> list[Request]:
        """Let all members go, in running order."""
        members = list(self.members.values())
        for request in members:
            self.leave(request)
        return members

    def filling_block(self) -> dict[int, Request]:
        """Members whose next token is the last of a block, in running order."""
        return self._phases[(self.clock + 1) % self._block_size]

    def advance(self, plan: StepPlan) -> int:
        """Advance every member by one token, as the plan's steady rows; returns the KV positions that they read.

        Those of which it is the last token, by length or by recorded EOS, come first in ``plan.ending``. All stay
        members for now: those that end by length must be taken out before the next tick; of the others nobody knows
        yet.
        """
        plan.clock = clock = self.clock
        plan.num_steady = count = len(self.members)
        if clock in self._ends:
            plan.ending = [*self._ends[clock].values(), *plan.ending]
        self.clock = clock = clock + 1
        self.needing_block = self._phases[clock % self._block_size]
        self.context = context = self.context + count
        return context

    def slots(self) -> IntArray:
        """The members' slots in running order, shape ``(members,)``; a copy."""
        count = len(self.members)
        if self._slots is None:
            self._slots = np.zeros(len(self.offsets), dtype=np.int64)
            self._slots[:count] = np.fromiter(self.members, dtype=np.int64, count=count)
        return self._slots[:count].copy()

    def requests(self) -> list[Request]:
        """The members in running order; a new list whenever somebody joined or left."""
        if self._requests is None:
            self._requests = list(self.members.values())
        return self._requests

    def max_width(self) -> int:
        """The longest member's computed tokens, its left padding included; there must be a member."""
        if self._max_offset is None:
            self._max_offset = max(request.offset + request.pad for request in self.members.values())
        return self._max_offset + self.clock

    def check(self) -> None:
        """Raise AssertionError unless calendars and sums agree with the members."""
        members = list(self.members.values())
        in_phases = [request for phase in self._phases for request in phase.values()]
        in_ends = [request for ends in self._ends.values() for request in ends.values()]
        joins = [request.join_no for request in members]
        fair = (
            self.context == sum(request.num_computed_tokens for request in members)
            and len(in_phases) == len(in_ends) == len(members)
            and joins == sorted(joins)
            and all(request.steady is self and self.members[request.slot] is request for request in in_phases)
            and all(key >= self.clock - 2 for key in self._ends)
            and (self._slots is None or self._slots[: len(members)].tolist() == list(self.members))
        )
        if not fair:
            raise AssertionError("steady prefix: sums or calendars disagree with the members")


def end_key(request: Request) -> int:
    """The clock at whose tick a member samples its last token: ``offset + clock + 2`` tokens are known then."""
    return request.last_at - request.offset - 2
