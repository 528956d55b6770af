"""The next token of every row: each slot's settings, a step's rows of them, and the choice itself.

Logits -> min_tokens mask -> temperature -> min-p, top-k, top-p (`backend.filters`) -> the first token, in vocabulary
order, whose cumulative probability exceeds one uniform number of (seed, position) (`backend.philox`). A row's token
depends on its logits, settings, seed and position; on nothing else in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scheduler.plan import IntArray

from .draws import FloatArray, draw, draw_among, likeliest
from .filters import candidates_by_floor, candidates_by_mass, masked_logits, nucleus
from .logprobs import Logprobs
from .philox import seed_word, uniform
from .sampling import SamplingParams

Rows = npt.NDArray[np.void]

ROW = np.dtype([
    ("temperature", np.float64),  # 0: greedy
    ("top_k", np.int64),  # the vocabulary's size: all
    ("top_p", np.float64),
    ("min_p", np.float64),
    ("seed", np.uint64),
    ("logprobs", np.int64),  # -1: none
    ("masked_until", np.int64),  # position from which the request may end
])  # fmt: skip
CHUNK = 2**19
"""Logits worked on at once on the CPU: they stay in the cache, and scratch memory does not grow with the batch."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to sample the N rows of a step, on the host.

    Attributes:
        rows: settings, dtype `ROW`, ``(N,)``.
        positions: of the token to be sampled, ``(N,)``.
        masked_rows, masked_ids: tokens that may not be sampled, as pairs.
    """

    rows: Rows
    positions: IntArray
    masked_rows: IntArray
    masked_ids: IntArray


@dataclass(frozen=True, slots=True)
class Sampled:
    """Token ids int64 ``(N,)`` on the logits' device, and the log-probabilities that were asked for."""

    token_ids: Tensor
    logprobs: Logprobs | None


class SamplingTable:
    """The settings of whoever holds each slot.

    Args:
        num_slots: seats.
        vocab_size: of the model's logits.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows = np.zeros(num_slots, dtype=ROW)
        self._plain = np.ones(num_slots, dtype=np.bool_)
        """Greedy for its whole life, nothing masked, no log-probabilities."""
        self._stop_ids: list[IntArray] = [_ids(())] * num_slots

    def seat(self, slot: int, params: SamplingParams, seed: int, stop_ids: Iterable[int], prompt_len: int) -> None:
        """Note how the request that takes a slot is sampled.

        Args:
            slot: which.
            params: what it asked; `params.seed` is not read.
            seed: of its noise, 64 bits, signed or unsigned.
            stop_ids: tokens masked until ``min_tokens`` outputs exist; those outside the vocabulary need no mask.
            prompt_len: tokens of its prompt: the first output has this position.
        """
        greedy = params.greedy or params.top_k == 1  # one candidate; equal ones are settled as greedy settles them
        self._rows[slot] = (
            0.0 if greedy else params.temperature,
            params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size,
            params.top_p,
            params.min_p,
            seed_word(seed),
            -1 if params.logprobs is None else params.logprobs,
            prompt_len + params.min_tokens,
        )
        masked = stop_ids if params.min_tokens else ()
        self._stop_ids[slot] = _ids(token for token in masked if 0 <= token < self._vocab_size)
        self._plain[slot] = greedy and params.logprobs is None and not len(self._stop_ids[slot])

    def batch(self, slots: IntArray, positions: IntArray) -> SamplingBatch | None:
        """The rows of a step, or None when all are plain greedy.

        Args:
            slots: of each row, ``(N,)``.
            positions: of the token each samples, ``(N,)``; kept, not copied.
        """
        if self._plain[slots].all():
            return None
        rows = self._rows[slots]
        masked_rows, masked_ids = self._masked(slots, positions, rows)
        if not len(masked_rows) and not rows["temperature"].any() and (rows["logprobs"] < 0).all():
            return None
        return SamplingBatch(rows, positions, masked_rows, masked_ids)

    def _masked(self, slots: IntArray, positions: IntArray, rows: Rows) -> tuple[IntArray, IntArray]:
        """Pairs of row and token id; a loop over the few rows whose `min_tokens` are not reached."""
        early = np.flatnonzero(positions < rows["masked_until"])
        found = [self._stop_ids[slot] for slot in slots[early].tolist()]
        if not found:
            return _ids(()), _ids(())
        return np.repeat(early, [len(ids) for ids in found]), np.concatenate(found)


def sample(logits: Tensor, batch: SamplingBatch | None, device: torch.device | None = None) -> Sampled:
    """Choose a token for every row.

    Args:
        logits: ``(N, V)``, float32 or float64; not changed.
        batch: how; None: all greedy.
        device: of the logits; taken from them.
    """
    if batch is None:
        return Sampled(likeliest(logits), None)
    choose = _choose if logits.device.type == "cpu" else _choose_on_gpu
    token_ids = choose(_masked(logits, batch), batch)
    counts = batch.rows["logprobs"]
    return Sampled(token_ids, Logprobs(logits, token_ids, counts) if (counts >= 0).any() else None)


def _masked(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """The logits, -inf where a token may not be sampled."""
    if not len(batch.masked_rows):
        return logits
    logits = logits.clone()
    logits[_to(batch.masked_rows, logits), _to(batch.masked_ids, logits)] = -torch.inf
    return logits


def _choose(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """The CPU's way: rows in groups by what they need, in chunks that fit the cache."""
    rows = batch.rows
    random = rows["temperature"] > 0
    token_ids = np.empty(len(rows), dtype=np.int64) if random.all() else likeliest(logits).numpy()
    floored = (rows["top_k"] < logits.shape[1]) | (rows["min_p"] > 0)
    cut = rows["top_p"] < 1
    uniforms = uniform(rows["seed"], batch.positions)
    groups = ((_draw_floored, floored), (_draw_nucleus, cut & ~floored), (_draw_plain, ~cut & ~floored))
    for draw_rows, member in groups:
        for chunk in _chunks(np.flatnonzero(random & member), logits.shape[1]):
            token_ids[chunk] = draw_rows(_take(logits, chunk), rows[chunk], uniforms[chunk])
    return torch.from_numpy(token_ids)


def _draw_plain(logits: Tensor, rows: Rows, uniforms: FloatArray) -> IntArray:
    return draw(_probabilities(logits, rows), uniforms)


def _draw_floored(logits: Tensor, rows: Rows, uniforms: FloatArray) -> IntArray:
    ids, weights = candidates_by_floor(logits.numpy(), rows["temperature"], rows["top_k"], rows["min_p"])
    return draw_among(ids, nucleus(weights, rows["top_p"]), uniforms)


def _draw_nucleus(logits: Tensor, rows: Rows, uniforms: FloatArray) -> IntArray:
    ids, probs = candidates_by_mass(_probabilities(logits, rows).numpy(), rows["top_p"])
    return draw_among(ids, nucleus(probs, rows["top_p"], total=1.0), uniforms)


def _probabilities(logits: Tensor, rows: Rows) -> Tensor:
    temperature = torch.from_numpy(rows["temperature"].copy()).to(logits.dtype)
    return (logits / temperature[:, None]).softmax(-1)


def _choose_on_gpu(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """A GPU's way: one kernel draws for all rows, after whole-row filters for those that need them."""
    from .kernels.sample import sample as draw_on_gpu

    rows = batch.rows
    narrowed = (rows["top_k"] < logits.shape[1]) | (rows["top_p"] < 1) | (rows["min_p"] > 0)
    cut = np.flatnonzero((rows["temperature"] > 0) & narrowed)
    if len(cut):
        settings = (_to(rows[name][cut], logits) for name in ("temperature", "top_k", "top_p", "min_p"))
        index = _to(cut, logits)
        logits = logits.index_copy(0, index, masked_logits(logits[index], *settings))
    temperature = _to(rows["temperature"].astype(np.float32), logits)
    return draw_on_gpu(logits, temperature, _to(rows["seed"].view(np.int64), logits), _to(batch.positions, logits))


def _chunks(rows: IntArray, vocab_size: int) -> Iterator[IntArray]:
    size = max(1, CHUNK // vocab_size)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _take(logits: Tensor, rows: IntArray) -> Tensor:
    """Rows of the logits; no copy when they lie side by side."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return logits[first : last + 1]
    return logits[torch.from_numpy(rows)]


def _to(array: npt.NDArray[Any], logits: Tensor) -> Tensor:
    """The array where the logits are, by way of pinned memory: from other memory the host would wait for the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(logits.device, non_blocking=True) if logits.is_cuda else tensor


def _ids(tokens: Iterable[int] | Sequence[int]) -> IntArray:
    return np.fromiter(tokens, dtype=np.int64)
