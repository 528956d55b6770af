from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from scheduler.errors import ConfigError, UserError
from simulator.fleet import cores, run_many

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (pip install 'batchscope[ray]')")


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ConfigError("three is out of range")
    return number


def die(number: int) -> int:
    os._exit(1)


@pytest.fixture(scope="module")
def ray() -> Iterator[str]:
    if not HAS_RAY:
        pytest.skip("Ray is not installed (pip install 'batchscope[ray]')")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield "local"
    ray.shutdown()


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_is_done_once_whatever_the_number_of_processes(jobs: int) -> None:
    results = dict(run_many(square, range(7), jobs=jobs))
    assert {index: result for index, (result, _) in results.items()} == {n: n * n for n in range(7)}


def test_one_job_stays_in_this_process_and_two_leave_it() -> None:
    assert {pid for _, (_, pid) in run_many(square, range(3), jobs=1)} == {os.getpid()}
    assert os.getpid() not in {pid for _, (_, pid) in run_many(square, range(3), jobs=2)}


def test_no_tasks_are_no_work() -> None:
    assert list(run_many(square, [], jobs=2)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_failure_reaches_the_caller_as_it_is(jobs: int) -> None:
    with pytest.raises(ConfigError, match="three is out of range"):
        list(run_many(fail_at_three, range(6), jobs=jobs))


def test_a_worker_that_dies_is_a_sentence() -> None:
    with pytest.raises(UserError, match="a worker process ended before its run did"):
        list(run_many(die, range(2), jobs=2))


def test_who_stops_listening_ends_the_workers() -> None:
    results = run_many(square, range(50), jobs=2)
    next(results)
    results.close()  # type: ignore[attr-defined] # it is a generator
    import multiprocessing

    assert not [child for child in multiprocessing.active_children() if child.is_alive()]


def test_a_number_of_processes_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="jobs is 0"):
        list(run_many(square, range(2), jobs=0))


def test_there_is_at_least_one_core() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_sentence_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'batchscope\[ray\]'"):
        list(run_many(square, range(2), ray="local"))


@needs_ray
def test_a_cluster_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"no Ray cluster at '127.0.0.1:1'"):
        list(run_many(square, range(2), ray="127.0.0.1:1"))


@needs_ray
def test_ray_gives_the_results_of_one_process(ray: str) -> None:
    results = dict(run_many(square, range(20), ray=ray))
    assert {index: result for index, (result, _) in results.items()} == {n: n * n for n in range(20)}
    assert os.getpid() not in {pid for _, pid in results.values()}


@needs_ray
def test_a_failure_on_ray_reaches_the_caller_as_it_is(ray: str) -> None:
    with pytest.raises(ConfigError, match="three is out of range"):
        list(run_many(fail_at_three, range(6), ray=ray))
