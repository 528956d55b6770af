"""What an engine was asked and what it gave, kept as a workload: a measured run that can be simulated."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler.errors import UserError
from scheduler.prefix import extend_hashes
from scheduler.request import FinishReason
from traces.workload import Workload

from .live import Live

IntArray = npt.NDArray[np.int64]
_ENDED_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)


class WorkloadLog:
    """Notes every request as it ends (`Engine.observe_ends`); memory grows with what is noted.

    Contents are kept as one number per full KV block, a hash of the block and all before it: enough to know which
    prefixes were equal, and nothing more.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._noted: dict[int, tuple[float, int, int, int, int, list[int]]] = {}

    def note(self, live: Live) -> None:
        """A request has ended."""
        request = live.request
        ended_itself = live.held or request.finish_reason in _ENDED_ITSELF
        outputs = len(live.token_ids) if ended_itself else request.max_tokens
        assert request.tokens is not None
        known = request.num_prompt_tokens + len(live.token_ids)
        if len(request.block_hashes) < known // self._block_size:
            extend_hashes(request, known // self._block_size, self._block_size)
        ids = [int.from_bytes(digest[:8], "big") >> 1 for digest in request.block_hashes[: known // self._block_size]]
        self._noted[request.index] = (
            request.arrival_s, request.num_prompt_tokens, outputs, request.max_tokens, request.priority, ids,
        )  # fmt: skip

    def workload(self, name: str) -> Workload:
        """Everything noted, by arrival; request i here is request i of the step trace. Raises UserError for nothing."""
        if not self._noted:
            raise UserError("no request has ended; there is no workload to keep")
        rows = [self._noted[index] for index in sorted(self._noted)]
        arrival_s, prompt, outputs, limits, priority, ids = zip(*rows, strict=True)
        return Workload(
            arrival_s=np.maximum.accumulate(np.array(arrival_s)),
            prompt_tokens=_ints(prompt),
            output_tokens=_ints(outputs),
            max_tokens=_ints(limits),
            priority=_ints(priority),
            hash_ids=_ints([block for blocks in ids for block in blocks]),
            hash_offsets=_ints(np.concatenate([[0], np.cumsum([len(blocks) for blocks in ids])])),
            hash_block=self._block_size,
            hash_covers="sequence",
            name=name,
        )


def _ints(values: npt.ArrayLike) -> IntArray:
    return np.asarray(values, dtype=np.int64)
