"""Which feed a server gets, how many are open, and when they are closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.live.engine_feed import EngineFeed
from dashboard.live.feeds import Feeds
from dashboard.live.player import Player
from dashboard.live.prometheus import MetricsFeed
from scheduler.errors import UserError
from simulator import simulate

from .live_servers import serving, until
from .test_live_prometheus import SGLANG_TEXT, VLLM_TEXT


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    folder = tmp_path_factory.mktemp("live") / "run.trace"
    simulate(requests=5, out=folder)
    with Player(folder) as one:
        yield one


def test_a_batchscope_server_is_followed_step_by_step_and_others_by_their_metrics(player: Player) -> None:
    with Feeds() as feeds, serving(VLLM_TEXT) as vllm, serving(SGLANG_TEXT) as sglang:
        assert isinstance(feeds.attach(player.url), EngineFeed)
        assert isinstance(feeds.attach(vllm.url), MetricsFeed)
        assert isinstance(feeds.attach(sglang.url), MetricsFeed)
        assert len(feeds) == 3


def test_a_server_has_one_feed_however_its_address_is_written(player: Player) -> None:
    with Feeds() as feeds:
        feed = feeds.attach(player.url)
        for other in (
            player.url + "/",
            player.url + "/v1",
            player.url + "/metrics",
            player.url.removeprefix("http://"),
        ):
            assert feeds.attach(other) is feed
        assert feeds.get(player.url) is feed
        feeds.detach(player.url)
        assert feeds.get(player.url) is None


def test_the_feed_that_was_longest_not_looked_at_makes_room(player: Player) -> None:
    with Feeds(most=2) as feeds, serving(VLLM_TEXT) as one, serving(VLLM_TEXT) as two:
        feeds.attach(one.url)
        feeds.attach(two.url)
        feeds.get(one.url)
        feeds.attach(player.url)
        assert len(feeds) == 2
        assert feeds.get(two.url) is None
        assert feeds.get(one.url) is not None


def test_a_feed_that_nobody_looks_at_is_closed() -> None:
    with Feeds(idle_s=0.2) as feeds, serving(VLLM_TEXT) as server:
        feeds.attach(server.url)
        until(lambda: len(feeds) == 0)
        asked = server.asked
        time.sleep(0.1)
        assert server.asked == asked


def test_where_nothing_can_be_followed_one_sentence_says_so(tmp_path: Path) -> None:
    with Feeds() as feeds, serving("hello") as other, serving(None) as silent:
        closed = "http://127.0.0.1:9"  # the port of `discard`, which nobody serves
        for url, why in ((other.url, "/metrics"), (silent.url, "404"), (closed, "nobody answers"), ("ftp://x", "http")):
            with pytest.raises(UserError, match=why) as error:
                feeds.attach(url)
            assert "\n" not in str(error.value)
        assert len(feeds) == 0
