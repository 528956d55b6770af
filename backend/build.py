"""Putting an engine together: from a model's name and settings to scheduler, executor and recorder."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from scheduler import Scheduler
from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError, unknown_name
from traces.recorder import TraceRecorder

from .clock import Clock
from .core import EngineCore
from .device import CpuDevice, Device, Runner
from .executor import Executor
from .kv_cache import KvCache
from .live import Live
from .locate import locate
from .model import Model
from .model_config import ModelConfig
from .ops.base import make_ops
from .outputs import StepEvent
from .sizing import scheduler_config
from .tokenizer import Tokenizer
from .weights import Weights, load_weights

DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What an engine is made of."""

    name: str
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    scheduler: Scheduler
    executor: Executor
    recorder: TraceRecorder
    core: EngineCore
    clock: Clock


@dataclass(frozen=True)
class Loaded:
    """A model that is there, whichever way it came: its name, weights (with their configuration) and tokenizer."""

    name: str
    weights: Weights
    tokenizer: Tokenizer | None


def build(
    model: str | Path | Weights, *, device: str, dtype: str, ops: str, threads: int | None, trace: str | Path | None,
    kv_cache_gib: float | None, gpu_memory_utilization: float, note: Mapping[str, Any], settings: Mapping[str, Any],
    on_step: Callable[[StepEvent], None], on_end: Callable[[Live], None],
) -> Parts:  # fmt: skip
    """Load the model and make everything around it; see `engine.Engine` for the arguments. Raises UserError.

    Weights may be given instead of a name; they say on which device and in which dtype the model runs.
    """
    num_threads = _threads(threads)
    torch.set_num_threads(num_threads)
    return assemble(
        Loaded("weights", model, None) if isinstance(model, Weights) else load(model, device, dtype),
        ops=ops, threads=num_threads, trace=trace, kv_cache_gib=kv_cache_gib,
        gpu_memory_utilization=gpu_memory_utilization, note=note, settings=settings, on_step=on_step, on_end=on_end,
    )  # fmt: skip


def load(model: str | Path, device: str, dtype: str) -> Loaded:
    """Locate a model and read it onto a device. Raises UserError."""
    on = find_device(device)
    folder = locate(model)
    facts = ModelConfig.load(folder)
    weights = load_weights(folder, facts, find_dtype(dtype, facts, on), on)
    name = str(model) if not Path(model).exists() else Path(model).resolve().name
    return Loaded(name, weights, _tokenizer(folder))


def assemble(
    loaded: Loaded, *, ops: str, threads: int, trace: str | Path | None, kv_cache_gib: float | None,
    gpu_memory_utilization: float, note: Mapping[str, Any], settings: Mapping[str, Any],
    on_step: Callable[[StepEvent], None], on_end: Callable[[Live], None],
) -> Parts:  # fmt: skip
    """Make everything around a model that is loaded. Raises UserError for wrong settings."""
    name, tokenizer, facts = loaded.name, loaded.tokenizer, loaded.weights.config
    kind, on = loaded.weights.embed.dtype, loaded.weights.embed.device
    config = scheduler_config(
        facts, settings, dtype=kind, device=on, kv_cache_gib=kv_cache_gib,
        gpu_memory_utilization=gpu_memory_utilization,
    )  # fmt: skip
    clock = Clock()
    scheduler = Scheduler(config, track_blocks=True, token_rows=True)
    ops = _ops_name(ops, on)
    network = Model(facts, loaded.weights, make_ops(ops, str(on)), max_positions=config.max_model_len)
    del loaded  # the model has what it needs, some of it in another form
    cache = KvCache(facts, config.num_blocks, config.block_size, network.dtype, on)
    executor = Executor(
        scheduler, make_device(network, cache, config, clock, on, threads), vocab_size=facts.vocab_size,
        eos_token_ids=config.eos_token_ids,
    )  # fmt: skip
    meta = {**_describe(name, facts, config, scheduler, on, kind, ops, threads), **note}
    recorder = TraceRecorder(
        trace, meta, slots_total=config.max_num_seqs, streams=scheduler.streams, flush_every=1, plans=True
    )
    core = EngineCore(scheduler, executor, recorder, clock, on_step=on_step, on_end=on_end)
    return Parts(name, facts, tokenizer, scheduler, executor, recorder, core, clock)


def find_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one. Raises ConfigError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but torch {torch.__version__} finds no GPU here")
    return device


def find_dtype(name: str, model: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype of that name; ``auto`` is float32 on the CPU and the checkpoint's on a GPU. Raises ConfigError."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else model.dtype
    if name not in DTYPES:
        raise unknown_name("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]


def _ops_name(name: str, device: torch.device) -> str:
    if name == "auto":
        return "triton" if device.type == "cuda" else "torch"
    return name


def _threads(threads: int | None) -> int:
    if threads is None:
        return os.cpu_count() or 1
    if threads < 1:
        raise ConfigError(f"threads is {threads}; expected a whole number >= 1")
    return threads


def make_device(
    model: Model, cache: KvCache, config: SchedulerConfig, clock: Clock, device: torch.device, threads: int
) -> Device:
    """The device that runs a model's steps: kernels lay flat steps out where there are kernels."""
    if model.ops.name != "triton":
        runner = Runner(
            model, cache, num_slots=config.max_num_seqs, max_model_len=config.max_model_len, device=device
        )  # fmt: skip
    else:
        from .gpu import GpuRunner

        runner = GpuRunner(model, cache, config, device)
        if device.type == "cuda":
            with torch.cuda.device(device):
                runner.capture(config.cudagraph_capture_sizes)
    if device.type == "cuda":
        from .gpu import CudaDevice

        return CudaDevice(runner, clock, device)
    return CpuDevice(runner, clock, threads=threads, beside=config.async_scheduling)


def _tokenizer(folder: Path) -> Tokenizer | None:
    has_one = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"))
    return Tokenizer.load(folder) if has_one else None


def _own_version() -> str:
    """Of the installed package; a checkout that was only copied to a GPU machine has none."""
    try:
        return version("batchscope")
    except PackageNotFoundError:
        return "not installed"


def _describe(
    name: str, model: ModelConfig, config: SchedulerConfig, scheduler: Scheduler, device: torch.device,
    dtype: torch.dtype, ops: str, threads: int,
) -> dict[str, Any]:  # fmt: skip
    """What a trace's meta says of a measured run."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "source": "measured",
        "policy": config.policy,
        "layout": scheduler.layout,
        "config": asdict(config),
        "model": name,
        "architecture": {**asdict(model), "dtype": str(model.dtype).removeprefix("torch.")},
        "dtype": str(dtype).removeprefix("torch."),
        "hardware": gpu or f"{platform.machine()} CPU, {threads} threads",
        "ops": ops,
        "padding_s": "estimated: device seconds x share of padded rows",
        "software": {
            "batchscope": _own_version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
