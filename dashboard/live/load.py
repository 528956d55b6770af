"""Load for a server: chat requests that arrive at random, as the embedded model knows to answer.

python -m dashboard.live.load http://127.0.0.1:8000 --rate 4
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
import httpx

from scheduler.errors import ConfigError, UserError

from .address import place, server_url
from .state import reason_of

MAX_TOKENS = (8, 16, 32, 64, 128, 192)
"""What requests may have of output tokens."""
MOST_TURNS = 6
"""Turns of a conversation; more of them make a longer prompt."""
GIVE_UP_S = 10.0
"""A server that cannot be reached for so long has gone."""
TIMEOUT = httpx.Timeout(120.0, connect=5.0)


@dataclass(frozen=True)
class LoadReport:
    """What came of it: requests that got an answer, were refused (busy), or failed, and output tokens in all."""

    answered: int
    refused: int
    failed: int
    output_tokens: int


def run_load(
    url: str,
    *,
    rate: float,
    seconds: float | None = None,
    seed: int = 0,
    concurrency_limit: int = 64,
    full_length: bool = False,
    api_key: str | None = None,
) -> LoadReport:
    """Send requests until the time is over, or SIGINT or SIGTERM comes (then what is under way is aborted).

    Args:
        url: of a server with OpenAI's API.
        rate: requests a second, Poisson. A rate beyond what the server can do keeps `concurrency_limit` of them
            under way: a closed loop.
        seconds: how long; None: until stopped.
        seed: of arrivals and questions.
        concurrency_limit: requests under way at once; the next waits until one has ended.
        full_length: answers do not end by themselves but take all tokens they may (`ignore_eos`, which vLLM and
            batchscope know).
        api_key: what the server asks for.

    Raises:
        UserError: a wrong number or address, or the server cannot be reached for `GIVE_UP_S` seconds.
    """
    if not 0 < rate < float("inf"):
        raise ConfigError(f"rate is {rate}; expected requests per second above 0")
    if concurrency_limit < 1:
        raise ConfigError(f"concurrency_limit is {concurrency_limit}; expected at least 1")
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    load = _Load(server_url(url), random.Random(seed), concurrency_limit, full_length, headers)
    return asyncio.run(load.run(rate, seconds))


def conversation(draw: random.Random) -> list[dict[str, str]]:
    """Messages that end with a question of the kind that the embedded model was trained on."""
    from backend.training.dice import Dice
    from backend.training.topics import TOPICS

    dice = Dice(draw.getrandbits(32))
    messages = []
    for _ in range(dice.between(1, MOST_TURNS)):
        topic = dice.weighted(TOPICS, [topic.weight for topic in TOPICS])
        facts = topic.make(dice)
        messages.append({"role": "user", "content": dice.pick(topic.phrasings).format(**facts.fields)})
        messages.append({"role": "assistant", "content": facts.answer})
    return messages[:-1]


class _Load:
    def __init__(
        self, url: str, draw: random.Random, limit: int, full_length: bool, headers: dict[str, str]
    ) -> None:  # fmt: skip
        self._url = url
        self._draw = draw
        self._seats = asyncio.Semaphore(limit)
        self._full_length = full_length
        self._headers = headers
        self._counts: Counter[str] = Counter()
        self._reached_s = time.monotonic()
        self._trouble = ""

    async def run(self, rate: float, seconds: float | None) -> LoadReport:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=TIMEOUT, limits=limits
        ) as client:  # fmt: skip
            sending = asyncio.ensure_future(self._send_all(client, rate))
            with _stopped_by_signals(sending):
                await asyncio.wait([sending], timeout=seconds)
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # that is how it ends
                raise UserError(await sending)
        return LoadReport(*(self._counts[name] for name in ("answered", "refused", "failed", "output_tokens")))

    async def _send_all(self, client: httpx.AsyncClient, rate: float) -> str:
        """Until it is cancelled, or the server has gone: returns what is wrong then."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._draw.expovariate(rate))
                await self._seats.acquire()
                if self._trouble and time.monotonic() - self._reached_s > GIVE_UP_S:
                    return f"{self._trouble} for {GIVE_UP_S:.0f} s; the load has stopped"
                group.create_task(self._ask(client, self._body()))

    def _body(self) -> dict[str, Any]:
        body = {"messages": conversation(self._draw), "max_tokens": self._draw.choice(MAX_TOKENS), "temperature": 0.8}
        return {**body, "ignore_eos": True} if self._full_length else body

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        try:
            reply = await client.post("/v1/chat/completions", json=body)
            self._reached_s, self._trouble = time.monotonic(), ""
            self._note(reply)
        except httpx.HTTPError as error:
            self._trouble = reason_of(error, place(self._url))
            self._counts["failed"] += 1
            await asyncio.sleep(0.1)  # a server that has gone refuses at once
        finally:
            self._seats.release()

    def _note(self, reply: httpx.Response) -> None:
        kind = {200: "answered", 429: "refused", 503: "refused"}.get(reply.status_code, "failed")
        self._counts[kind] += 1
        if kind == "answered":
            self._counts["output_tokens"] += reply.json().get("usage", {}).get("completion_tokens", 0)


@contextlib.contextmanager
def _stopped_by_signals(sending: asyncio.Future[str]) -> Iterator[None]:
    """SIGINT and SIGTERM end it; in another thread than the main one nobody sends any."""
    loop = asyncio.get_running_loop()
    caught = []
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, sending.cancel)
            caught.append(number)
    except (ValueError, RuntimeError):
        caught.clear()
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


@click.command()
@click.argument("url")
@click.option("--rate", type=float, default=4.0, show_default=True, help="Requests a second, Poisson.")
@click.option("--seconds", type=float, help="How long.  [default: until stopped]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals and questions.")
@click.option("--concurrency", type=int, default=64, show_default=True, help="Requests under way at once.")
@click.option("--full-length", is_flag=True, help="Answers take all the tokens they may.")
def main(url: str, rate: float, seconds: float | None, seed: int, concurrency: int, full_length: bool) -> None:
    """Send chat requests to the server at URL; prints what came of them as JSON."""
    try:
        report = run_load(
            url, rate=rate, seconds=seconds, seed=seed, concurrency_limit=concurrency, full_length=full_length
        )
    except UserError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
