"""What the endpoints share: the engine, the names it answers to, its limits, and starting a call."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from scheduler.errors import UserError

from .answers import Shape, collect, events
from .bridge import Bridge, Call
from .errors import ApiError, busy, invalid, of_user_error
from .sse import EventStream, disconnected

if TYPE_CHECKING:
    from backend.engine import Engine
    from backend.sampling import SamplingParams

    from .protocol import SamplingRequest

_LONG_TEXT = 4096
"""Texts of more characters are tokenized in a thread of their own, so that the event loop goes on."""


class Service:
    """One engine behind HTTP.

    Args:
        engine: answers.
        names: of the model, as clients may call it; the first is the one that responses give.
        max_body: largest request body, bytes.
        max_queue: requests that may wait, as the engine was told.

    Attributes:
        run_id: of this engine's run alone: who follows the trace tells from it that the server was started anew.
    """

    def __init__(self, engine: Engine, names: Sequence[str], *, max_body: int, max_queue: int | None) -> None:
        self.engine = engine
        self.names = list(names)
        self.max_body = max_body
        self.max_queue = max_queue
        self.run_id = uuid.uuid4().hex
        self._bridge: Bridge | None = None

    async def start(self) -> None:
        """Called in the event loop before the first request; loads what makes a first chat slow."""
        self._bridge = Bridge(asyncio.get_running_loop())
        with contextlib.suppress(UserError):  # a model without tokenizer or template has nothing to load
            await self.encode_chat([{"role": "user", "content": "-"}])

    def token_text(self, token_id: int) -> str:
        """The text of one token, special ones by name; part of a character shows as U+FFFD."""
        if self.engine.tokenizer is None:
            return f"token_id:{token_id}"
        return self.engine.tokenizer.decode([token_id], skip_special=False)

    def check_model(self, model: str | None) -> None:
        """Raise ApiError unless `model` is served (or not given)."""
        if model is not None and model not in self.names:
            known = ", ".join(self.names)
            message = f"the model {model[:100]!r} does not exist here; this server has {known}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def encode(self, prompt: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt. Raises UserError."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            return self.engine.encode(prompt)  # says what is missing
        if len(prompt) <= _LONG_TEXT:
            return tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(tokenizer.encode, prompt, add_special_tokens=add_special_tokens)

    async def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation. Raises UserError."""
        if self.engine.tokenizer is None:
            raise invalid(f"model {self.names[0]} has no tokenizer and cannot chat", "messages")
        return await asyncio.to_thread(self.engine.tokenizer.chat, messages)

    async def answer(self, request: Request, asked: SamplingRequest, shape: Shape) -> Response:
        """Run a request to its end, or stream it; aborted at once when its client goes away.

        Raises:
            ApiError: it is refused, or fails before its first byte was sent.
        """
        call = self._begin(asked, shape)
        if asked.stream:
            return EventStream(events(call, shape, asked), call.abort)
        gathering = asyncio.create_task(collect(call, shape))
        gone = asyncio.create_task(disconnected(request.receive))
        try:
            await asyncio.wait({gathering, gone}, return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(gathering.result()) if gathering.done() else Response(status_code=400)
        finally:
            gathering.cancel()
            gone.cancel()
            call.abort()

    def _begin(self, asked: SamplingRequest, shape: Shape) -> Call:
        from backend.engine import EngineClosed, EngineFull

        assert self._bridge is not None, "the app was not started"
        self._check_size(asked, shape.prompts)
        call = Call(self.engine, self._bridge, shape.call_id)
        try:
            each = [(prompt, params) for prompt in shape.prompts for params in _params(asked)]
            call.start(each, priority=asked.priority, cache_salt=asked.cache_salt)
        except EngineFull as error:
            raise busy(str(error), "queue_full") from error
        except EngineClosed as error:
            raise busy(str(error), "stopped") from error
        except UserError as error:
            raise of_user_error(error, [*type(asked).model_fields]) from error
        return call

    def _check_size(self, asked: SamplingRequest, prompts: Sequence[list[int]]) -> None:
        answers = asked.n * len(prompts)
        if self.max_queue is not None and answers > self.max_queue:
            message = f"{answers} answers are asked for at once; at most {self.max_queue} requests may wait"
            raise invalid(message, "n" if asked.n > 1 else "prompt", "too_many_answers")
        field, wanted = asked.output_limit
        for prompt in prompts:
            if not prompt:
                raise invalid("prompt is empty; expected at least one token", "prompt")
            self._check_length(len(prompt), field, wanted)

    def _check_length(self, prompt: int, field: str, wanted: int | None) -> None:
        cap = self.engine.config.length_cap
        if prompt + (wanted or 1) <= cap:
            return
        parts = f"{prompt} in the prompt" + ("" if wanted is None else f", {wanted} by {field}")
        message = f"this model takes at most {cap} tokens, prompt and output together; {prompt + (wanted or 1)} were " \
                  f"asked for ({parts})"  # fmt: skip
        raise invalid(message, None if prompt < cap else "prompt", "context_length_exceeded")


def service_of(request: Request) -> Service:
    """The service behind an endpoint."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def new_id(prefix: str) -> str:
    """An id for a response."""
    return f"{prefix}-{uuid.uuid4().hex}"


def _params(asked: SamplingRequest) -> list[SamplingParams]:
    """Sampling parameters of each of the `n` answers. Raises ConfigError naming a field."""
    from backend.answers import expand
    from backend.sampling import SamplingParams

    return expand(
        SamplingParams(
            n=asked.n, max_tokens=asked.output_limit[1], min_tokens=asked.min_tokens, temperature=asked.temperature,
            top_k=asked.top_k, top_p=asked.top_p, min_p=asked.min_p, seed=asked.seed, stop=tuple(asked.stop),
            stop_token_ids=tuple(asked.stop_token_ids), ignore_eos=asked.ignore_eos, logprobs=asked.num_logprobs,
            include_stop_str_in_output=asked.include_stop_str_in_output, skip_special_tokens=asked.skip_special_tokens,
        )
    )  # fmt: skip
