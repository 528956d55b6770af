"""The shipped model behind the server: what the documentation's first example gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .running import Running, running


@pytest.fixture(scope="module")
def embedded() -> Iterator[Running]:
    with running("embedded", max_model_len=512) as one:
        yield one


def test_it_answers_a_chat_and_ends_by_itself(embedded: Running) -> None:
    reply = embedded.openai().chat.completions.create(
        model="embedded", temperature=0, messages=[{"role": "user", "content": "Capital of France?"}]
    )
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens < 60


def test_a_stream_of_it_is_the_same_text(embedded: Running) -> None:
    asked = {"model": "embedded", "temperature": 0, "messages": [{"role": "user", "content": "Say hello."}]}
    whole = embedded.openai().chat.completions.create(**asked).choices[0].message.content
    parts = embedded.openai().chat.completions.create(stream=True, **asked)
    assert "".join(part.choices[0].delta.content for part in parts) == whole
    assert "hello" in whole.lower()


def test_answers_do_not_depend_on_who_else_is_there(embedded: Running) -> None:
    asked = {"model": "embedded", "prompt": "Name a color.\n", "temperature": 1.0, "seed": 11, "max_tokens": 12}
    alone = embedded.openai().completions.create(**asked).choices[0].text
    crowd = embedded.openai().completions.create(**{**asked, "prompt": ["Say hello.\n", asked["prompt"], "Count.\n"]})
    assert crowd.choices[1].text == alone
