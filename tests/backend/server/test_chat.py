"""`/v1/chat/completions` as OpenAI's own client sees it."""

from __future__ import annotations

from typing import Any

import pytest

from .running import Running
from .tiny_model import SPECIAL

ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0.0}


def test_a_reply_has_openai_s_shape(server: Running) -> None:
    reply = server.openai().chat.completions.create(max_completion_tokens=5, extra_body={"ignore_eos": True}, **ASKED)
    assert (reply.object, reply.id[:9]) == ("chat.completion", "chatcmpl-")
    choice = reply.choices[0]
    assert (choice.message.role, choice.finish_reason, choice.logprobs) == ("assistant", "length", None)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5


def test_the_prompt_is_the_template_s(server: Running) -> None:
    reply = server.openai().chat.completions.create(max_tokens=4, **ASKED)
    by_hand = server.openai().completions.create(
        model="tiny", prompt="<|user|>Hello<|end|><|assistant|>", temperature=0, max_tokens=4
    )
    assert reply.choices[0].message.content == by_hand.choices[0].text
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len("Hello") + 3


def test_content_may_be_text_parts(server: Running) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    of_parts = {**ASKED, "messages": [{"role": "user", "content": parts}]}
    one = server.openai().chat.completions.create(**of_parts)
    other = server.openai().chat.completions.create(**ASKED)
    assert one.choices[0].message.content == other.choices[0].message.content


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_all_roles_of_a_conversation_are_taken(server: Running, role: str) -> None:
    messages: list[Any] = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    reply = server.openai().chat.completions.create(model="tiny", messages=messages, max_tokens=2)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len("Be brief.Hi") + 5


def test_a_stream_has_one_chunk_a_token_and_the_role_in_the_first(server: Running) -> None:
    settings = {**ASKED, "max_tokens": 7, "extra_body": {"ignore_eos": True}}
    usage = {"include_usage": True}
    chunks = list(server.openai().chat.completions.create(stream=True, stream_options=usage, **settings))
    *told, last = chunks
    assert len(told) == 7
    assert [chunk.choices[0].delta.role for chunk in told] == ["assistant"] + [None] * 6
    whole = server.openai().chat.completions.create(**settings)
    assert "".join(chunk.choices[0].delta.content for chunk in told) == whole.choices[0].message.content
    assert last.choices == []
    assert last.usage == whole.usage.model_copy(update={"prompt_tokens_details": last.usage.prompt_tokens_details})
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_logprobs_are_objects_with_alternatives(server: Running) -> None:
    settings = {**ASKED, "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "extra_body": {"ignore_eos": True}}
    told = server.openai().chat.completions.create(**settings).choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert len(told.content) == 4
    for entry in told.content:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
        assert entry.bytes == list(entry.token.encode())
    streamed = server.openai().chat.completions.create(stream=True, **settings)
    parts = [entry for chunk in streamed for entry in chunk.choices[0].logprobs.content]
    assert [(part.token, part.logprob) for part in parts] == [(one.token, one.logprob) for one in told.content]


def test_without_a_limit_the_answer_ends_where_the_model_does(server: Running) -> None:
    reply = server.openai().chat.completions.create(extra_body={"ignore_eos": True}, **ASKED)
    assert reply.usage is not None
    assert reply.usage.total_tokens == server.engine.config.length_cap
    assert reply.choices[0].finish_reason == "length"


def test_the_newer_limit_wins(server: Running) -> None:
    settings = {**ASKED, "max_tokens": 9, "max_completion_tokens": 3, "extra_body": {"ignore_eos": True}}
    reply = server.openai().chat.completions.create(**settings)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3


def test_special_tokens_of_a_message_s_text_are_whatever_the_tokenizer_makes_of_them(server: Running) -> None:
    messages: list[Any] = [{"role": "user", "content": SPECIAL[0]}]
    reply = server.openai().chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 4


def test_fields_without_effect_are_taken(server: Running) -> None:
    neutral = {"user": "me", "metadata": {"a": "b"}, "store": False, "tools": [], "response_format": {"type": "text"}}
    reply = server.openai().chat.completions.create(max_tokens=2, **neutral, **ASKED)
    assert len(reply.choices) == 1
