"""Load for a server, and the demonstration: real engines with the embedded model."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from dashboard.live import load
from dashboard.live.demo import LiveDemo
from dashboard.live.engine_feed import EngineFeed
from dashboard.live.load import conversation, run_load
from scheduler.errors import ConfigError, UserError
from tests.backend.server.running import Running, running
from tests.conftest import ROOT

from .live_servers import until


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with running("embedded", max_model_len=1024) as one:
        yield one


def told_to_stop(engine: Running, done: Callable[[], object], *options: str) -> dict[str, int]:
    """What the command reports when it is stopped by a signal once something holds."""
    command = [sys.executable, "-m", "dashboard.live.load", engine.url, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        until(done, 60.0)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    until(lambda: engine.engine.stats().running == 0)
    report: dict[str, int] = json.loads(told)
    return report


def test_a_fast_rate_is_a_closed_loop_of_so_many_requests(engine: Running) -> None:
    under_way = []

    def enough() -> bool:
        stats = engine.engine.stats()
        under_way.append(stats.running + stats.waiting)
        return engine.metric("vllm:request_success_total", finished_reason="length") >= 6

    report = told_to_stop(engine, enough, "--rate", "1e6", "--concurrency", "3", "--full-length")
    assert report["answered"] > 0
    assert report["failed"] == report["refused"] == 0
    assert report["output_tokens"] >= 8 * report["answered"]  # the least that a request asks for
    assert max(under_way) == 3


def test_what_is_asked_follows_from_the_seed_and_is_a_conversation() -> None:
    one, again = ([conversation(draw) for _ in range(30)] for draw in (random.Random(5), random.Random(5)))
    assert one == again
    assert all([m["role"] for m in messages] == (["user", "assistant"] * 6)[: len(messages)] for messages in one)
    assert {len(messages) for messages in one} == {1, 3, 5, 7, 9, 11}


def test_wrong_numbers_are_refused() -> None:
    for wrong in ({"rate": 0.0}, {"rate": float("inf")}, {"rate": 1.0, "concurrency_limit": 0}):
        with pytest.raises(ConfigError, match="expected"):
            run_load("http://127.0.0.1:9", **wrong)  # type: ignore[arg-type]  # numbers of several types


def test_a_server_that_is_not_there_ends_the_load_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GIVE_UP_S", 0.2)
    with pytest.raises(UserError, match="nobody answers"):
        run_load("http://127.0.0.1:9", rate=100.0)  # the port of `discard`, which nobody serves


def test_the_command_stops_cleanly_when_told(engine: Running) -> None:
    before = engine.metric("vllm:prompt_tokens_total")
    report = told_to_stop(engine, lambda: engine.metric("vllm:prompt_tokens_total") > before, "--rate", "20")
    assert report["failed"] == 0


def test_the_demonstration_runs_an_engine_under_load_and_ends_both() -> None:
    with LiveDemo(rate=20.0) as demo, EngineFeed(demo.url) as feed:
        until(lambda: (run := feed.snapshot()) is not None and run.num_steps > 5, 60.0)
        assert demo.alive
        run = feed.snapshot()
        assert run is not None
        assert run.source == "measured"
        assert run.column("steps", "running").max() > 0
        demo.close()
        assert not demo.alive
        until(lambda: feed.state.kind == "ended")
        ended = feed.snapshot()
        assert ended is not None
        assert (ended.status, ended.gaps_in_feed) == ("stopped", ())


def test_an_engine_that_does_not_start_is_one_sentence() -> None:
    begun_s = time.monotonic()
    with pytest.raises(UserError, match="did not start"):
        LiveDemo(settings=["--policy", "none-such"])
    assert time.monotonic() - begun_s < 60
