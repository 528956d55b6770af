"""`/v1/completions` as OpenAI's own client sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Running, running

GREEDY = {"model": "tiny", "temperature": 0.0}


def alone(server: Running, prompt: object, **settings: object) -> str:
    reply = server.openai().completions.create(prompt=prompt, **{**GREEDY, **settings})
    text: str = reply.choices[0].text
    return text


def test_a_completion_has_openai_s_shape(server: Running) -> None:
    reply = server.openai().completions.create(prompt="Hello", max_tokens=5, extra_body={"ignore_eos": True}, **GREEDY)
    assert (reply.object, reply.model, reply.id[:5]) == ("text_completion", "tiny", "cmpl-")
    choice = reply.choices[0]
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (5, 5, 10)


def test_the_default_is_sixteen_tokens(server: Running) -> None:
    reply = server.openai().completions.create(model="tiny", prompt="a", extra_body={"ignore_eos": True})
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16


def test_token_ids_are_the_same_prompt_as_their_text(server: Running) -> None:
    ids = server.engine.encode("Hello there")
    assert alone(server, ids) == alone(server, "Hello there")


def test_a_list_of_prompts_gets_an_answer_each_in_order(server: Running) -> None:
    texts = ["one", "two, longer", "three"]
    reply = server.openai().completions.create(prompt=texts, max_tokens=8, **GREEDY)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [choice.text for choice in reply.choices] == [alone(server, text, max_tokens=8) for text in texts]
    by_ids = [server.engine.encode(text) for text in texts]
    again = server.openai().completions.create(prompt=by_ids, max_tokens=8, **GREEDY)
    assert [choice.text for choice in again.choices] == [choice.text for choice in reply.choices]


def test_n_answers_have_seeds_that_count_up(server: Running) -> None:
    settings = {"model": "tiny", "prompt": "Hello", "max_tokens": 12, "temperature": 1.0}
    reply = server.openai().completions.create(n=3, seed=7, **settings)
    each = [server.openai().completions.create(seed=7 + i, **settings).choices[0].text for i in range(3)]
    assert [choice.text for choice in reply.choices] == each
    assert len(set(each)) == 3
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 5  # the prompt counts once


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_tells_the_same_text_one_token_a_chunk(server: Running, usage: bool) -> None:
    settings = {"prompt": "Hello", "max_tokens": 9, "extra_body": {"ignore_eos": True}, **GREEDY}
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(server.openai().completions.create(stream=True, **options, **settings))
    told = [chunk for chunk in chunks if chunk.choices]
    assert len(told) == 9
    assert "".join(chunk.choices[0].text for chunk in told) == alone(server, **settings)
    assert [chunk.choices[0].finish_reason for chunk in told] == [None] * 8 + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in told)
    if usage:
        assert chunks[-1].choices == []
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 9)
    else:
        assert len(chunks) == 9


def test_a_stream_of_several_answers_names_each(server: Running) -> None:
    texts = ["one", "two", "three"]
    chunks = server.openai().completions.create(prompt=texts, max_tokens=6, stream=True, n=2, seed=1, model="tiny")
    parts: dict[int, str] = {}
    for chunk in chunks:
        parts[chunk.choices[0].index] = parts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    whole = server.openai().completions.create(prompt=texts, max_tokens=6, n=2, seed=1, model="tiny")
    assert parts == {choice.index: choice.text for choice in whole.choices}


def test_continuous_usage_counts_up(server: Running) -> None:
    chunks = server.openai().completions.create(
        prompt="abc", max_tokens=4, stream=True, extra_body={"ignore_eos": True},
        stream_options={"include_usage": True, "continuous_usage_stats": True}, **GREEDY,
    )  # fmt: skip
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [1, 2, 3, 4, 4]


def test_the_wire_ends_with_done(server: Running) -> None:
    body = {"prompt": "Hi", "max_tokens": 3, "stream": True, "ignore_eos": True}
    with server.http() as client, client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert len(lines) == 4
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_echo_begins_with_the_prompt(server: Running) -> None:
    plain = alone(server, "Hello", max_tokens=4)
    assert alone(server, "Hello", max_tokens=4, echo=True) == "Hello" + plain
    assert alone(server, server.engine.encode("Hello"), max_tokens=4, echo=True) == "Hello" + plain
    chunks = server.openai().completions.create(prompt="Hello", max_tokens=4, echo=True, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello" + plain


def test_logprobs_come_as_parallel_lists(server: Running) -> None:
    reply = server.openai().completions.create(
        prompt="Hello", max_tokens=6, logprobs=3, extra_body={"ignore_eos": True}, **GREEDY
    )
    told = reply.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert told.text_offset is not None
    assert {len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)} == {6}
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert logprob <= 0
        assert max(top.values()) == pytest.approx(logprob)  # greedy takes the likeliest
        assert top[token] == pytest.approx(logprob)
    lengths = [len(token) for token in told.tokens]
    assert told.text_offset == [sum(lengths[:index]) for index in range(6)]


def test_logprobs_in_a_stream_are_those_of_the_whole(server: Running) -> None:
    settings = {"prompt": "Hello", "max_tokens": 5, "logprobs": 2, "extra_body": {"ignore_eos": True}, **GREEDY}
    whole = server.openai().completions.create(**settings).choices[0].logprobs
    parts = [chunk.choices[0].logprobs for chunk in server.openai().completions.create(stream=True, **settings)]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(whole, name)


def test_a_stop_string_ends_the_text_before_it(server: Running) -> None:
    text = alone(server, "Hello", max_tokens=40, extra_body={"ignore_eos": True})
    stop = text[3:5]
    reply = server.openai().completions.create(
        prompt="Hello", max_tokens=40, stop=[stop, "\x00never"], extra_body={"ignore_eos": True}, **GREEDY
    )
    assert reply.choices[0].text == text[: text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].stop_reason == stop


def test_a_stop_token_ends_it_after_min_tokens(server: Running) -> None:
    first = alone(server, "Hello", max_tokens=1, logprobs=0, extra_body={"ignore_eos": True})
    token = server.openai().completions.create(prompt="Hello", max_tokens=1, extra_body={"ignore_eos": True}, **GREEDY)
    assert token.choices[0].text == first
    every = list(range(server.engine.model_config.vocab_size))
    reply = server.openai().completions.create(
        prompt="Hello", max_tokens=9, extra_body={"stop_token_ids": every[:64], "min_tokens": 2}, **GREEDY
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens >= 2


def test_vllm_s_extra_fields_are_taken(server: Running) -> None:
    extra = {"top_k": 5, "min_p": 0.01, "priority": 3, "min_tokens": 4, "cache_salt": "x", "skip_special_tokens": False,
             "include_stop_str_in_output": True, "stop_token_ids": [1], "add_special_tokens": False}  # fmt: skip
    reply = server.openai().completions.create(model="tiny", prompt="Hi", max_tokens=4, extra_body=extra)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 4


def test_fields_without_effect_are_taken(server: Running) -> None:
    neutral = {"user": "me", "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "suffix": None,
               "best_of": 1, "metadata": {"a": "b"}, "store": True}  # fmt: skip
    with server.http() as client:
        plain = client.post("/v1/completions", json={"prompt": "Hi", "temperature": 0}).json()
        same = client.post("/v1/completions", json={"prompt": "Hi", "temperature": 0, **neutral})
    assert same.status_code == 200, same.text
    assert same.json()["choices"] == plain["choices"]


def test_the_second_name_is_the_same_model(server: Running) -> None:
    assert alone(server, "Hello", model="other-name") == alone(server, "Hello")


def test_a_repeated_prompt_is_counted_as_cached(server: Running) -> None:
    prompt = "the same forty letters again and again, " * 2
    alone(server, prompt)
    usage = server.openai().completions.create(prompt=prompt, **GREEDY).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    block = server.engine.config.block_size
    assert usage.prompt_tokens_details.cached_tokens == (len(prompt) - 1) // block * block


def test_a_policy_that_holds_its_tokens_streams_them_at_the_end(tiny_model: Path, server: Running) -> None:
    asked = {"prompt": "Hello", "max_tokens": 9, "extra_body": {"ignore_eos": True}, **GREEDY}
    with running(tiny_model, names=("tiny",), policy="static") as static:
        chunks = list(static.openai().completions.create(stream=True, **asked))
    assert len(chunks) == 9
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone(server, **asked)
