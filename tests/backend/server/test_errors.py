"""What clients are told when they ask for something wrong: OpenAI's shape, and the field by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from .running import Running

SAY = {"messages": [{"role": "user", "content": "Hi"}]}
ASK = {"prompt": "Hi"}
TEXTLESS = {"type": "text"}


def post(server: Running, path: str, body: Any, **options: Any) -> httpx.Response:
    with server.http() as client:
        return client.post(path, json=body, **options)


def error_of(reply: httpx.Response) -> dict[str, Any]:
    document = reply.json()
    assert document.keys() == {"error"}
    error: dict[str, Any] = document["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "ten"), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True), ("temperature", -1),
        ("temperature", "hot"), ("top_p", 0), ("top_p", 1.01), ("top_k", -2), ("min_p", 2), ("n", 0), ("n", 129),
        ("seed", "x"), ("stop", 5), ("stop", ""), ("stream", "yes"), ("stream_options", {"include_usage": True}),
        ("logprobs", 21), ("logprobs", True), ("prompt", 5), ("prompt", []), ("prompt", [1, "a"]), ("prompt", [[]]),
        ("prompt", [-1]), ("prompt", [10**9]), ("prompt", {"a": 1}), ("best_of", 3), ("suffix", "end"),
        ("logit_bias", {"5": 1}), ("presence_penalty", 0.5), ("frequency_penalty", -1), ("min_tokens", 17),
        ("priority", "high"), ("stop_token_ids", 5), ("stop_token_ids", [-1]), ("ignore_eos", 1),
        ("response_format", {"type": "json_object"}), ("max_token", 5), ("cache_salt", 5),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_completion_is_named(server: Running, field: str, value: Any) -> None:
    reply = post(server, "/v1/completions", {**ASK, field: value})
    assert reply.status_code == 400, reply.text
    error = error_of(reply)
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []), ("messages", "Hi"), ("messages[0]", ["Hi"]), ("messages[0].role", [{"content": "Hi"}]),
        ("messages[0].role", [{"role": "tool", "content": "Hi"}]), ("messages[0].content", [{"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": 5}]),
        ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
        ("messages[0].content[1].text", [{"role": "user", "content": [{"type": "text", "text": ""}, TEXTLESS]}]),
        ("messages[0].tool_calls", [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named_by_its_place(server: Running, field: str, value: Any) -> None:
    reply = post(server, "/v1/chat/completions", {"messages": value})
    assert reply.status_code == 400, reply.text
    assert error_of(reply)["param"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]), ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}), ("presence_penalty", 1), ("frequency_penalty", 0.1), ("top_logprobs", 3),
        ("logprobs", 5), ("max_completion_tokens", 0), ("modalities", ["audio"]), ("echo", True), ("best_of", 2),
    ],
)  # fmt: skip
def test_what_would_change_a_chat_s_meaning_is_refused(server: Running, field: str, value: Any) -> None:
    reply = post(server, "/v1/chat/completions", {**SAY, field: value})
    assert reply.status_code == 400, reply.text
    assert error_of(reply)["param"] == field


def test_the_nearest_field_is_suggested(server: Running) -> None:
    assert "max_tokens" in error_of(post(server, "/v1/completions", {**ASK, "max_token": 5}))["message"]


def test_openai_s_client_raises_its_own_errors(server: Running) -> None:
    client = server.openai()
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="Hi", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="Hi")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/gpt-4")


def test_a_stream_that_is_refused_is_an_ordinary_error(server: Running) -> None:
    with pytest.raises(openai.BadRequestError):
        server.openai().completions.create(model="tiny", prompt="Hi", temperature=-1, stream=True)


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "Hi"', b"nonsense", b"[" * 5000, b"\xff\xfe{}", b'{"n": NaN'])
def test_malformed_json_is_said_to_be_that(server: Running, body: bytes) -> None:
    with server.http() as client:
        reply = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert error_of(reply)["code"] == "invalid_json"


@pytest.mark.parametrize("body", ["[]", "5", '"text"', "null"])
def test_a_body_that_is_no_object_is_refused(server: Running, body: str) -> None:
    with server.http() as client:
        reply = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert "object" in error_of(reply)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_other_content_types_are_refused(server: Running, kind: str | None) -> None:
    """What a web page may send to another site without asking first must not reach the engine."""
    headers = {} if kind is None else {"content-type": kind}
    with server.http() as client:
        reply = client.post("/v1/completions", content=json.dumps(ASK), headers=headers)
    assert reply.status_code == 415
    error_of(reply)


def test_an_oversized_body_is_refused_while_it_is_read(server: Running) -> None:
    limit = 4 << 20
    body = json.dumps({"prompt": "x" * limit}).encode()
    with pytest.raises(openai.APIStatusError) as declared:
        server.openai().completions.create(model="tiny", prompt="x" * limit)
    assert declared.value.status_code == 413
    with server.http() as client:
        pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
        chunked = client.post("/v1/completions", content=pieces, headers={"content-type": "application/json"})
    assert chunked.status_code == 413
    assert f"{limit:,}" in error_of(chunked)["message"]


def test_a_prompt_that_is_too_long_is_told_the_numbers(server: Running) -> None:
    cap = server.engine.config.length_cap
    long = error_of(post(server, "/v1/completions", {"prompt": "x" * 300, "max_tokens": 5}))
    assert (long["code"], long["param"]) == ("context_length_exceeded", "prompt")
    assert all(str(number) in long["message"] for number in (cap, 300, 305))
    both = error_of(post(server, "/v1/completions", {"prompt": "x" * 200, "max_tokens": 100}))
    assert both["code"] == "context_length_exceeded"
    assert "max_tokens" in both["message"]
    chat = error_of(post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 300}]}))
    assert chat["code"] == "context_length_exceeded"
    assert post(server, "/v1/completions", {"prompt": "x" * (cap - 1), "max_tokens": 1}).status_code == 200


def test_more_answers_than_may_wait_are_refused_for_good(server: Running) -> None:
    error = error_of(post(server, "/v1/completions", {"prompt": ["a"] * 33, "n": 2}))
    assert (error["code"], error["param"]) == ("too_many_answers", "n")


def test_paths_and_methods_have_the_same_shape(server: Running) -> None:
    with server.http() as client:
        assert client.get("/v1/nothing").status_code == 404
        assert "/v1/nothing" in error_of(client.get("/v1/nothing"))["message"]
        wrong = client.get("/v1/completions")
        assert wrong.status_code == 405
        error_of(wrong)
        assert wrong.headers["allow"] == "POST"
        assert error_of(client.get("/trace/steps?from=x"))["param"] == "from"


def test_an_empty_prompt_is_refused_by_name(server: Running) -> None:
    assert error_of(post(server, "/v1/completions", {"prompt": ""}))["param"] == "prompt"


def test_surrogates_in_json_do_no_harm(server: Running) -> None:
    with server.http() as client:
        headers = {"content-type": "application/json"}
        reply = client.post("/v1/completions", content=b'{"prompt": "\\ud800"}', headers=headers)
    assert reply.status_code in (200, 400)
