"""KV memory of requests: admission, growth, reuse of prefixes, release."""

from __future__ import annotations

from collections.abc import Iterable

from .config import SchedulerConfig
from .errors import RequestRefused
from .pool import BlockPool
from .prefix import extend_hashes, hash_blocks
from .request import Request


class KvManager:
    """Gives requests their blocks, by page or reserved as a whole, and keeps the prefix cache.

    Hashing dominates the cost of prefix caching on real tokens, so blocks filled by decodes wait in `_filled` until a
    lookup or a release needs their hash.
    """

    def __init__(self, config: SchedulerConfig, *, caching: bool, logical_release: bool, whole: bool) -> None:
        self.pool = BlockPool(config.num_blocks)
        self.block_size = config.block_size
        self.paged = config.kv_memory == "paged" and not whole
        self._whole_model_len = config.kv_memory == "reserve-max-model-len"
        self._length_cap = config.length_cap
        self._max_model_len = config.max_model_len
        self._usable = config.usable_blocks
        self._watermark = 0 if whole else int(config.watermark * config.usable_blocks)
        self._cache_enabled = caching
        self.caching = False
        """Whether prefix caching is at work: it is enabled and some request has contents to compare."""
        self._delay = config.async_scheduling
        self._logical_release = logical_release
        self._filled: list[tuple[Request, int, int]] = []
        """``(request, its admission, full blocks)``, not offered to lookups yet."""
        # What decodes fill in a step that is planned ahead is known a step later only.
        self._decoded = list[tuple[Request, int, int]]() if self._delay else self._filled
        self._looked_up: tuple[Request, int, list[int]] | None = None

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def reservation(self, request: Request) -> int:
        """Blocks a request takes at admission beyond which it never grows; 0 when it grows by page."""
        if self.paged:
            return 0
        if self._whole_model_len:
            return self.blocks_for(self._max_model_len)
        return self.blocks_for(min(request.num_prompt_tokens + request.max_tokens, self._length_cap))

    def note_contents(self) -> None:
        """A request with known tokens came: from now on blocks are hashed, when prefix caching is enabled."""
        self.caching = self._cache_enabled

    def refuse_if_never(self, request: Request) -> None:
        """Raise RequestRefused when no empty pool could admit the request."""
        reserved = 0 if self.paged else self.reservation(request)
        need = reserved or -(-request.num_prompt_tokens // self.block_size)
        if need <= self._usable:
            return
        what, cure = "its prompt needs", "shorten it"
        if reserved and self._whole_model_len:
            what, cure = "max_model_len, which is reserved whole, needs", "lower max_model_len"
        elif reserved:
            what, cure = "its prompt and max_tokens need", "shorten them"
        raise RequestRefused(
            f"request {request.request_id}: {what} {need} KV blocks of {self.block_size} tokens but only "
            f"{self._usable} exist; raise num_blocks to at least {need + 1} or {cure}"
        )

    def never_fits(self, request: Request) -> bool:
        """Whether all the request's tokens are more than the whole pool holds."""
        return self.blocks_for(request.num_tokens) > self._usable

    def lookup(self, request: Request) -> list[int]:
        """Blocks of the longest cached prefix, at most ``num_tokens - 1`` tokens of it."""
        if not self.caching or request.tokens is None:
            return []
        self._publish_filled()
        known = self._looked_up
        if known is not None and known[0] is request and known[1] == self.pool.version:
            return known[2]
        count = min(request.num_tokens - 1, len(request.tokens)) // self.block_size
        hits = self.pool.lookup(hash_blocks(request, count, self.block_size))
        self._looked_up = (request, self.pool.version, hits)
        return hits

    def has_room(self, request: Request, hits: list[int], reserved: int, idle: bool) -> bool:
        """Whether the whole known sequence (or the reservation) fits now; the watermark is waived when all is idle."""
        need = reserved or -(-request.stored_tokens // self.block_size)
        if hits:
            need -= len(hits) - self.pool.num_idle(hits)
        return need + (0 if idle else self._watermark) <= self.pool.num_free

    def admit(self, request: Request, hits: list[int], upto: int, reserved: int) -> None:
        """Give a seated request its cached blocks and those for tokens up to `upto`; room has been checked."""
        total = reserved or -(-upto // self.block_size)
        if hits:
            self.pool.take_hits(hits)
        request.blocks = hits + self.pool.allocate(total - len(hits))
        if self.caching:
            request.num_published = len(hits)
            self.publish(request, upto)

    def grow(self, request: Request, upto: int) -> list[int] | None:
        """Let a request hold tokens up to `upto`; the new blocks, or None when the pool has too few."""
        pool = self.pool
        more = -(-upto // self.block_size) - len(request.blocks)
        if more <= 0:
            return []
        if more > len(pool.unhashed) and more > pool.num_free:
            return None
        blocks = pool.allocate(more)
        request.blocks += blocks
        return blocks

    def publish(self, request: Request, upto: int) -> None:
        """Offer the full blocks up to token `upto`, whose tokens are known, to later lookups; only while `caching`."""
        if request.tokens is not None and upto // self.block_size > request.num_published:
            self._publish_filled()
            self._publish(request, upto // self.block_size)

    def decoded(self, request: Request, upto: int) -> None:
        """A decode fills the block that ends at token `upto`: offer it when needed; only while `caching`.

        Under async scheduling its last token is not known before the next step is planned, so it waits for that.
        """
        if request.tokens is not None:
            self._decoded.append((request, request.admissions, upto // self.block_size))

    def all_decoded(self, requests: Iterable[Request], clock: int) -> None:
        """`decoded` for steady members that fill a block when the prefix's clock comes to `clock`."""
        queue, size = self._decoded, self.block_size
        for request in requests:
            if request.tokens is not None:
                queue.append((request, request.admissions, (request.offset + clock) // size))

    def begin_step(self) -> None:
        """A new step is being planned: what the step before last sampled is known now."""
        if self._delay and self._decoded:
            self._filled += [entry for entry in self._decoded if entry[0].blocks and entry[0].admissions == entry[1]]
            self._decoded.clear()

    def take_back(self, request: Request, computed: int) -> None:
        """Unpublish what a victim published in this step beyond `computed` tokens: it will not be computed."""
        first = computed // self.block_size
        self._filled[:] = [entry for entry in self._filled if entry[0] is not request or entry[2] <= first]
        for block in request.blocks[first : request.num_published]:
            self.pool.unpublish(block)
        request.num_published = min(request.num_published, first)

    def release(self, request: Request) -> None:
        """Take all blocks back; those that carry a published prefix stay reusable until evicted."""
        if self._filled:
            self._publish_filled()
        blocks = request.blocks
        self.pool.free(blocks if self._logical_release else blocks[::-1])
        request.blocks = []
        request.num_published = 0

    def _publish_filled(self) -> None:
        if self._filled:
            for request, admission, count in self._filled:
                if request.admissions == admission and count > request.num_published:
                    self._publish(request, count)
            self._filled.clear()

    def _publish(self, request: Request, count: int) -> None:
        """Publish the first `count` blocks, or as many as have known contents (outputs may have none)."""
        hashes, first = request.block_hashes, request.num_published
        if len(hashes) < count:
            extend_hashes(request, count, self.block_size)
            if len(hashes) < count:
                count = len(hashes)
        for index in range(first, count):
            self.pool.publish(request.blocks[index], hashes[index])
        if count > first:
            request.num_published = count
