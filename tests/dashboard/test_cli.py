"""`batchscope dashboard`: what it refuses, how it says that it is ready, and how it stops."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.conftest import ROOT
from traces.samples import sample_path

COMMAND = [sys.executable, "-m", "batchscope", "dashboard"]


def refused(*arguments: str | Path) -> str:
    """The one sentence with which a command ends."""
    result = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A dashboard, and the address of its first page."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--json", *map(str, arguments)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        out: IO[str] | None = process.stdout
        assert out is not None
        yield process, json.loads(out.readline())["url"]
    finally:
        process.kill()
        process.wait()


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    assert "holds none" in refused(tmp_path, "--runs-dir", tmp_path / "runs", "--port", "0")


def test_a_broken_trace_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.trace"
    shutil.copytree(sample_path("static"), broken)
    (broken / "meta.json").write_text("{")
    assert "meta.json" in refused(broken, "--runs-dir", tmp_path / "runs", "--port", "0")


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refused("--port", str(port), "--runs-dir", tmp_path / "runs")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with running("--runs-dir", tmp_path / "runs") as (process, url):
        assert httpx.get(url).status_code == 200
        process.send_signal(number)
        assert process.wait(timeout=20) == 0


def test_two_dashboards_do_not_share_a_folder_for_runs(tmp_path: Path) -> None:
    with running("--runs-dir", tmp_path / "runs"):
        assert "another dashboard" in refused("--runs-dir", tmp_path / "runs", "--port", "0")


def test_answers_carry_the_policy_that_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    with running("--runs-dir", tmp_path / "runs") as (_, url):
        answer = httpx.get(url)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "httponly" in answer.headers["set-cookie"].lower()
        known = {"batchscope-owner": answer.cookies["batchscope-owner"]}
        assert "set-cookie" not in httpx.get(url, cookies=known).headers


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/..%2fapp.py", "/../../etc/passwd", "/assets/%2e%2e/%2e%2e/pyproject.toml"]
)
def test_no_file_outside_the_assets_is_served(tmp_path: Path, path: str) -> None:
    with running("--runs-dir", tmp_path / "runs") as (_, url):
        with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port)) as line:
            line.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        assert b"root:" not in answer
        assert b"create_app" not in answer
        assert b"[project]" not in answer
