"""A server under clients that misbehave: 64 of them, for a minute. JSON; exit code 1 when something is wrong.

    python benchmarks/server_stress.py [--seconds 60] [--clients 64] [--model embedded]

This process runs the engine and the server; a second one runs the clients. Each client picks, again and again: a
stream or a whole answer, a chat, a stream that it leaves in the middle, an answer that it does not wait for, an
oversized prompt, a body that is too large, bad JSON, a wrong field, a stream of the trace. Afterwards: only the errors
that were meant, no seat or block in use, the integrity check, memory, and the trace by its own laws.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MOST_GROWTH = 0.03
"""What memory may gain in the second half. In the first the KV cache's pages are touched for the first time."""
SETTINGS: dict[str, Any] = {"device": "cpu", "threads": 1, "max_num_seqs": 32, "max_model_len": 512, "num_blocks": 600}
MAX_QUEUE = 24
"""Less than there are clients: the queue is full now and then."""


# -- clients ---------------------------------------------------------------------------------------------------------

Act = Callable[[httpx.AsyncClient, random.Random], Awaitable[str]]


async def _post(client: httpx.AsyncClient, path: str, expected: set[int], **body: Any) -> str:
    reply = await client.post(path, **body)
    told = f"{reply.status_code} {reply.json().get('error', {'code': 'ok'})['code']}"
    return told if reply.status_code in expected else f"UNEXPECTED {told} {reply.text[:200]}"


def _ask(draw: random.Random, **more: Any) -> dict[str, Any]:
    return {
        "prompt": "x" * draw.randint(1, 200), "max_tokens": draw.randint(1, 60), "ignore_eos": True,
        "temperature": draw.choice([0.0, 1.0]), **more,
    }  # fmt: skip


async def whole(client: httpx.AsyncClient, draw: random.Random) -> str:
    """An answer, waited for."""
    return await _post(client, "/v1/completions", {200, 503}, json=_ask(draw, n=draw.choice([1, 1, 3])))


async def chat(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A chat, with log-probabilities now and then."""
    messages = [{"role": "user", "content": "Name a color."}]
    body = {"messages": messages, "max_tokens": 20, "logprobs": draw.random() < 0.3}
    return await _post(client, "/v1/chat/completions", {200, 503}, json=body)


async def stream(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A stream read to its end."""
    return await _stream(client, _ask(draw), None)


async def leave(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A stream left in the middle."""
    return await _stream(client, _ask(draw, max_tokens=200), draw.randint(0, 20))


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None) -> str:
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        if reply.status_code != 200:
            await reply.aread()
            return f"{reply.status_code} queue_full" if reply.status_code == 503 else f"UNEXPECTED {reply.status_code}"
        lines = []
        async for line in reply.aiter_lines():
            lines += [line] if line else []
            if leave_after is not None and len(lines) > leave_after:
                return "left"
    wrong = [line for line in lines if "error" in line]
    if wrong or lines[-1] != "data: [DONE]" or len(lines) != body["max_tokens"] + 1:
        return f"UNEXPECTED stream of {len(lines)} lines for {body['max_tokens']} tokens: {(wrong or lines)[-1][:200]}"
    return "200 streamed"


async def impatient(client: httpx.AsyncClient, draw: random.Random) -> str:
    """An answer not waited for."""
    try:
        async with asyncio.timeout(draw.uniform(0.001, 0.2)):
            return await whole(client, draw)
    except TimeoutError:
        return "gave up"


async def too_long(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A prompt beyond the model's length."""
    return await _post(client, "/v1/completions", {400}, json={"prompt": "word and word " * draw.randint(300, 3000)})


async def too_large(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A body beyond the server's limit."""
    return await _post(client, "/v1/completions", {413}, json={"prompt": "x" * (5 << 20)})


async def bad_json(client: httpx.AsyncClient, draw: random.Random) -> str:
    """Half a document, or noise."""
    text = json.dumps(_ask(draw)).encode()
    body = text[: draw.randint(0, len(text) - 1)] if draw.random() < 0.5 else draw.randbytes(50)
    return await _post(client, "/v1/completions", {400}, content=body, headers={"content-type": "application/json"})


WRONG: list[dict[str, Any]] = [
    {"max_tokens": "ten"}, {"temperature": -1}, {"prompt": [10**9]}, {"tools": [1]}, {"stop": 5},
]  # fmt: skip


async def bad_field(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A field of the wrong type or range."""
    field: dict[str, Any] = draw.choice(WRONG)
    return await _post(client, "/v1/completions", {400}, json={**_ask(draw), **field})


async def watch(client: httpx.AsyncClient, draw: random.Random) -> str:
    """A look at the trace and the metrics."""
    async with client.stream("GET", f"/trace/steps?from={draw.randint(0, 50)}") as reply:
        async for _ in reply.aiter_lines():
            if draw.random() < 0.05:
                break
    metrics = await client.get("/metrics")
    return "watched" if metrics.status_code == reply.status_code == 200 else f"UNEXPECTED {metrics.status_code}"


ACTS: list[tuple[Act, float]] = [
    (whole, 3), (chat, 2), (stream, 4), (leave, 3), (impatient, 3), (too_long, 1), (too_large, 0.1), (bad_json, 1),
    (bad_field, 1), (watch, 0.5),
]  # fmt: skip


async def run_clients(url: str, clients: int, seconds: float) -> dict[str, int]:
    """What happened, counted; anything not meant begins with UNEXPECTED."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    async def one(index: int) -> None:
        draw = random.Random(index)
        while time.monotonic() < until:
            act = draw.choices([act for act, _ in ACTS], [weight for _, weight in ACTS])[0]
            counts[f"{act.__name__}: {await _guarded(act, client, draw)}"] += 1

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, verify=False) as client:
        await asyncio.gather(*(one(index) for index in range(clients)))
    return dict(sorted(counts.items()))


async def _guarded(act: Act, client: httpx.AsyncClient, draw: random.Random) -> str:
    try:
        return await act(client, draw)
    except (httpx.HTTPError, ValueError) as error:
        return f"UNEXPECTED {type(error).__name__} {error}"


# -- the server ------------------------------------------------------------------------------------------------------


def stress(model: str, clients: int, seconds: float) -> dict[str, Any]:
    """Serve a model to clients in another process; what came of it."""
    from traces.check import check
    from traces.trace import Trace

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "stress.trace"
        with _served(model, trace) as (engine, url):
            memory = _Memory()
            done = _in_another_process(url, clients, seconds)
            idle_s = _until_idle(engine)
            engine.check_integrity()
            stats, grown = engine.stats(), memory.stop()
        opened = Trace.open(trace)
        violations, _ = check(opened)
        reasons = opened.requests["finish_reason"].value_counts().to_dict()
    unexpected = {what: count for what, count in done.items() if "UNEXPECTED" in what}
    wrong = {
        "unexpected answers": bool(unexpected),
        "blocks or seats in use": bool(stats.blocks_used or stats.slots_busy or stats.waiting),
        "memory grew": grown["growth"] > MOST_GROWTH and seconds >= 30,  # less is still warming up
        "trace": bool(violations) or opened.status != "finished",
    }
    return {
        "benchmark": "server stress",
        "model": model,
        "clients": clients,
        "seconds": seconds,
        "calls": sum(done.values()),
        "answers": done,
        "steps": stats.steps,
        "preemptions": stats.preemptions,
        "finish_reasons": reasons,
        "idle_after_s": round(idle_s, 3),
        "memory": grown,
        "trace_status": opened.status,
        "wrong": [name for name, is_wrong in wrong.items() if is_wrong],
    }


@contextmanager
def _served(model: str, trace: Path) -> Iterator[tuple[Any, str]]:
    from backend.engine import Engine
    from backend.server.app import create_app
    from backend.server.listener import bind, url_of
    from backend.server.run import Server

    engine = Engine(model, trace=trace, max_queue=MAX_QUEUE, **SETTINGS)
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    app = create_app(engine, max_queue=MAX_QUEUE)
    server = Server(app, engine, grace_s=5, ready=ready.set)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        if not ready.wait(60):
            raise RuntimeError("the server did not start")
        yield engine, url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        engine.close()
    if engine.failure is not None:
        raise engine.failure


def _in_another_process(url: str, clients: int, seconds: float) -> dict[str, int]:
    command = [sys.executable, __file__, "--attack", url, "--clients", str(clients), "--seconds", str(seconds)]
    answers: dict[str, int] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return answers


def _until_idle(engine: Any) -> float:
    """Seconds until nothing runs or waits after the last client has gone."""
    start = time.monotonic()
    while (stats := engine.stats()).running or engine.num_waiting or stats.in_flight:
        if time.monotonic() - start > 30:
            raise RuntimeError(f"requests are left behind: {stats}")
        time.sleep(0.001)
    return time.monotonic() - start


class _Memory:
    """Samples this process's resident memory, ten times a second."""

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Medians of each twelfth of the time, MiB, and the growth from the seventh of them to the last."""
        self._over.set()
        self._thread.join()
        size = max(len(self._samples) // 12, 1)
        parts = [sorted(self._samples[start : start + size]) for start in range(0, size * 12, size)]
        mib = [round(part[len(part) // 2] / 2**20, 1) for part in parts if part]
        return {"mib": mib, "growth": round(mib[-1] / mib[len(mib) // 2] - 1, 4)}

    def _sample(self) -> None:
        while not self._over.wait(0.1):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self._samples.append(pages * 4096)


def main() -> None:
    """Run it and print its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--attack", metavar="URL", help="run the clients alone against a server")
    options = parser.parse_args()
    if options.attack:
        print(json.dumps(asyncio.run(run_clients(options.attack, options.clients, options.seconds))))
        return
    result = stress(options.model, options.clients, options.seconds)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
