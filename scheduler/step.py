"""A step while it is being planned: what a policy may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .kv import KvManager
from .plan import WAIT_REASONS
from .request import Request, RequestStatus
from .seats import Seats
from .waiting import WaitingQueue, urgency

if TYPE_CHECKING:
    from .config import SchedulerConfig

UNLIMITED = 1 << 60
_RUNNING, _PREEMPTED = RequestStatus.RUNNING, RequestStatus.PREEMPTED
SteadyBlocks = tuple[list[Request], list[int], list[int]]
_NO_SEQS, _NO_TOKENS, _NO_BLOCKS, _CLOSED = (
    WAIT_REASONS.index(reason) for reason in ("seqs", "tokens", "blocks", "batch-closed")
)


class Step:
    """The step being planned. A policy's `plan` calls `run_all` and `admit`; the scheduler then commits the result.

    Attributes:
        now_s: seconds on the executor's clock.
        budget: tokens that may still be scheduled.
        waiting: the queue; iterate it, never change it.
        rows: request -> tokens scheduled, for requests outside the steady prefix, in running order.
        admitted, preempted: requests that gained or lost their seat in this step.
        outgrown: those of the preempted that the whole pool could not hold.
        wake_s: when the policy wants to be asked again although nothing new came; None: no need.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        seats: Seats,
        kv: KvManager,
        waiting: WaitingQueue,
        *,
        budget: int,
        splits: bool,
        track_blocks: bool,
    ) -> None:
        self.config = config
        self.waiting = waiting
        self._seats = seats
        self._kv = kv
        self._track = track_blocks
        self._priority = config.scheduling_policy == "priority"
        self._budget = budget
        self._splits = splits
        self.changed = self.turnover = True
        """Whether anything but steady decodes happened in this step; whether anybody gained or lost a seat in it, or
        joined or left the steady prefix."""
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """Forget the last step."""
        self.now_s = now_s
        self.budget = self._budget
        self.steady_runs = False
        self.wait_reason = 0
        self.wake_s: float | None = None
        self.steady_blocks: SteadyBlocks | None = None
        if self.changed:
            self.changed = False
            self.rows: dict[Request, int] = {}
            self.new_blocks: list[tuple[Request, int, list[int]]] = []
            if self.turnover:
                self._forget_turnover()

    def _forget_turnover(self) -> None:
        self.turnover = False
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.outgrown: list[Request] = []
        self.joined: list[Request] = []
        self.left: list[Request] = []
        self.cached_tokens = 0

    @property
    def num_running(self) -> int:
        """Unfinished requests in seats."""
        return self._seats.num_running

    @property
    def num_seated(self) -> int:
        """Seats taken, by rows that have ended but are held too."""
        return self._seats.num_taken

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that can be handed out."""
        return self._kv.pool.num_free

    def next_free_slot(self, at_least: int = 0) -> int | None:
        """The lowest free slot not below `at_least`, or None."""
        return self._seats.next_free(at_least)

    def wait(self, reason: str) -> None:
        """Say why the head of the queue waits (see WAIT_REASONS)."""
        self.wait_reason = WAIT_REASONS.index(reason)

    def run_all(self, limit: int = UNLIMITED) -> None:
        """Let every running request take its next tokens, at most `limit` each, in order, while the budget lasts.

        A request that finds no KV block preempts: under ``fcfs`` the last of the running list, under ``priority`` the
        least urgent; itself when that is the one.
        """
        seats = self._seats
        tail = seats.tail
        if tail:
            self.changed = True
            if tail[0].stored_tokens > tail[0].num_prompt_tokens:  # else it cannot join the steady prefix yet
                self._join_steady()
        if seats.steady.members:
            self._run_steady()
        if tail:
            self._run_tail(limit)
        if self.preempted and not self.wait_reason:
            self.wait_reason = _NO_BLOCKS

    def admit(
        self,
        limit: int = UNLIMITED,
        *,
        request: Request | None = None,
        whole: bool = False,
        over_budget: bool = False,
        slot: int | None = None,
        reserve: int | None = None,
    ) -> bool:
        """Seat a waiting request (the queue's head) and schedule its first tokens; False when it must wait.

        Args:
            limit: most tokens for it in this step.
            request: which one, when not the head.
            whole: do not split it: it waits when its tokens exceed the budget left. A policy that splits prompts splits
                all the same what exceeds a whole step's budget, as it would wait for ever.
            over_budget: let a whole prompt exceed the budget.
            slot: the seat to take, when not the lowest free one.
            reserve: KV blocks to take at once, whatever `kv_memory` says.
        """
        seats, kv = self._seats, self._kv
        if self.budget <= 0 and not over_budget:
            self.wait_reason = _NO_TOKENS
            return False
        if not seats.free:
            self.wait_reason = _NO_SEQS
            return False
        request = self.waiting.head() if request is None else request
        hits = kv.lookup(request) if kv.caching else []
        cached = len(hits) * kv.block_size
        count = request.stored_tokens - cached
        if count > limit:
            count = limit
        if count > self.budget and not over_budget:
            if whole and not (self._splits and count > self._budget):
                self.wait_reason = _NO_TOKENS
                return False
            count = self.budget
        reserved = reserve or (0 if kv.paged else kv.reservation(request))
        if not kv.has_room(request, hits, reserved, seats.num_slots == len(seats.free)):
            self.wait_reason = _NO_BLOCKS
            return False
        self._seat(request, hits, cached, count, reserved, slot)
        return True

    def _seat(
        self, request: Request, hits: list[int], cached: int, count: int, reserved: int, slot: int | None
    ) -> None:
        self.changed = self.turnover = True
        if request is self.waiting.head():
            self.waiting.pop()
        else:
            self.waiting.remove(request)
        self._seats.sit(request, slot)
        self._kv.admit(request, hits, cached + count, reserved)
        request.stored_computed = cached
        self.cached_tokens += cached
        if request.admissions == 1:
            request.num_cached_tokens = cached
        if self._track:
            self.new_blocks.append((request, 0, list(request.blocks)))
        self.rows[request] = count
        self.budget -= count
        self.admitted.append(request)

    def _join_steady(self) -> None:
        joined = self._seats.join_steady()
        if joined:
            self.turnover = True
            self.joined = joined

    def _run_steady(self) -> None:
        kv, steady = self._kv, self._seats.steady
        needing = steady.needing_block
        if needing and kv.paged and not self.grow_steady(needing):
            self.changed = self.turnover = True
            self.left = self._seats.dissolve_steady()
            return
        if kv.caching:
            self.offer_filled()
        self.steady_runs = True
        self.budget -= len(steady.members)

    def grow_steady(self, needing: dict[int, Request]) -> bool:
        """Give these members of the steady prefix a block each; False when there are too few."""
        pool = self._kv.pool
        take: Callable[[], int] = pool.unhashed.pop
        if len(needing) > len(pool.unhashed):
            if len(needing) > pool.num_free:
                return False
            take = pool.allocate_one
        if self._track or self._seats.slot_order:
            self._grow_in_order(needing)
            return True
        for request in needing.values():
            request.blocks.append(take())
        return True

    def _grow_in_order(self, needing: dict[int, Request]) -> None:
        requests = list(needing.values())
        if self._seats.slot_order:
            requests.sort(key=lambda request: request.slot)
        blocks = self._kv.pool.allocate(len(requests))
        if self._track:
            self.steady_blocks = (requests, [len(request.blocks) for request in requests], blocks)
        for request, block in zip(requests, blocks, strict=True):
            request.blocks.append(block)

    def offer_filled(self) -> None:
        """Let later lookups find the blocks that steady members fill in this step."""
        steady = self._seats.steady
        filling = steady.filling_block()
        if filling:
            self._kv.all_decoded(filling.values(), steady.clock + 1)

    def _run_tail(self, limit: int) -> None:
        tail, paged, caching = self._seats.tail, self._kv.paged, self._kv.caching
        index = 0
        while index < len(tail) and self.budget > 0:
            request = tail[index]
            count = request.stored_tokens - request.stored_computed
            if count > limit:
                count = limit
            if count > self.budget:
                count = self.budget
            if count <= 0:  # all its known tokens are computed or in flight
                index += 1
                continue
            if paged and not self._grow(request, count):
                index = self._make_room(request, count, index)
                if request.status is not _RUNNING:
                    continue
            if caching:
                self._offer(request, count)
            self.rows[request] = count
            self.budget -= count
            index += 1

    def _grow(self, request: Request, count: int) -> bool:
        """Give a running request the blocks for its next tokens; False when there are too few."""
        more = self._kv.grow(request, request.stored_computed + count)
        if more is None:
            return False
        if more and self._track:
            self.new_blocks.append((request, len(request.blocks) - len(more), more))
        return True

    def _make_room(self, request: Request, count: int, index: int) -> int:
        """Preempt others until the request at `index` of the tail can grow, or itself; returns where the tail goes on:
        at the request, or at the one after it when it gave way.
        """
        tail = self._seats.tail
        while True:
            victim = self._victim()
            index -= victim.steady is None and victim in tail[:index]
            self._preempt(victim)
            if victim is request or self._grow(request, count):
                return index

    def _offer(self, request: Request, count: int) -> None:
        """Let later lookups find the blocks that these tokens fill."""
        upto = request.stored_computed + count
        decode = count == 1 and upto > request.num_prompt_tokens and upto == request.stored_tokens
        if not decode:
            self._kv.publish(request, upto)
        elif upto % self._kv.block_size == 0:
            self._kv.decoded(request, upto)

    def _victim(self) -> Request:
        """Who gives way: the least urgent under ``priority``, else the last of the running list."""
        seats = self._seats
        if self._priority:
            return max([*seats.steady.members.values(), *seats.tail], key=urgency)
        if seats.slot_order:  # the list goes by seat, not by age: the youngest gives way all the same
            return max([*seats.steady.members.values(), *seats.tail], key=lambda request: request.index)
        return seats.tail[-1]

    def _preempt(self, victim: Request) -> None:
        """Take a running request's seat and blocks; what it was given in this step goes back to the budget."""
        self.turnover = True
        count = self.rows.pop(victim, 0)
        if victim.steady is not None:
            self.left.append(victim)
            count = int(self.steady_runs)
        self.budget += count
        computed = victim.num_computed_tokens
        self._seats.vacate(victim)
        if victim.tokens is not None:
            self._seats.unseated.add(victim)
        if count:
            self._kv.take_back(victim, computed)
        victim.max_computed = max(victim.max_computed, computed)
        if self._track:
            self._untrack(victim)
        self._kv.release(victim)
        self._requeue(victim)

    def _untrack(self, victim: Request) -> None:
        self.new_blocks = [entry for entry in self.new_blocks if entry[0] is not victim]
        if self.steady_blocks is not None and victim in self.steady_blocks[0]:
            kept = [entry for entry in zip(*self.steady_blocks, strict=True) if entry[0] is not victim]
            self.steady_blocks = ([e[0] for e in kept], [e[1] for e in kept], [e[2] for e in kept])

    def _requeue(self, victim: Request) -> None:
        never = self._kv.never_fits(victim)
        victim.stored_computed = 0
        victim.num_preemptions += 1
        victim.status = _PREEMPTED
        self.preempted.append(victim)
        self.waiting.push_preempted(victim)
        if never:
            self.outgrown.append(victim)
