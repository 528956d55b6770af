"""Log-probabilities of sampled tokens and of the likeliest others, from the raw logits (vLLM's ``raw_logprobs``)."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scheduler.plan import IntArray

from .filters import gather, kth_largest
from .outputs import TokenLogprobs


class Logprobs:
    """Of the rows that asked: the sampled token's log-probability and rank, and the likeliest tokens.

    They are before temperature, filters and masks. Index it by row: `TokenLogprobs`, or None for a row that did not
    ask. The numbers come to the host with the first row that is looked at.

    Args:
        logits: of all rows, ``(N, V)``.
        token_ids: sampled, ``(N,)``.
        counts: likeliest tokens wanted by each row, -1: did not ask; ``(N,)``.
    """

    def __init__(self, logits: Tensor, token_ids: Tensor, counts: IntArray) -> None:
        rows = np.flatnonzero(counts >= 0)
        self._counts = counts[rows].tolist()
        self._index = {row: index for index, row in enumerate(rows.tolist())}
        asked = torch.from_numpy(rows).to(logits.device)
        chosen = logits[asked]
        if chosen.dtype != torch.float64:
            chosen = chosen.float()
        self._token_ids = token_ids[asked].to(torch.int64)
        logprobs = chosen.log_softmax(-1)
        self._sampled = logprobs.gather(1, self._token_ids[:, None])
        self._ranks = _ranks(logprobs, self._sampled)
        self._top = _likeliest(logprobs, min(max(self._counts), logits.shape[1]))

    def __getitem__(self, row: int) -> TokenLogprobs | None:
        index = self._index.get(row)
        return None if index is None else self._host[index]

    @cached_property
    def _host(self) -> list[TokenLogprobs]:
        columns = zip(
            self._token_ids.tolist(), self._sampled[:, 0].tolist(), self._ranks.tolist(), self._top[0].tolist(),
            self._top[1].tolist(), self._counts, strict=True,
        )  # fmt: skip
        return [
            TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
            for token, logprob, rank, ids, values, count in columns
        ]


def _ranks(logprobs: Tensor, sampled: Tensor) -> Tensor:
    """1 + how many tokens are likelier, ``(M,)``."""
    if logprobs.device.type != "cpu":
        return (logprobs > sampled).sum(-1) + 1
    return torch.from_numpy(np.count_nonzero(logprobs.numpy() > sampled.numpy(), axis=1) + 1)


def _likeliest(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities ``(M, count)`` of each row's likeliest tokens, falling."""
    if logprobs.device.type != "cpu" or not count:
        values, ids = logprobs.topk(count, dim=-1)
        return ids, values
    array = logprobs.numpy()
    columns, found = gather(array >= kth_largest(array, np.full(len(array), count))[:, None], array, -np.inf)
    order = np.argsort(-found, axis=1, kind="stable")[:, :count]
    chosen = (np.take_along_axis(those, order, axis=1) for those in (columns, found))
    ids, values = map(torch.from_numpy, chosen)
    return ids, values
