"""What clients send: the requests of OpenAI's completions and chat endpoints, with vLLM's extra fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .errors import invalid, shown
from .fields import checked

MOST_CHOICES = 128
"""Largest `n`."""
MOST_STOPS = 64
"""Every token is looked at for each stop string."""
MOST_LOGPROBS = 20
_MOST_INT = 2**31 - 1

Role = Literal["system", "developer", "user", "assistant"]


def _list_of_text(value: object) -> object:
    """A stop string alone is a list of one."""
    return [value] if isinstance(value, str) else value


def _prompts(value: object) -> object:
    """A prompt, or a list of prompts, as a list; raises ValueError for anything else."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, str) for item in value) or all(_is_token_list(item) for item in value):
            return value
    raise ValueError("text, a list of texts, a list of token ids, or a list of such lists; none of them empty")


def _text_or_parts(value: object) -> object:
    if isinstance(value, (str, list)):
        return value
    raise ValueError("text, or a list of parts of type 'text'")


def _is_token_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


class StreamOptions(BaseModel):
    """``stream_options``: whether a last chunk (or every chunk) tells the token counts."""

    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingRequest(BaseModel):
    """What both endpoints take."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[str], BeforeValidator(_list_of_text)] = Field(default_factory=list, max_length=MOST_STOPS)
    stream: bool = False
    stream_options: StreamOptions | None = None

    cache_salt: str = ""
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    min_p: float = Field(default=0.0, ge=0, le=1)
    min_tokens: int = Field(default=0, ge=0, le=_MOST_INT)
    priority: int = Field(default=0, ge=-_MOST_INT, le=_MOST_INT)
    skip_special_tokens: bool = True
    stop_token_ids: list[int] = Field(default_factory=list, max_length=MOST_STOPS)
    top_k: int = Field(default=0, ge=-1, le=_MOST_INT)

    @model_validator(mode="before")
    @classmethod
    def _drop_what_has_no_effect(cls, given: object) -> object:
        return checked(given, cls.model_fields)

    @model_validator(mode="after")
    def _check_together(self) -> SamplingRequest:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only for stream: true", "stream_options")
        return self

    @property
    def usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_always(self) -> bool:
        """Whether every chunk of a stream carries token counts."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """The field that limits the output, and its value; None: as much as fits."""
        raise NotImplementedError

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report for each token; None: no log-probabilities at all."""
        raise NotImplementedError


class CompletionRequest(SamplingRequest):
    """``POST /v1/completions``."""

    prompt: Annotated[list[str] | list[list[int]], BeforeValidator(_prompts)]
    max_tokens: int = Field(default=16, ge=1, le=_MOST_INT)
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    echo: bool = False
    best_of: int | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if self.best_of not in (None, self.n):
            raise invalid(f"best_of is {self.best_of}; only n answers are made, all of them returned", "best_of")
        if self.echo and self.logprobs is not None:
            raise invalid("echo does not go with logprobs: those of prompt tokens are not computed", "echo")
        return self

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """See `SamplingRequest`."""
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """See `SamplingRequest`."""
        return self.logprobs


class Message(BaseModel):
    """One message of a conversation; parts of its content other than text are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")
    role: Role
    content: Annotated[str | list[Any], BeforeValidator(_text_or_parts)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None and value != []}


class ChatRequest(SamplingRequest):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_MOST_INT)
    max_tokens: int | None = Field(default=None, ge=1, le=_MOST_INT)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_LOGPROBS)

    @model_validator(mode="after")
    def _check_chat(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs is only for logprobs: true", "top_logprobs")
        return self

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """See `SamplingRequest`; the newer of OpenAI's two names wins."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """See `SamplingRequest`."""
        return self.top_logprobs if self.logprobs else None

    def conversation(self) -> list[dict[str, str]]:
        """The messages as role and text; raises ApiError naming a part that is no text."""
        return [_plain(message, f"messages[{index}]") for index, message in enumerate(self.messages)]


def _plain(message: Message, where: str) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "".join(_part_texts(content, f"{where}.content"))
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": text, **named}


def _part_texts(parts: Sequence[object], where: str) -> list[str]:
    return [_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts)]


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise invalid(f"{where}.type is {shown(kind)}; this model reads 'text' only", f"{where}.type")
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise invalid(f"{where}.text is {shown(text)}; expected text", f"{where}.text")
    return text
