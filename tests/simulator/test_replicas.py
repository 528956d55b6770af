from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.errors import ConfigError, InputError
from simulator.load import ClosedLoop, OpenLoop
from simulator.redraw import resolve
from simulator.replicas import fleet_record, run_replicas
from simulator.run import make_load
from simulator.setup import Setup
from simulator.summary import run_record
from traces.trace import Trace
from traces.workload import Workload

from .cases import even, one_slot

ROUTERS = ("round-robin", "random", "least-requests", "least-tokens")


def fleet(workload: Workload, replicas: int, router: str = "round-robin", **settings: Any) -> dict[str, Any]:
    system = Setup.of(settings).build()
    return fleet_record(system, workload, OpenLoop(workload), replicas=replicas, router=router)


@pytest.mark.parametrize("settings", [{}, {"policy": "static"}, {"async_scheduling": True}, {"num_blocks": 300}])
def test_one_replica_behind_a_router_is_the_server_alone(settings: dict[str, Any]) -> None:
    workload = resolve("default", requests=60, rate=20)
    alone = run_record(Setup.of(settings).build(), workload, make_load(workload))
    behind = fleet(workload, 1, **settings)
    for name in set(alone) - {"wall_s", "blocks"}:
        assert behind[name] == pytest.approx(alone[name]), name


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_round_robin_over_servers_that_keep_up_lets_nobody_wait(replicas: int) -> None:
    """D/D/c: a request a second for each replica, each taking 1 s alone."""
    workload = even(20 * replicas, 1.0 / replicas)
    record = fleet(workload, replicas, **one_slot())
    assert record["e2e_s"]["p99"] == pytest.approx(1.0)
    assert record["queue_s"]["p99"] == pytest.approx(0.0)
    assert [one["requests"] for one in record["per_replica"]] == [20] * replicas
    assert record["makespan_s"] == pytest.approx((len(workload) - 1) / replicas + 1.0)
    assert record["slot_occupancy"] == pytest.approx(len(workload) / replicas / record["makespan_s"])


def test_requests_that_come_at_once_queue_by_turns() -> None:
    """12 requests of 1 s on 3 one-slot servers end after 1, 2, 3 and 4 s."""
    record = fleet(even(12, 0.0), 3, "least-requests", **one_slot())
    assert record["e2e_s"]["mean"] == pytest.approx(2.5)
    assert record["makespan_s"] == pytest.approx(4.0)
    assert record["output_tokens_per_s"] == pytest.approx(12 * 10 / 4.0)


@pytest.mark.parametrize("router", ROUTERS)
def test_all_work_is_done_once_whatever_the_router(router: str) -> None:
    workload = resolve("default", requests=80, rate=30)
    record = fleet(workload, 3, router)
    assert record["requests"] == record["finished"] == 80
    assert sum(one["requests"] for one in record["per_replica"]) == 80
    work = int((workload.prompt_tokens + workload.output_tokens - 1).sum())
    assert record["computed_tokens"] == work + record["recomputed_tokens"] - record["cached_tokens"]


def test_replicas_without_requests_do_no_harm() -> None:
    record = fleet(even(2, 1.0), 4, **one_slot())
    assert [one["requests"] for one in record["per_replica"]] == [1, 1, 0, 0]
    assert record["finished"] == 2


def test_closed_loop_clients_work_through_a_router() -> None:
    """4 clients, 2 one-slot servers, 1 s a request: 2 requests/s, each client waits one turn."""
    workload = even(20, 0.0)
    system = Setup.of(one_slot()).build()
    load = ClosedLoop(workload, concurrency=4)
    record = fleet_record(
        system, workload, load, replicas=2, router="least-requests", meta={"load": {"concurrency": 4}}
    )
    assert record["makespan_s"] == pytest.approx(10.0)
    assert record["saturated"] is None


def test_a_request_is_the_less_loaded_replicas_as_soon_as_that_is_free() -> None:
    """A long request on one of two servers: least-requests sends all others to the other server, turns do not."""
    workload = Workload(np.arange(9) * 1.5, np.full(9, 8), np.array([200, *[10] * 8]))
    assert fleet(workload, 2, "least-requests", **one_slot())["e2e_s"]["p50"] == pytest.approx(1.0)
    assert fleet(workload, 2, "round-robin", **one_slot())["e2e_s"]["p90"] > 10


def test_prefix_affinity_finds_more_in_the_caches_than_turns_do() -> None:
    families, n, units = 6, 60, 16
    group = np.arange(n) % families
    shared = group[:, None] * 100 + np.arange(units - 2)
    own = 10_000 + 2 * np.arange(n)[:, None] + np.arange(2)
    ids = np.hstack([shared, own]).ravel()
    workload = Workload(
        np.arange(n) * 0.2, np.full(n, units * 16), np.full(n, 4), hash_ids=ids,
        hash_offsets=np.arange(0, n * units + 1, units), hash_block=16,
    )  # fmt: skip
    system = Setup.of({"num_blocks": 1000}).build()
    cached = {}
    for router in ("prefix-affinity", "random"):
        record = fleet_record(system, workload, OpenLoop(workload), replicas=4, router=router)
        cached[router] = record["cached_tokens"]
    all_hits = (n - families) * (units - 2) * 16
    assert cached["prefix-affinity"] == all_hits
    assert cached["random"] < all_hits


def test_prefix_affinity_refuses_a_workload_of_lengths_alone() -> None:
    with pytest.raises(ConfigError, match="gives lengths only"):
        fleet(even(3, 1.0), 2, "prefix-affinity", **one_slot())


def test_a_request_that_could_never_run_is_named_before_anything_runs() -> None:
    with pytest.raises(InputError, match="raise max_model_len"):
        fleet(even(3, 1.0, prompt=500), 2, **one_slot(max_model_len=100))


def test_each_replica_leaves_a_trace_when_asked(tmp_path: Path) -> None:
    workload = even(6, 0.5)
    system = Setup.of(one_slot()).build()
    traces = run_replicas(system, workload, OpenLoop(workload), replicas=2, router="round-robin", traces=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replica-0.trace", "replica-1.trace"]
    read = Trace.open(tmp_path / "replica-1.trace")
    assert (read.meta["replica"], read.meta["replicas"], read.meta["router"]) == (1, 2, "round-robin")
    assert read.summary()["requests"] == len(traces[0].column("requests", "request")) == 3
