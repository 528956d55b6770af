"""A feed over real sockets: nothing is lost, doubled or mixed, and what is missing is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard.live import engine_feed
from dashboard.live.engine_feed import EngineFeed
from dashboard.live.live_run import Gap, LiveRun
from dashboard.live.player import Player
from scheduler.errors import UserError
from simulator import simulate
from traces.trace import Trace

from .live_servers import serving, until

TABLES = ("steps", "spans", "requests", "gaps")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A run with preemptions and a queue, in Parquet."""
    folder = tmp_path_factory.mktemp("live") / "run.trace"
    return simulate(requests=120, out=folder, max_num_seqs=8, num_blocks=160, max_num_batched_tokens=256)


@pytest.fixture
def player(recorded: Trace) -> Iterator[Player]:
    with Player(recorded.path) as one:
        yield one


def held(feed: EngineFeed) -> LiveRun:
    """What the feed has; waits for the first."""
    until(lambda: feed.snapshot() is not None)
    run = feed.snapshot()
    assert run is not None
    return run


def reaches(feed: EngineFeed, step: int) -> LiveRun:
    """The run once the feed shows this step."""
    until(lambda: held(feed).last_step >= step)
    return held(feed)


def assert_same(run: LiveRun, trace: Trace) -> None:
    for table in TABLES:
        for name, expected in trace.columns(table).items():
            np.testing.assert_array_equal(run.column(table, name), expected, err_msg=f"{table}.{name}")


def test_a_followed_run_is_the_recorded_one_in_every_column(player: Player, recorded: Trace) -> None:
    last = len(player) - 1
    with EngineFeed(player.url) as feed:
        for _ in range(10):
            player.recording.advance(len(player) // 10 + 1)
            time.sleep(0.05)
        run = reaches(feed, last)
        assert feed.state.kind == "live"
        assert (run.status, run.source, run.slots_total) == ("running", "simulated", 8)
        assert run.origin_s == recorded.columns("requests")["arrival_s"].min()
        player.recording.close()
        until(lambda: feed.state.kind == "ended")
        ended = held(feed)
        assert ended.status == "finished"
        assert_same(ended, recorded)
        assert feed.counts() == {"lost": 0, "doubled": 0}


def test_connections_cut_in_the_middle_lose_and_double_nothing(player: Player, recorded: Trace) -> None:
    with EngineFeed(player.url) as feed:
        for _ in range(4):
            player.recording.advance(len(player) // 8)
            reaches(feed, 0)
            player.hang_up()
            until(lambda: feed.state.kind == "gone")
            player.recording.advance(len(player) // 8 + 1)
            player.serve()
            until(lambda: feed.state.kind == "live")
        player.recording.advance(len(player))
        run = reaches(feed, len(player) - 1)
        assert feed.counts() == {"lost": 0, "doubled": 0}
        assert run.gaps_in_feed == ()
        np.testing.assert_array_equal(run.column("steps", "step"), np.arange(len(player)))
        player.recording.close()
        until(lambda: feed.state.kind == "ended")
        assert_same(held(feed), recorded)


def test_a_server_that_is_gone_is_said_to_be_with_the_time_since(player: Player) -> None:
    with EngineFeed(player.url) as feed:
        player.recording.advance(10)
        before = reaches(feed, 9)
        player.hang_up()
        until(lambda: feed.state.kind == "gone")
        first = feed.state
        until(lambda: "nobody answers" in feed.state.reason)
        assert feed.state.since_s == first.since_s
        assert feed.place in feed.state.reason
        assert held(feed).last_step == before.last_step


def test_another_run_of_the_same_server_is_never_mixed_with_the_first(player: Player) -> None:
    with EngineFeed(player.url) as feed:
        player.recording.advance(40)
        first = reaches(feed, 39)
        player.hang_up()
        player.begin()
        player.recording.advance(15)
        player.serve()
        until(lambda: held(feed).key != first.key)
        second = reaches(feed, 14)
        np.testing.assert_array_equal(second.column("steps", "step"), np.arange(15))
        assert first.num_steps == 40
        assert feed.counts() == {"lost": 0, "doubled": 0}


def test_what_a_reader_missed_for_too_long_is_an_explicit_gap(player: Player) -> None:
    with EngineFeed(player.url, capacity=50) as feed:
        player.recording.advance(60)
        assert reaches(feed, 59).first_step == 10
        player.hang_up()
        player.recording.advance(20)
        player.serve()
        until(lambda: feed.state.kind == "live")
        assert reaches(feed, 79).gaps_in_feed == ()  # 20 fit
        player.hang_up()
        player.recording.advance(120)
        player.serve()
        run = reaches(feed, 199)
        np.testing.assert_array_equal(run.column("steps", "step"), np.arange(150, 200))
        assert run.gaps_in_feed == (Gap(80, 149),)
        assert feed.counts() == {"lost": 70, "doubled": 0}
        player.recording.advance(51)
        assert reaches(feed, 250).gaps_in_feed == ()  # it has left the view with the steps around it


@pytest.mark.parametrize("read_whole", [0, 10**6])
def test_attaching_late_shows_the_newest_steps_with_the_spans_and_requests_that_touch_them(
    player: Player, recorded: Trace, read_whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_feed, "READ_WHOLE", read_whole)
    player.recording.advance(len(player))
    capacity = len(player) // 3
    with EngineFeed(player.url, capacity=capacity) as feed:
        run = reaches(feed, len(player) - 1)
        first = run.first_step
        assert first == len(player) - capacity
        assert run.gaps_in_feed == ()
        assert feed.counts()["lost"] == 0
        names = ("request", "kind", "first_step", "last_step")
        spans = recorded.columns("spans")
        wanted = (spans["last_step"] >= first) & (spans["first_step"] >= (0 if read_whole else first - capacity))
        followed = [run.column("spans", name).tolist() for name in names]
        assert wanted.any()
        assert set(zip(*followed, strict=True)) >= set(
            zip(*(spans[name][wanted].tolist() for name in names), strict=True)
        )
        requests = recorded.columns("requests")
        in_view = requests["request"][~(requests["finished_s"] < run.column("steps", "t_start_s")[0])]
        assert set(in_view.tolist()) == set(run.column("requests", "request").tolist())


def test_a_snapshot_never_changes(player: Player) -> None:
    with EngineFeed(player.url, capacity=40) as feed:
        player.recording.advance(40)
        run = reaches(feed, 39)
        kept = {name: run.column("steps", name).copy() for name in ("step", "t_end_s")}
        player.recording.advance(200)
        reaches(feed, 239)
        for name, column in kept.items():
            np.testing.assert_array_equal(run.rows["steps"][name], column)
        with pytest.raises(ValueError, match="read-only"):
            run.column("steps", "step")[0] = 1


def test_spans_that_go_on_last_until_the_newest_step(player: Player) -> None:
    with EngineFeed(player.url) as feed:
        player.recording.advance(60)
        run = reaches(feed, 59)
        assert run.column("spans", "last_step").max() == 59
        assert not np.isnan(run.column("spans", "end_s")).any()
        busy = set(run.column("spans", "slot")[run.column("spans", "last_step") == 59].tolist())
        assert len(busy - {-1}) == run.column("steps", "slots_busy")[-1]


def test_a_server_that_has_no_trace_is_said_to_have_none() -> None:
    with serving("up 1") as server, EngineFeed(server.url) as feed:
        until(lambda: feed.state.kind == "gone")
        assert "answered 404" in feed.state.reason
        assert feed.snapshot() is None


@pytest.mark.parametrize("url", ["ftp://host", "http://", "not a url", "http://u:p@host", "http://host:99999", ""])
def test_an_address_that_is_none_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(UserError) as error:
        EngineFeed(url)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_trace_is_refused_by_the_player(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        Player(tmp_path)
