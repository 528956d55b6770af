"""Random numbers without state: Philox-4x32-10, one number of (seed, position).

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), https://doi.org/10.1145/2063384.2063405.
Triton's `tl.randint4x` gives the same words for the same seed and offset.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
"""Added to the key each round: the golden ratio and the square root of 3, less 1, in 32 bits."""
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SEEDS = 2**64

Words = npt.NDArray[np.uint64]


def philox(counter: npt.ArrayLike, key: npt.ArrayLike, rounds: int = ROUNDS) -> Words:
    """The four output words of each counter and key.

    Args:
        counter: ``(4, n)`` words of 32 bits.
        key: ``(2, n)`` words of 32 bits.
        rounds: 10 is the standard.

    Returns:
        ``(4, n)`` words of 32 bits, as uint64.
    """
    words = np.asarray(counter, dtype=np.uint64)
    even, odd = words[0::2], words[1::2]
    turns = np.arange(rounds, dtype=np.uint64)[:, None, None]
    for weyl in (np.asarray(key, dtype=np.uint64) + turns * _WEYL) & _LOW:
        product = even * _MULTIPLIERS
        even = (product >> _HALF)[::-1] ^ odd ^ weyl
        odd = (product & _LOW)[::-1]
    mixed = np.empty((4, *even.shape[1:]), dtype=np.uint64)
    mixed[0::2], mixed[1::2] = even, odd
    return mixed


def uniform(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """One number in ``[0, 1)`` for each seed and position, a multiple of 2^-24.

    Key: the seed's low and high word; counter: ``(position, 0, 0, 0)``; of the first word the upper 24 bits.

    Args:
        seeds: ``(n,)``, 64 bits each, unsigned (`seed_word`).
        positions: ``(n,)``, below 2^32.
    """
    seed = np.asarray(seeds, dtype=np.uint64)
    counter = np.zeros((4, len(seed)), dtype=np.uint64)
    counter[0] = positions
    words = philox(counter, np.stack((seed & _LOW, seed >> _HALF)))
    numbers: npt.NDArray[np.float32] = (words[0] >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    return numbers


def seed_word(seed: int) -> int:
    """A seed as 64 bits, unsigned: negative ones as two's complement."""
    return seed % _SEEDS
