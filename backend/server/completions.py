"""`POST /v1/completions`: prompts as text or token ids, answers as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from scheduler.errors import UserError

from .answers import Answer, Json, Shape
from .body import read
from .errors import invalid
from .logprobs import completion_logprobs
from .openapi import body_of
from .protocol import CompletionRequest
from .service import Service, new_id, service_of

if TYPE_CHECKING:
    from backend.outputs import TokenLogprobs, TokenOutput

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
async def completions(request: Request) -> Response:
    """Continue one or several prompts."""
    service = service_of(request)
    asked = await read(request, CompletionRequest, service.max_body)
    service.check_model(asked.model)
    prompts = [await _encode(service, prompt, asked.add_special_tokens) for prompt in asked.prompt]
    echoes = [_text_of(service, prompt) for prompt in asked.prompt] if asked.echo else []
    shape = CompletionShape(service, prompts, asked, echoes)
    return await service.answer(request, asked, shape)


class CompletionShape(Shape):
    """Answers as ``text_completion`` objects; with `echoes` each begins with its prompt's text."""

    whole_object = chunk_object = "text_completion"

    def __init__(
        self, service: Service, prompts: Sequence[list[int]], asked: CompletionRequest, echoes: Sequence[str]
    ) -> None:
        super().__init__(new_id("cmpl"), service.names[0], service.token_text, prompts, asked.n)
        self._echoes = echoes

    def choice(self, index: int, answer: Answer) -> Json:
        """See `Shape`."""
        return {"text": self._echo(index) + "".join(answer.pieces), "logprobs": self._logprobs(answer.logprobs, answer)}

    def delta(self, index: int, output: TokenOutput, answer: Answer, first: bool) -> Json:
        """See `Shape`."""
        told = [] if output.logprob is None else [output.logprob]
        return {
            "text": (self._echo(index) if first else "") + output.text,
            "logprobs": self._logprobs(told, answer),
        }

    def _echo(self, index: int) -> str:
        return self._echoes[index // self.n] if self._echoes else ""

    def _logprobs(self, told: Sequence[TokenLogprobs], answer: Answer) -> Json | None:
        if not told:
            return None
        given = completion_logprobs(told, self.token_text, answer.num_chars)
        answer.num_chars += sum(map(len, given["tokens"]))
        return given


async def _encode(service: Service, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
    if isinstance(prompt, list):  # the engine looks at each id, once it is known that they are not too many
        return prompt
    try:
        return await service.encode(prompt, add_special_tokens=add_special_tokens)
    except UserError as error:
        raise invalid(str(error), "prompt") from error


def _text_of(service: Service, prompt: str | list[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    if service.engine.tokenizer is None:
        raise invalid("echo of token ids needs a tokenizer, and this model has none", "echo")
    return service.engine.tokenizer.decode(prompt, skip_special=False)
