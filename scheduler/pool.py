"""KV blocks: who holds which, and which freed ones still carry a reusable prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

NULL_BLOCK = 0
"""Block that padding rows point at; never handed out."""


class BlockPool:
    """A stack of unhashed free blocks ahead of an LRU of hashed ones, as vLLM's free queue orders them.

    A block is *used* (one holder, or several: then it has a reference count), *cached* (free, but its hash still
    answers lookups) or *free*. Handing out takes unhashed blocks first, then the least recently freed hashed one,
    which loses its hash.
    """

    def __init__(self, num_blocks: int) -> None:
        self.usable = num_blocks - 1
        self.unhashed = list(range(num_blocks - 1, NULL_BLOCK, -1))
        """Free blocks without a hash, a stack."""
        self.cached: OrderedDict[int, None] = OrderedDict()
        """Free blocks with a hash, least recently freed first."""
        self._hash_of: dict[int, bytes] = {}
        self._blocks_of: dict[bytes, dict[int, None]] = {}
        self._shared: dict[int, int] = {}
        self.version = 0
        """Changes whenever a prefix lookup could answer differently than before."""

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included (vLLM's meaning of free)."""
        return len(self.unhashed) + len(self.cached)

    @property
    def num_cached(self) -> int:
        """Free blocks that still answer lookups."""
        return len(self.cached)

    @property
    def num_used(self) -> int:
        """Blocks with at least one holder."""
        return self.usable - len(self.unhashed) - len(self.cached)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks; the caller has checked `num_free`."""
        stack = self.unhashed
        if count <= len(stack):
            taken = stack[: -count - 1 : -1]
            del stack[len(stack) - count :]
            return taken
        taken = stack[::-1]
        stack.clear()
        return taken + [self._evict() for _ in range(count - len(taken))]

    def allocate_one(self) -> int:
        """`allocate(1)[0]`, without the list."""
        return self.unhashed.pop() if self.unhashed else self._evict()

    def free(self, blocks: Iterable[int]) -> None:
        """Give back one reference to each block, in the given order: of the unhashed, the last is reused first;
        of the hashed, the first is evicted first.
        """
        if not self._hash_of:
            self.unhashed.extend(blocks)
            return
        self.version += 1
        for block in blocks:
            if block in self._shared:
                self._drop_reference(block)
            elif block in self._hash_of:
                self.cached[block] = None
            else:
                self.unhashed.append(block)

    def publish(self, block: int, digest: bytes) -> None:
        """Let lookups of `digest` find this used block."""
        self._hash_of[block] = digest
        twins = self._blocks_of.get(digest)
        if twins is None:
            self._blocks_of[digest] = {block: None}
        else:
            twins[block] = None
        self.version += 1

    def unpublish(self, block: int) -> None:
        """Take a used block's hash back (its contents were never computed)."""
        self._forget(block)
        self.version += 1

    def lookup(self, digests: Iterable[bytes]) -> list[int]:
        """Blocks of the longest run of leading `digests` that are all known; of twins, the first published."""
        hits: list[int] = []
        for digest in digests:
            twins = self._blocks_of.get(digest)
            if not twins:
                break
            hits.append(next(iter(twins)))
        return hits

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks lie in the free queue now."""
        lru = self.cached
        return sum(block in lru for block in blocks)

    def take_hits(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block, taking idle ones out of the free queue."""
        self.version += 1
        for block in blocks:
            if block in self.cached:
                del self.cached[block]
            else:
                self._shared[block] = self._shared.get(block, 1) + 1

    def is_published(self, block: int) -> bool:
        """Whether lookups can find this block."""
        return block in self._hash_of

    def _evict(self) -> int:
        block, _ = self.cached.popitem(last=False)
        self._forget(block)
        self.version += 1
        return block

    def _forget(self, block: int) -> None:
        digest = self._hash_of.pop(block)
        twins = self._blocks_of[digest]
        del twins[block]
        if not twins:
            del self._blocks_of[digest]

    def _drop_reference(self, block: int) -> None:
        self._shared[block] -= 1
        if self._shared[block] == 1:
            del self._shared[block]

    def check(self, holders: Iterable[list[int]]) -> None:
        """Raise AssertionError unless the books balance, given the block lists of all holders."""
        counts: dict[int, int] = {}
        for blocks in holders:
            for block in blocks:
                counts[block] = counts.get(block, 0) + 1
        free = self.unhashed + list(self.cached)
        problems = {
            "a free block is listed twice": len(set(free)) != len(free),
            "a block is both free and held": bool(set(free) & set(counts)),
            "free + cached + used is not the total": len(free) + len(counts) != self.usable,
            "reference counts differ from the holders": self._shared != {b: n for b, n in counts.items() if n > 1},
            "the null block or an unknown block is in play": any(not 0 < b <= self.usable for b in [*free, *counts]),
            "an unhashed block waits in the cache": any(b not in self._hash_of for b in self.cached),
            "a hashed block lies on the free stack": any(b in self._hash_of for b in self.unhashed),
            "the two hash tables disagree": self._hash_of
            != {b: digest for digest, twins in self._blocks_of.items() for b in twins},
        }
        broken = [what for what, is_so in problems.items() if is_so]
        if broken:
            raise AssertionError(f"block pool: {'; '.join(broken)}")
