"""The API key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from .running import Running, running


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    with running(tiny_model, key="s3cret", allow_origins=["https://page.example"]) as one:
        yield one


def test_the_right_key_opens(guarded: Running) -> None:
    assert guarded.openai().models.list().data[0].id == guarded.engine.name


@pytest.mark.parametrize("key", ["wrong", "s3cre", "s3cret2", "S3CRET"])
def test_a_wrong_key_does_not(guarded: Running, key: str) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        guarded.openai(api_key=key).models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/trace", "/trace/steps", "/openapi.json", "/no"])
def test_without_a_key_nothing_is_told(guarded: Running, path: str) -> None:
    with guarded.http() as client:
        del client.headers["authorization"]
        reply = client.get(path)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_monitors_need_no_key(guarded: Running, path: str) -> None:
    with guarded.http() as client:
        del client.headers["authorization"]
        assert client.get(path).status_code == 200


def test_an_allowed_page_may_ask_first_without_the_key(guarded: Running) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with guarded.http() as client:
        del client.headers["authorization"]
        allowed = client.options("/v1/completions", headers={"origin": "https://page.example", **asked})
        other = client.options("/v1/completions", headers={"origin": "https://other.example", **asked})
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert "access-control-allow-origin" not in other.headers
