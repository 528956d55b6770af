"""Replaying decodes: recorded once for a number of rows, right for any requests up to it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend import Engine, SamplingParams, build
from backend.gpu import GpuRunner
from backend.kernels.prepare import StepTensors

from .small_models import random_prompts, save_small_llama

SIZES = (1, 2, 4, 8)
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 64,
    "block_size": 4, "num_blocks": 40, "cudagraph_capture_sizes": SIZES,
}  # fmt: skip


class Tape:
    """Stands in for a CUDA graph on the CPU: to replay is to run the same again, into the same result."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `backend.gpu.Record`."""
        self.recorded += 1
        result = run()

        def replay() -> None:
            self.replayed += 1
            result.copy_(run())

        return replay, result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Graphs are recorded as on a GPU, by this tape."""
    tape, make = Tape(), build.make_device

    def make_device(*args: Any) -> Any:
        device: Any = make(*args)
        runner = device._runner
        if isinstance(runner, GpuRunner):
            runner.capture(SIZES, tape.record)
            assert not runner._cache.keys[:, 0].any()
            assert not runner._cache.values[:, 0].any()
        return device

    monkeypatch.setattr(build, "make_device", make_device)
    return tape


def answers(model: Path, ops: str, **settings: Any) -> list[list[int]]:
    params = [SamplingParams(temperature=0.0, max_tokens=3 + i % 3, ignore_eos=True) for i in range(5)]
    with Engine(model, ops=ops, **{**SETTINGS, **settings}) as engine:
        return [output.token_ids for output in engine.generate(random_prompts(5, longest=12), params)]


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_replayed_decodes_give_the_same_tokens_as_launched_ones(model: Path, tape: Tape, ahead: bool) -> None:
    assert answers(model, "triton", async_scheduling=ahead) == answers(model, "torch", async_scheduling=ahead)
    assert tape.recorded == len(SIZES)
    assert tape.replayed > 2


def test_recording_reads_no_row_before_the_first(model: Path, tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row number below 0 would be an illegal address on a GPU."""
    seen: list[int] = []
    forward = GpuRunner.forward

    def watched(runner: GpuRunner, inputs: Any) -> Tensor:
        seen.append(int(inputs.logits_indices.min()))
        return forward(runner, inputs)

    monkeypatch.setattr(GpuRunner, "forward", watched)
    answers(model, "triton")
    assert len(seen) > len(SIZES)
    assert min(seen) >= 0


def test_what_a_graph_reads_and_writes_outlives_its_recording(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay goes to the same addresses; nobody else may get them."""
    made: list[weakref.ref[Tensor]] = []
    empty = StepTensors.empty

    def watched(*args: Any) -> StepTensors:
        tensors = empty(*args)
        made.extend(weakref.ref(getattr(tensors, name)) for name in StepTensors.__slots__)
        return tensors

    monkeypatch.setattr(StepTensors, "empty", watched)
    with Engine(model, ops="triton", **SETTINGS) as engine:
        device: Any = engine._executor._device
        device._runner.capture(SIZES, lambda run: (lambda: None, run()))
        gc.collect()
        assert len(made) == len(SIZES) * len(StepTensors.__slots__)
        assert all(tensor() is not None for tensor in made)


def test_nothing_is_recorded_without_sizes(model: Path) -> None:
    with Engine(model, ops="triton", **{**SETTINGS, "cudagraph_capture_sizes": ()}) as engine:
        runner: Any = engine._executor._device
        runner._runner.capture(())
    assert torch.is_inference_mode_enabled() is False
