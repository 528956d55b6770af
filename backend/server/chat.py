"""`POST /v1/chat/completions`: conversations through the model's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from scheduler.errors import UserError

from .answers import Answer, Json, Shape
from .body import read
from .errors import invalid
from .logprobs import chat_logprobs
from .openapi import body_of
from .protocol import ChatRequest
from .service import Service, new_id, service_of

if TYPE_CHECKING:
    from backend.outputs import TokenOutput

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """Continue a conversation."""
    service = service_of(request)
    asked = await read(request, ChatRequest, service.max_body)
    service.check_model(asked.model)
    try:
        prompt = await service.encode_chat(asked.conversation())
    except UserError as error:
        raise invalid(str(error), "messages") from error
    return await service.answer(request, asked, ChatShape(service, prompt, asked))


class ChatShape(Shape):
    """Answers as ``chat.completion`` objects; in a stream the role comes with the first token, not before it."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, service: Service, prompt: list[int], asked: ChatRequest) -> None:
        super().__init__(new_id("chatcmpl"), service.names[0], service.token_text, [prompt], asked.n)

    def choice(self, index: int, answer: Answer) -> Json:
        """See `Shape`."""
        message = {"role": "assistant", "content": "".join(answer.pieces), "refusal": None}
        logprobs = chat_logprobs(answer.logprobs, self.token_text) if answer.logprobs else None
        return {"message": message, "logprobs": logprobs}

    def delta(self, index: int, output: TokenOutput, answer: Answer, first: bool) -> Json:
        """See `Shape`."""
        role = {"role": "assistant"} if first else {}
        logprobs = None if output.logprob is None else chat_logprobs([output.logprob], self.token_text)
        return {"delta": {**role, "content": output.text}, "logprobs": logprobs}
