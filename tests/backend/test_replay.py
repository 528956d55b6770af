"""Replays of workloads: their lengths, their arrivals, their shared prefixes, on real tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend import Engine
from backend.replay import ReplayTokens, replay
from backend.workload_log import WorkloadLog
from scheduler.errors import ConfigError, InputError
from traces.formats import read_workload
from traces.workload import Workload
from traces.write_workload import write_workload

from .small_models import EOS, VOCAB, save_small_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_llama(tmp_path_factory.mktemp("model"))


def started(model: Path, **settings: Any) -> Engine:
    return Engine(model, **{"threads": 1, "max_num_seqs": 4, "max_model_len": 128, "num_blocks": 200, "block_size": 4,
                            **settings})  # fmt: skip


def two_turns() -> Workload:
    """Two conversations; each second turn's prompt is its first turn, prompt and output, and 4 tokens more."""
    return Workload(
        arrival_s=np.array([0.0, 0.01, 0.2, 0.21]),
        prompt_tokens=np.array([8, 12, 16, 20]),
        output_tokens=np.array([4, 4, 3, 5]),
        hash_ids=np.array([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 8, 4, 5, 6, 7, 9]),
        hash_offsets=np.array([0, 3, 7, 11, 16]),
        hash_block=4,
        hash_covers="sequence",
    )


def test_equal_hash_ids_become_equal_tokens_and_no_token_ends_an_answer() -> None:
    tokens = ReplayTokens(two_turns(), VOCAB, EOS)
    first, second, third = (tokens.script(i) for i in (0, 1, 2))
    assert third[:12].tolist() == first.tolist()
    assert first[:8].tolist() != second[:8].tolist()
    assert not set(EOS) & {*first.tolist(), *second.tolist(), *third.tolist()}
    assert max(first.max(), second.max(), third.max()) < VOCAB


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_lengths_are_the_workloads_and_second_turns_hit_the_first(model: Path, async_scheduling: bool) -> None:
    workload = two_turns()
    with started(model, async_scheduling=async_scheduling) as engine:
        replay(engine, workload, realtime=True)
    assert engine.trace is not None
    requests = engine.trace.requests
    assert requests["output_tokens"].tolist() == workload.output_tokens.tolist()
    assert requests["cached_tokens"].tolist() == [0, 0, 8, 12]  # the last output token of a turn is never computed
    assert (requests["arrival_s"].diff().dropna() >= 0).all()
    assert requests["arrival_s"].iloc[2] - requests["arrival_s"].iloc[0] == pytest.approx(0.2)


def test_closed_loop_clients_wait_for_their_answers(model: Path) -> None:
    workload = two_turns()
    with started(model) as engine:
        replay(engine, workload, concurrency=1)
    assert engine.trace is not None
    requests = engine.trace.requests
    assert (requests["arrival_s"].to_numpy()[1:] >= requests["finished_s"].to_numpy()[:-1]).all()
    assert engine.trace.steps["running"].max() == 1


def test_what_was_noted_reads_back_and_names_equal_blocks_alike(model: Path, tmp_path: Path) -> None:
    with started(model) as engine:
        log = WorkloadLog(4)
        engine.observe_ends(log.note)
        replay(engine, two_turns())
    noted = log.workload("noted")
    write_workload(noted, tmp_path / "noted.jsonl")
    assert read_workload(tmp_path / "noted.jsonl").digest() == noted.digest()
    assert noted.hash_ids is not None
    first, third = noted.hash_ids[:3].tolist(), noted.hash_ids[7:10].tolist()
    assert first == third
    assert noted.prompt_tokens.tolist() == two_turns().prompt_tokens.tolist()


def test_a_request_that_can_never_run_is_named_before_anything_is_sent(model: Path) -> None:
    workload = Workload(
        arrival_s=np.zeros(2), prompt_tokens=np.array([4, 500]), output_tokens=np.array([1, 1]), name="w.csv"
    )
    with started(model) as engine:
        with pytest.raises(InputError, match=r"w\.csv: request 2 of 2: its prompt of 500 tokens"):
            replay(engine, workload)
        assert engine.stats().steps == 0


def test_real_time_and_clients_that_wait_exclude_each_other(model: Path) -> None:
    with started(model) as engine, pytest.raises(ConfigError, match="contradict"):
        replay(engine, two_turns(), realtime=True, concurrency=2)
