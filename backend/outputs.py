"""What the engine tells the world: tokens as they are delivered, whole outputs, what each step was, where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one output position, natural logarithm.

    Attributes:
        token_id, logprob: the token that was sampled.
        rank: its rank among all tokens, from 1.
        top: ``(token id, logprob)`` of the most likely ones, falling.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class TokenOutput(NamedTuple):
    """One delivery to a client: a token, its end, or both. Made once a token: a frozen dataclass takes 5 times as long.

    Attributes:
        request_id: whose.
        token_id: the token; None where there is only an end to tell (an abort, an error).
        text: text that can be shown now; it may lag behind the tokens (held back for a stop string or half a letter).
        logprob: of the token, when asked for.
        finish_reason: ``stop``, ``length``, ``abort``, ``error``; None while more will come.
        stop_reason: the stop string, or the stop token's id, that ended it; None for EOS and other reasons.
        num_prompt_tokens, num_output_tokens, num_cached_tokens: so far.
        time_s: when, seconds on the engine's clock.
        error: a sentence, when `finish_reason` is ``error``.
    """

    request_id: str
    token_id: int | None
    text: str
    logprob: TokenLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    time_s: float
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """One answer, whole. With ``n > 1`` the further answers to the same prompt are in `choices` (the first included).

    Attributes:
        request_id: whose.
        prompt_token_ids, token_ids: what went in and what came out; an EOS or stop token that ended it is included.
        text: the outputs as text, without EOS and without the stop string.
        finish_reason, stop_reason: as in `TokenOutput`.
        logprobs: per output token, when asked for.
        num_cached_tokens: prompt tokens that the prefix cache spared.
        arrival_s, first_token_s, finished_s: seconds on the engine's clock; None when it never came to that.
        choices: all answers, when there are several.
    """

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: str | int | None
    logprobs: list[TokenLogprobs] | None
    num_cached_tokens: int
    arrival_s: float
    first_token_s: float | None
    finished_s: float
    choices: list[RequestOutput] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What became of a request, for those who count. Times in seconds on the engine's clock; None: never came to it."""

    request_id: str
    finish_reason: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    max_tokens: int
    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    finished_s: float


class StepEvent(NamedTuple):
    """A step that has just been recorded, or requests that ended without one (then `plan` is None).

    Attributes:
        plan: what was decided; read it at once, it may refer to requests that change later.
        t_start_s, t_end_s: seconds on the engine's clock.
        device_s, host_s, padding_s: as recorded.
        finished: requests whose client has been told the end.
        first_tokens_s: time to first token of each request whose first token was delivered.
        gaps_s: time since the token before, of each further token delivered.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache by requests admitted in this step, and
            found there.
    """

    plan: StepPlan | None
    t_start_s: float
    t_end_s: float
    device_s: float = 0.0
    host_s: float = 0.0
    padding_s: float = 0.0
    finished: Sequence[FinishedRequest] = ()
    first_tokens_s: Sequence[float] = ()
    gaps_s: Sequence[float] = ()
    prefix_queries: int = 0
    prefix_hits: int = 0


class EngineStats(NamedTuple):
    """Where the engine stands, as of the last step.

    Attributes:
        running, waiting: requests in seats, requests in the queue (those just submitted included).
        slots_busy, slots_total: seats.
        blocks_used, blocks_cached, blocks_total: KV blocks.
        steps: run so far.
        preemptions: so far.
        prefix_queries, prefix_hits: prompt tokens, so far.
        in_flight: steps on the device.
    """

    running: int
    waiting: int
    slots_busy: int
    slots_total: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    steps: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    in_flight: int
