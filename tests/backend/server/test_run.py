"""Starting and stopping: the command line, signals, the grace that requests in flight are given."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import batchscope
from scheduler.errors import UserError
from tests.conftest import ROOT
from traces.check import check
from traces.trace import Trace

from .running import Running, running, until

SMALL = ["--threads", "1", "--max-num-seqs", "4", "--max-model-len", "512", "--num-blocks", "200", "--device", "cpu"]
ENDLESS = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True}


@contextmanager
def served(model: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`batchscope serve` as a process of its own, and what it says when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "batchscope.py", "serve", "--model", str(model), "--port", "0", "--json", *SMALL, *options],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def ask_in_the_background(url: str, key: str = "-", **body: Any) -> tuple[threading.Thread, list[str]]:
    """A stream whose lines are collected while it comes."""
    lines: list[str] = []
    headers = {"authorization": f"Bearer {key}"}

    def run() -> None:
        with (
            httpx.Client(timeout=60, verify=False, headers=headers) as client,
            client.stream("POST", f"{url}/v1/completions", json={**ENDLESS, **body}) as reply,
        ):
            lines.extend(line for line in reply.iter_lines() if line)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, lines


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", verify=False).status_code == 200
    except httpx.TransportError:  # nobody listens, or the model is being loaded
        return False


def running_requests(url: str) -> float:
    text = httpx.get(f"{url}/metrics", verify=False).text
    line = next(line for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))
    return float(line.rpartition(" ")[2])


def test_a_stop_lets_requests_finish_and_leaves_a_whole_trace(tiny_model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    options = ["--trace", str(trace), "--grace", "60", "--served-model-name", "mine"]
    with served(tiny_model, *options, BATCHSCOPE_API_KEY="k3y") as (process, ready):
        assert ready["model"] == "mine"
        assert httpx.get(f"{ready['url']}/v1/models", verify=False).status_code == 401
        thread, lines = ask_in_the_background(ready["url"], "k3y", model="mine")
        until(lambda: running_requests(ready["url"]) == 1)
        process.send_signal(signal.SIGTERM)
        thread.join(60)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert "aborted" not in said
    opened = Trace.open(trace)
    assert opened.status == "finished"
    assert check(opened) == ([], {})
    assert opened.requests["output_tokens"].tolist() == [400]


def test_what_outlasts_the_grace_is_aborted_and_reported(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told: list[str] = []

    def interrupt() -> None:
        url = f"http://127.0.0.1:{port}"
        until(lambda: is_healthy(url), 60)
        thread, lines = ask_in_the_background(url)
        until(lambda: running_requests(url) == 1)
        os.kill(os.getpid(), signal.SIGINT)
        thread.join(60)
        told.extend(lines)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(SystemExit) as stopped:
        batchscope.main(["serve", "--model", str(tiny_model), "--port", str(port), "--grace", "0", *SMALL])
    helper.join(60)
    assert stopped.value.code == 0
    said = capfd.readouterr()
    assert f"ready at http://127.0.0.1:{port}/v1" in said.out
    assert "1 request aborted" in said.err
    assert json.loads(told[-2].removeprefix("data: "))["error"]["code"] == "aborted"


def test_a_second_signal_ends_the_grace(tiny_model: Path) -> None:
    with running(tiny_model, names=("tiny",), grace_s=3000, max_num_seqs=1) as server:
        threads = [ask_in_the_background(server.url, n=30, seed=1, max_tokens=200)[0] for _ in range(2)]
        until(lambda: server.engine.stats().running == 1)
        server.server.handle_exit(signal.SIGTERM, None)
        until(lambda: server.engine.closed)
        server.server.handle_exit(signal.SIGTERM, None)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert server.server.aborted > 50


def mistake(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one sentence on standard error of a command that exits with 2."""
    with pytest.raises(SystemExit) as stopped:
        batchscope.main(["serve", *options])
    assert stopped.value.code == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    return sentence


def test_a_port_in_use_is_said_before_any_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert mistake(capsys, "--model", "missing", "--port", str(port)) == (
            f"error: port {port} of 127.0.0.1 is in use; choose another with --port (0 takes a free one)"
        )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--api-key", " "], "API key"), (["--host", "no.such.host.invalid"], "cannot listen"),
        (["--policy", "chunkd"], "chunked"), (["--model", "no-such-model"], "no-such-model"),
        (["--port", "70000"], "port"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], options: list[str], word: str) -> None:
    assert word in mistake(capsys, "--port", "0", *options)


def test_help_needs_no_torch() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom backend.cli_serve import serve\n"
        "assert CliRunner().invoke(serve, ['--help']).exit_code == 0\n"
        "print({'torch', 'fastapi', 'transformers', 'uvicorn'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=True)
    assert told.stdout == "set()\n"


def test_while_it_stops_new_requests_are_turned_away(tiny_model: Path) -> None:
    with running(tiny_model, names=("tiny",), grace_s=30) as server, server.http() as client:
        client.get("/health")  # the connection is open when the server begins to stop
        thread, lines = ask_in_the_background(server.url, max_tokens=200)
        until(lambda: server.engine.stats().running == 1)
        server.server.should_exit = True
        until(lambda: server.engine.closed)
        with pytest.raises((httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError)):
            httpx.get(f"{server.url}/health", verify=False)
        thread.join(30)
        assert lines[-1] == "data: [DONE]"
    assert server.server.aborted == 0


def test_a_failed_engine_is_unhealthy_and_tells_everybody(tiny_model: Path) -> None:
    def explode(event: object) -> None:
        raise UserError("out of luck")

    def told(server: Running) -> list[httpx.Response]:
        server.engine.observe(explode)
        with server.http() as client:
            asked = client.post("/v1/completions", json={"prompt": "Hi"})
            return [asked, client.get("/health"), client.post("/v1/completions", json={"prompt": "Hi"})]

    replies: list[httpx.Response] = []
    with pytest.raises(UserError, match="out of luck"), running(tiny_model, names=("tiny",)) as server:
        replies += told(server)
    assert [reply.status_code for reply in replies] == [500, 503, 503]
    assert "out of luck" in replies[0].json()["error"]["message"]
