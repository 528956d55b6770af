"""Content from hashes: unit ids become distinct, deterministic token ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.int32]

_BITS = 30
_MASK = np.uint32((1 << _BITS) - 1)
_OWN = np.int32(1 << _BITS)
"""Added to tokens that belong to one request alone, so that they never equal a token of a shared unit."""
# The "lowbias32" multipliers (Chris Wellons, "Prospecting for Hash Functions", 2018), public domain; odd, so
# multiplication is a bijection modulo 2**30 too.
_MULTIPLIERS = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B))


class TokenSource:
    """Makes the token ids of each request of a workload from its unit ids.

    Token at position `p` of a request: where unit ``p // block`` has an id (and lies in the prompt, or ids cover the
    output too), a function of that id and ``p % block`` alone, below 2**30. Elsewhere (outputs, the tail of a prompt
    that fills no unit) a function of the request and `p`, from 2**30 up. Both are one-to-one while there are fewer
    than 2**30 such pairs in the workload; beyond that, equal tokens become possible but runs of them do not.

    Args:
        prompt_tokens, output_tokens: ``(n,)`` lengths.
        hash_ids, hash_offsets: ragged unit ids, see `Workload`.
        hash_block: tokens a unit.
        covers_output: ids go on after the prompt.
    """

    def __init__(
        self,
        prompt_tokens: IntArray,
        output_tokens: IntArray,
        hash_ids: IntArray,
        hash_offsets: IntArray,
        hash_block: int,
        *,
        covers_output: bool,
    ) -> None:
        self._prompt, self._total = prompt_tokens, prompt_tokens + output_tokens
        self._ids, self._offsets, self._block = _small_ids(hash_ids, hash_block), hash_offsets, hash_block
        self._covers_output = covers_output
        self._own_start = np.concatenate([[0], np.cumsum(self._total)])

    def script(self, i: int) -> TokenArray:
        """Tokens of request `i`, prompt and output: ``(prompt + output,)`` int32 in [0, 2**31)."""
        total = int(self._total[i])
        ids = self._ids[self._offsets[i] : self._offsets[i + 1]]
        covered = min(len(ids) * self._block, total if self._covers_output else int(self._prompt[i]))
        tokens = np.empty(total, dtype=np.int32)
        tokens[:covered] = unit_tokens(ids, self._block)[:covered]
        own = np.arange(self._own_start[i] + covered, self._own_start[i] + total)
        tokens[covered:] = _scatter(own) + _OWN
        return tokens


def unit_tokens(ids: IntArray, block: int) -> TokenArray:
    """The tokens of units `ids` (0 <= id, ``id * block < 2**63``) one after the other: ``(len(ids) * block,)`` int32
    in [0, 2**30).
    """
    keys = ids[:, None] * np.int64(block) + np.arange(block)
    return _scatter(keys.ravel())


def _small_ids(ids: IntArray, block: int) -> IntArray:
    """The ids as they are if they suit `unit_tokens`, else (64-bit hashes) their ranks in the workload."""
    if not len(ids) or (ids.min() >= 0 and ids.max() < (1 << _BITS) // block):
        return ids
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def _scatter(keys: IntArray) -> TokenArray:
    """Mix keys to 30 bits: a permutation of the keys below 2**30; the bits above are folded in."""
    low = keys.astype(np.uint32) & _MASK
    if len(keys) and int(keys.max()) >> _BITS:
        low ^= _permute((keys >> _BITS).astype(np.uint32) & _MASK)
    return _permute(low).view(np.int32)


def _permute(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A bijection of 30-bit numbers: each step (xor with a right shift, odd multiplication) can be undone."""
    for shift, multiplier in zip((15, 13), _MULTIPLIERS, strict=True):
        x = x ^ (x >> np.uint32(shift))
        x = (x * multiplier) & _MASK
    return x ^ (x >> np.uint32(15))
