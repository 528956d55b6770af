"""A request: what was asked, how far it is, what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .steady import SteadyPrefix

TokenArray = npt.NDArray[np.int32]


class RequestStatus(IntEnum):
    """Where a request is; `HELD` rows have ended but keep their seat until the batch ends (``static``)."""

    NEW = 0
    WAITING = 1
    PREEMPTED = 2  # waiting again, to be computed anew
    RUNNING = 3
    HELD = 4
    FINISHED = 5


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # EOS or a stop token
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"
    ERROR = "error"  # it can never fit


class Request:
    """One request and its state in the scheduler (the scheduler alone changes the state).

    Args:
        request_id: unique among the unfinished requests.
        prompt: the prompt's token ids, or just their number where contents do not matter (no prefix hits then).
        max_tokens: most output tokens.
        min_tokens: EOS and stop tokens are ignored before this many outputs.
        ignore_eos: EOS does not end it.
        stop_token_ids: further tokens that end it.
        priority: smaller runs first under ``scheduling_policy=priority``.
        arrival_s: when it reached the server, seconds; the order among equals is the order of `Scheduler.add`.
        eos_at: known from a recording: the output (1-based) that is an EOS. It stands in for the token's content,
            policies never see it.
        script: known from a recording: prompt and all outputs, shape ``(>= prompt + outputs,)``. Gives simulated
            outputs their content (for prefix hits).
        cache_salt: requests share cached prefixes only with the same salt.
    """

    __slots__ = (
        "request_id", "num_prompt_tokens", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "priority",
        "arrival_s", "queued_s", "eos_at", "cache_salt", "tokens", "index", "status", "finish_reason", "slot", "blocks",
        "block_hashes", "num_published", "stored_tokens", "stored_computed", "steady", "offset", "join_no", "end_at",
        "last_at", "max_computed", "num_preemptions", "admissions", "num_cached_tokens", "pad", "joined_clock",
        "left_clock",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str | int,
        prompt: int | Sequence[int] | TokenArray,
        max_tokens: int,
        *,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        priority: int = 0,
        arrival_s: float = 0.0,
        eos_at: int | None = None,
        script: TokenArray | None = None,
        cache_salt: str = "",
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = int(prompt) if isinstance(prompt, (int, np.integer)) else len(prompt)
        self.max_tokens = max_tokens
        self.min_tokens = min_tokens
        self.ignore_eos = ignore_eos
        self.stop_token_ids = tuple(stop_token_ids)
        self.priority = priority
        self.arrival_s = arrival_s
        self.eos_at = eos_at
        self.cache_salt = cache_salt
        self.tokens: TokenArray | None = script
        """Known token ids, position by position; None where contents do not matter."""
        if script is None and not isinstance(prompt, (int, np.integer)):
            self.tokens = np.asarray(prompt, dtype=np.int32)
        self.index = -1
        """Number among all requests added so far; equal arrivals keep this order."""
        self.status = RequestStatus.NEW
        self.finish_reason: FinishReason | None = None
        self.slot = -1
        self.blocks: list[int] = []
        """Block ids held, in logical order."""
        self.block_hashes: list[bytes] = []
        self.num_published = 0
        """Leading blocks whose hash has been offered to the prefix cache since admission."""
        self.stored_tokens = self.num_prompt_tokens
        self.stored_computed = 0
        self.steady: SteadyPrefix | None = None
        """The steady prefix it belongs to; then the two counts above are `offset` and the prefix's clock instead."""
        self.offset = 0
        self.join_no = 0
        self.end_at = 0
        """`num_tokens` at which it ends by length."""
        self.last_at = 0
        """`num_tokens` at which its recorded end comes: `end_at`, or its recorded EOS when that is earlier."""
        self.max_computed = 0
        """Most tokens ever computed: what lies below it is recomputed after a preemption."""
        self.num_preemptions = 0
        self.admissions = 0
        self.num_cached_tokens = 0
        """Prefix-cache hits at the first admission, tokens."""
        self.pad = 0
        """Left padding of its row: how much longer the longest prompt of its `static` batch is, tokens."""
        self.queued_s = 0.0
        self.joined_clock = self.left_clock = 0
        """It was (while `steady`: is) a member of the steady prefix from the first of these clocks to the second."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose K/V is written or planned to be, from position 0."""
        return self.stored_computed if self.steady is None else self.offset + self.steady.clock

    @property
    def num_tokens(self) -> int:
        """Prompt + outputs, an output planned but still in flight included."""
        return self.stored_tokens if self.steady is None else self.offset + self.steady.clock + 1

    @property
    def num_output_tokens(self) -> int:
        """Outputs, one planned but still in flight included."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def unfinished(self) -> bool:
        """Whether it still waits for or computes tokens."""
        return self.status < RequestStatus.HELD
