"""The design of a profile: which rounds of requests cover the steps that an engine can be asked for.

Steps differ by their rows, their requests, the contexts of those and the pairs of prompt tokens, and a fit tells them
apart only where they vary on their own. So beside a grid of powers of two most rounds are spread over all of these at
once, counts evenly by their logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError

from .rounds import Ask, Round

DECODES = 13
"""Output tokens of a round of decodes: its prefill samples the first, twelve steps of decodes follow. The first of them
are slow: after a prefill the caches hold other things."""
BATCH_DECODES = 12
"""Output tokens of a batch that starts and ends together."""
MOST_PREFILLS = 8
"""Prompts that share a step, at most, in rounds about prefills; rounds about decodes begin with as many as decode."""
RECTANGLE = 8192
"""Rows of the largest rectangle, or four times the token budget: a budget does not bind where steps are padded."""
READ = 24
"""All documents together are at most so many times as long as the longest: they must be read before they are used."""
SPREAD_DECODES, SPREAD_PREFILLS, SPREAD_MIXED, SPREAD_BATCHES = 24, 24, 64, 24
"""How many rounds of each kind are spread over the whole space."""
Points = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Limits:
    """What fits.

    Attributes:
        requests: at once.
        tokens: of real tokens in a step.
        rows: in a step, padding included.
        length: prompt and output of a request.
        block: tokens of a KV block.
        kv: tokens that the KV blocks hold.
        padded: steps are rectangles.
        caching: documents that have been read are remembered.
    """

    requests: int
    tokens: int
    rows: int
    length: int
    block: int
    kv: int
    padded: bool
    caching: bool

    @classmethod
    def of(cls, config: SchedulerConfig, layout: str) -> Limits:
        """Those of a scheduler's settings. Raises ConfigError where not even one token can be answered."""
        padded, tokens, kv = layout == "padded", config.max_num_batched_tokens, config.usable_blocks * config.block_size
        if kv < 2:
            raise ConfigError(f"num_blocks is {config.num_blocks}; expected KV blocks for 2 tokens at least")
        length = min(config.length_cap, kv)
        return cls(
            requests=max(min(config.max_num_seqs, tokens, config.usable_blocks // 4), 1),
            tokens=tokens,
            rows=min(max(4 * tokens, RECTANGLE), config.max_num_seqs * length) if padded else tokens,
            length=length,
            block=config.block_size,
            kv=kv,
            padded=padded,
            caching=config.enable_prefix_caching,
        )


def documents(limits: Limits) -> tuple[int, ...]:
    """Lengths of the documents, one for each request at once, none shared: reading one twice in a step would be cheap.

    The i-th has ``T / i`` tokens, at most as many as a request may have, so that a few requests can have long contexts
    and many requests short and unequal ones.
    """
    room = min(READ * limits.length, limits.kv // 2)
    ranks = np.arange(1, limits.requests + 1)
    least, most = 0, limits.length * limits.requests
    while most - least > 1:
        middle = (least + most) // 2
        fits = int(np.minimum(limits.length, middle // ranks).sum()) <= room
        least, most = (middle, most) if fits else (least, middle)
    return tuple(np.minimum(limits.length, least // ranks).tolist())


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    return [1 << bit for bit in range(most.bit_length()) if 1 << bit < most] + [most]


def spread(count: int, dimensions: int, seed: int) -> Points:
    """Points over the unit cube, ``(count, dimensions)``: one in each of `count` slices, whichever the direction.

    A Latin hypercube (McKay, Beckman, Conover 1979).
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    slices = rng.permuted(np.tile(np.arange(count), (dimensions, 1)), axis=1).T
    points: Points = (slices + rng.random((count, dimensions))) / count
    return points


def shuffled(rounds: list[Round], repeats: int, seed: int) -> list[Round]:
    """Every round `repeats` times, each time all of them in another order: drift of the machine hits all alike."""
    order = [np.random.Generator(np.random.PCG64((seed, repeat))).permutation(len(rounds)) for repeat in range(repeats)]
    return [rounds[at] for permutation in order for at in permutation]


class Design:
    """Rounds under `chunked`, in which prompts and decodes share steps; see the module.

    Args:
        limits: what fits.
        seed: of the spread rounds.
    """

    def __init__(self, limits: Limits, seed: int = 0) -> None:
        self._limits = limits
        self._seed = seed
        self.documents = documents(limits)

    def rounds(self) -> list[Round]:
        """All of them, each once."""
        made = [*self._decodes(), *self._prefills(), *self._mixed(), *self._chunks()]
        return list(dict.fromkeys(made))

    def reading(self) -> list[Round]:
        """Rounds that read each document once, so that later ones find it in the prefix cache."""
        if not self._limits.caching:
            return []
        lengths = (min(length, self._limits.length - 1) for length in self.documents)
        return [Round("read", (self._read(at, length),)) for at, length in enumerate(lengths) if length > 1]

    def _read(self, document: int, length: int) -> Ask:
        return Ask(1, 1, document, length - 1)

    # -- kinds ---------------------------------------------------------------------------------------------------

    def _decodes(self) -> Iterator[Round]:
        most = self._limits.requests
        for count in powers_of_two(most):
            for level, shape in ((0.0, 0.0), (1.0, 0.0), (0.4, 0.5), (1.0, 0.5), (1.0, 0.9)):
                yield self._decode(count, level, shape, 0.3)
        for size, level, shape, fresh in spread(SPREAD_DECODES, 4, self._seed):
            yield self._decode(_between(1, most, size), level, shape, fresh)

    def _prefills(self) -> Iterator[Round]:
        for rows in powers_of_two(self._limits.tokens):
            for level in (0.0, 1.0):
                yield self._prefill(1, rows, level, 0.0)
            yield self._prefill(min(4, self._limits.requests), rows, 0.5, 0.9)
        for count, rows, level, shape in spread(SPREAD_PREFILLS, 4, self._seed + 1):
            many = _between(1, min(MOST_PREFILLS, self._limits.requests), count)
            yield self._prefill(many, _between(1, self._limits.tokens, rows), level, shape)

    def _mixed(self) -> Iterator[Round]:
        """Decodes, and prompts that come while they run."""
        limits = self._limits
        for size, count, rows, level, history, shape in spread(SPREAD_MIXED, 6, self._seed + 2):
            prompts = _between(1, min(MOST_PREFILLS, limits.requests // 2), count)
            running = _between(1, limits.requests - prompts, size)
            if prompts + running > limits.requests:
                return
            decode = self._decode(running, level, shape, 0.3, skip=prompts)
            total = _between(1, self._most_beside(running, prompts), rows)
            yield Round("mixed", decode.first, self._prefill(prompts, total, history, shape, beside=running).first)

    def _chunks(self) -> Iterator[Round]:
        """A prompt longer than the budget, alone and beside decodes: its first chunk samples nothing."""
        limits = self._limits
        length = limits.tokens + max(limits.tokens // 2, 1)
        if length + 1 > limits.length:
            return
        prompt = (Ask(length, 1),)
        yield Round("chunks", prompt)
        for running in powers_of_two(min(limits.requests - 1, limits.rows // limits.tokens if limits.padded else 64)):
            if running:
                yield Round("chunks", self._decode(running, 0.5, 0.5, 0.3, skip=1).first, prompt)

    # -- requests ------------------------------------------------------------------------------------------------

    def _decode(self, count: int, level: float, shape: float, fresh: float, skip: int = 0) -> Round:
        """`count` requests whose contexts are `level` of the longest they can be, equal or not by `shape`.

        Histories are whole blocks; fresh tokens make up for the rest where the budget has room for them.
        """
        limits = self._limits
        output = min(DECODES, limits.length - 1)
        room = min(limits.tokens // count, limits.length - output, limits.block)
        own = max(_between(1, room, fresh), 1)
        lengths = np.array(self.documents[skip : skip + count])
        longest = limits.length - output - own
        if limits.padded:  # all rows read as much as the longest
            longest = min(longest, 2 * READ * limits.length // count)
        wanted = np.minimum(lengths, longest) * _levels(count, level, shape)
        if shape < 1 / 3:
            wanted[:] = wanted.min()
        exact = count * (own + limits.block) <= limits.tokens
        asks = []
        for at, tokens in enumerate(wanted.astype(int).tolist()):
            history = self._whole_blocks(tokens)
            asks.append(Ask(own + tokens - history if exact else own, output, skip + at, history))
        return Round("decode", tuple(asks))

    def _prefill(self, count: int, total: int, level: float, shape: float, beside: int = 0) -> Round:
        """`count` prompts of `total` rows, in equal parts or not by `shape`, after histories up to `level`."""
        limits = self._limits
        parts = _parts(total, count, uneven=shape > 0.5)
        if limits.padded:
            parts = [min(part, max(limits.rows // (count + beside), 1)) for part in parts]
        parts = [min(part, limits.length - 1) for part in parts]
        lengths = np.minimum(np.array(self.documents[:count]), limits.length - 1 - np.array(parts))
        wanted = np.maximum(lengths, 0) * _levels(count, level, shape)
        return Round("prefill", tuple(
            Ask(part, 1, at, self._whole_blocks(tokens))
            for at, (part, tokens) in enumerate(zip(parts, wanted.tolist(), strict=True))
        ))  # fmt: skip

    def _most_beside(self, running: int, prompts: int) -> int:
        """Prompt tokens that fit into a step beside so many decodes."""
        return max(self._limits.tokens - running, prompts)

    def _whole_blocks(self, tokens: float) -> int:
        return max(int(tokens), 0) // self._limits.block * self._limits.block


def batches(limits: Limits, seed: int = 0) -> list[Round]:
    """Rounds under `static`: batches whose prompts, and outputs, are equal or not; rows that end early burn on."""
    made = [
        _batch(limits, count, length, shape)
        for count in powers_of_two(limits.requests)
        for length, shape in ((0.0, 0.0), (0.5, 0.5), (1.0, 0.9))
    ]
    for size, length, shape in spread(SPREAD_BATCHES, 3, seed + 3):
        made.append(_batch(limits, _between(1, limits.requests, size), length, shape))
    return list(dict.fromkeys(made))


def _batch(limits: Limits, count: int, length: float, shape: float) -> Round:
    output = min(BATCH_DECODES, limits.length - 1)
    most = min(limits.length - output, limits.rows // count, limits.kv // count - output - limits.block)
    longest = _between(1, max(most, 1), length)
    shares = _levels(count, 1.0, shape)
    ends = _levels(count, 1.0, shape)[::-1] if shape > 0.5 else np.ones(count)
    return Round("batch", tuple(
        Ask(max(int(longest * share), 1), max(int(output * end), 1))
        for share, end in zip(shares.tolist(), ends.tolist(), strict=True)
    ))  # fmt: skip


def _between(least: int, most: int, place: float) -> int:
    """A whole number from `least` to `most`, evenly by its logarithm."""
    return min(int(least * math.exp(place * math.log((most + 1) / least))), most) if most > least else least


def _levels(count: int, level: float, shape: float) -> Points:
    """Shares of what is possible, up to `level`: all equal below 1/3, evenly spread below 2/3, else one long."""
    if count == 1 or shape < 1 / 3:
        return np.full(count, level)
    if shape < 2 / 3:
        return level * (1 - np.arange(count) / count)
    levels = np.full(count, level / 8)
    levels[0] = level
    return levels


def _parts(total: int, count: int, *, uneven: bool) -> list[int]:
    """`total` as `count` parts, each at least 1: alike, or each half of what the ones before it leave."""
    parts: list[int] = []
    for left in range(count, 0, -1):
        rest = total - sum(parts)
        parts.append(max(rest // (min(left, 2) if uneven else left), 1))
    return parts
