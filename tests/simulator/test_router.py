from __future__ import annotations

import numpy as np
import pytest
import simpy

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError
from scheduler.request import Request
from simulator.engine import Inbox
from simulator.router import BUILT_IN, FrontInbox, Replica, Router, find_router

CONFIG = SchedulerConfig(block_size=4, num_blocks=101)


class Last(Router):
    name = "last"

    def pick(self, request: Request) -> int:
        return len(self.replicas) - 1


class Lost(Router):
    name = "lost"

    def pick(self, request: Request) -> int:
        return len(self.replicas)


def replicas(n: int) -> list[Replica]:
    return [Replica(number) for number in range(n)]


def ask(name: str, prompt: int = 8) -> Request:
    return Request(name, prompt, 4)


def with_tokens(name: str, tokens: list[int]) -> Request:
    return Request(name, np.array(tokens, dtype=np.int32), 4)


def send(router: Router, request: Request) -> int:
    number = router.pick(request)
    router.replicas[number].begin(request)
    return number


@pytest.mark.parametrize(("n", "requests"), [(1, 5), (3, 30), (4, 10)])
def test_round_robin_splits_evenly(n: int, requests: int) -> None:
    router = BUILT_IN["round-robin"](replicas(n), CONFIG)
    sent = [send(router, ask(str(i))) for i in range(requests)]
    assert sent == [i % n for i in range(requests)]


def test_random_is_the_same_for_the_same_seed_and_even_in_the_long_run() -> None:
    picks = [[BUILT_IN["random"](replicas(4), CONFIG, seed).pick(ask("a")) for _ in range(1)] for seed in range(20)]
    again = [[BUILT_IN["random"](replicas(4), CONFIG, seed).pick(ask("a")) for _ in range(1)] for seed in range(20)]
    assert picks == again
    router = BUILT_IN["random"](replicas(4), CONFIG, seed=1)
    counts = np.bincount([send(router, ask(str(i))) for i in range(4000)], minlength=4)
    assert abs(counts - 1000).max() < 5 * (4000 * 0.25 * 0.75) ** 0.5  # five standard deviations of a fair draw


def test_least_requests_goes_where_fewest_are_unfinished() -> None:
    router = BUILT_IN["least-requests"](replicas(3), CONFIG)
    assert [send(router, ask(str(i))) for i in range(6)] == [0, 1, 2, 0, 1, 2]
    done = router.replicas[1].unfinished["1"]
    router.replicas[1].end(done)
    assert router.pick(ask("next")) == 1


def test_least_tokens_weighs_prompts() -> None:
    router = BUILT_IN["least-tokens"](replicas(2), CONFIG)
    assert send(router, ask("long", 100)) == 0
    assert [send(router, ask(str(i), 30)) for i in range(4)] == [1, 1, 1, 1]
    assert router.pick(ask("then", 30)) == 0
    assert [replica.tokens for replica in router.replicas] == [100, 120]


def test_prefix_affinity_keeps_equal_prefixes_together() -> None:
    router = BUILT_IN["prefix-affinity"](replicas(3), CONFIG)
    families = [list(range(base, base + 40)) for base in (0, 1000, 2000)]
    first = [send(router, with_tokens(f"{i}a", family)) for i, family in enumerate(families)]
    assert sorted(first) == [0, 1, 2]
    for i, family in enumerate(families):
        assert send(router, with_tokens(f"{i}b", [*family, 7, 7, 7, 7])) == first[i]


def test_prefix_affinity_ignores_a_short_match() -> None:
    router = BUILT_IN["prefix-affinity"](replicas(2), CONFIG)
    assert send(router, with_tokens("a", list(range(40)))) == 0
    mostly_new = [*range(8), *range(500, 532)]  # 2 of 10 blocks known: below 0.3
    assert router.pick(with_tokens("b", mostly_new)) == 1


def test_prefix_affinity_gives_way_when_the_load_is_lopsided() -> None:
    router = BUILT_IN["prefix-affinity"](replicas(2), CONFIG)
    same = list(range(40))
    sent = [send(router, with_tokens(str(i), same)) for i in range(70)]
    assert sent[:65] == [0] * 65  # up to a difference of 64
    assert 1 in sent[65:]


def test_prefix_affinity_forgets_more_than_a_cache_holds() -> None:
    router = BUILT_IN["prefix-affinity"](replicas(2), SchedulerConfig(block_size=4, num_blocks=11))
    assert send(router, with_tokens("a", list(range(40)))) == 0
    router.replicas[0].begin(ask("more"))  # both busy once: equal loads fall to the one that was sent fewer
    assert send(router, with_tokens("b", list(range(100, 140)))) == 1
    router.replicas[0].begin(ask("and more"))
    assert send(router, with_tokens("c", list(range(200, 240)))) == 1  # pushes b out
    assert send(router, with_tokens("d", list(range(100, 140)))) == 1  # by load alone
    assert router.pick(with_tokens("e", list(range(40)))) == 0


def test_a_router_of_ones_own_is_found_by_module_and_class() -> None:
    assert find_router("tests.simulator.test_router:Last") is Last


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("round-robbin", "did you mean 'round-robin'"),
        ("tests.simulator.test_router:Nobody", "cannot be loaded"),
        ("no.such.module:Router", "cannot be loaded"),
        ("tests.simulator.test_router:CONFIG", "not a class derived from"),
    ],
)
def test_a_router_that_is_none_is_refused_with_a_sentence(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_router(name)


def test_the_front_hands_requests_and_aborts_to_the_replica_picked() -> None:
    env = simpy.Environment()
    inboxes = [Inbox(env), Inbox(env)]
    front = FrontInbox(env, inboxes, Last(replicas(2), CONFIG))
    front.open(1)
    request = ask("a")
    front.put(request)
    front.abort("a")
    front.abort("never sent")
    front.close()
    assert inboxes[0].closed
    assert (inboxes[1].arrivals, inboxes[1].aborts) == ([request], ["a"])


def test_a_replica_that_does_not_exist_is_the_routers_mistake() -> None:
    env = simpy.Environment()
    front = FrontInbox(env, [Inbox(env)], Lost(replicas(1), CONFIG))
    with pytest.raises(ConfigError, match="picked replica 1; expected 0 to 0"):
        front.put(ask("a"))
