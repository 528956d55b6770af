"""Clients that go away, and a queue that is full."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from traces.trace import Trace

from .running import Running, running, until

LONG = {"model": "tiny", "prompt": "Hello", "max_tokens": 240, "extra_body": {"ignore_eos": True}}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
ENDLESS = {"prompt": "Hello", "max_tokens": 240, "ignore_eos": True}


@pytest.fixture(scope="module")
def small(tiny_model: Path) -> Iterator[Running]:
    """Two seats, and two that may wait."""
    with running(tiny_model, names=("tiny",), max_num_seqs=2, max_queue=2) as one:
        yield one


def idle(server: Running) -> bool:
    stats = server.engine.stats()
    return stats.running == 0 and server.engine.num_waiting == 0 and stats.blocks_used == 0


def raw_request(server: Running, body: dict[str, object]) -> socket.socket:
    """A request on a bare socket, so that the client can vanish at any moment."""
    address = urlsplit(server.url)
    data = json.dumps(body).encode()
    client = socket.create_connection((address.hostname, address.port))
    client.sendall(HEAD % len(data) + data)
    return client


def test_closing_a_stream_frees_the_seat_within_a_step_or_two(server: Running) -> None:
    before = server.metric("vllm:request_success_total", finished_reason="abort")
    stream = server.openai().completions.create(stream=True, **LONG)
    next(iter(stream))
    until(lambda: server.engine.stats().running == 1)
    stream.close()
    until(lambda: idle(server), 2.0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == before + 1
    server.engine.check_integrity()


@pytest.mark.parametrize("stream", [False, True])
def test_a_seat_is_free_within_two_steps(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    with running(tiny_model, names=("tiny",), trace=tmp_path / "run.trace") as server:
        server.engine.observe(lambda event: time.sleep(0.1))  # steps long enough to count them
        client = raw_request(server, {**ENDLESS, "stream": stream})
        until(lambda: server.engine.stats().steps >= 3)
        client.close()
        at_close = server.engine.stats().steps
        until(lambda: idle(server), 2.0)
        assert server.engine.stats().steps - at_close <= 2
    requests = Trace.open(tmp_path / "run.trace").requests
    assert requests["finish_reason"].tolist() == ["abort"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_while_it_waits_leaves_the_queue(small: Running, stream: bool) -> None:
    holders = [raw_request(small, ENDLESS) for _ in range(2)]
    until(lambda: small.engine.stats().running == 2)
    waiter = raw_request(small, {**ENDLESS, "stream": stream})
    until(lambda: small.engine.num_waiting == 1)
    waiter.close()
    until(lambda: small.engine.num_waiting == 0, 2.0)
    for holder in holders:
        holder.close()
    until(lambda: idle(small), 2.0)


def test_a_client_of_a_whole_answer_that_vanishes_frees_its_seat(small: Running) -> None:
    client = raw_request(small, ENDLESS)
    until(lambda: small.engine.stats().running == 1)
    client.close()
    until(lambda: idle(small), 2.0)
    assert small.engine.stats().running == 0


def test_all_answers_of_a_call_go_together(small: Running) -> None:
    client = raw_request(small, {**ENDLESS, "n": 2})
    until(lambda: small.engine.stats().running == 2)
    client.close()
    until(lambda: idle(small), 2.0)


def test_a_client_that_vanishes_in_mid_body_harms_nobody(small: Running) -> None:
    address = urlsplit(small.url)
    client = socket.create_connection((address.hostname, address.port))
    client.sendall(HEAD % 99 + b"{")
    client.close()
    with small.http() as other:
        assert other.get("/health").status_code == 200


def test_a_full_queue_says_when_to_come_again(small: Running) -> None:
    holders = [raw_request(small, ENDLESS) for _ in range(2)]
    until(lambda: small.engine.stats().running == 2)
    waiters = [raw_request(small, ENDLESS) for _ in range(2)]
    until(lambda: small.engine.num_waiting == 2)
    with pytest.raises(openai.InternalServerError) as caught:
        small.openai().completions.create(model="tiny", prompt="Hi")
    assert caught.value.status_code == 503
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    for client in holders + waiters:
        client.close()
    until(lambda: idle(small), 2.0)
    retried = small.openai(max_retries=3).completions.create(model="tiny", prompt="Hi", max_tokens=1)
    assert len(retried.choices) == 1


def test_many_clients_that_come_and_go_leave_nothing_behind(server: Running) -> None:
    async def one(client: httpx.AsyncClient, index: int) -> None:
        body = {**ENDLESS, "max_tokens": 5 + index, "stream": index % 2 == 0}
        with contextlib.suppress(TimeoutError):  # the client goes away: that is the point
            await asyncio.wait_for(client.post("/v1/completions", json=body), timeout=0.01 * (index % 7) or None)

    async def all_of_them() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            await asyncio.gather(*(one(client, index) for index in range(40)))

    asyncio.run(all_of_them())
    until(lambda: idle(server), 5.0)
    server.engine.check_integrity()
