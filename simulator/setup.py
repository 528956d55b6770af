"""What is simulated: model, hardware, cost model and scheduler settings, checked and made ready for a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from scheduler.config import Layout, SchedulerConfig
from scheduler.errors import ConfigError, unknown_name
from scheduler.policies import find_policy

from .costs import CostModel, cost_model_class, make_cost_model
from .costs.base import BUILT_IN, OwnSetup, split_options
from .hardware import HardwareSheet, get_hardware
from .memory import MemoryPlan, memory_plan
from .models import ModelSheet, get_model

SCHEDULER_SETTINGS = tuple(f.name for f in fields(SchedulerConfig))
SYSTEM_SETTINGS = (
    "model",
    "hardware",
    "cost",
    "tensor_parallel",
    "gpu_memory_utilization",
    "weight_dtype",
    "kv_dtype",
)


@dataclass(frozen=True)
class Setup:
    """A system to simulate. `scheduler` holds the scheduler settings that were given; the rest are defaults.

    Attributes:
        model: name of a model sheet, or path of a Hugging Face ``config.json``.
        hardware: name of a hardware sheet.
        cost: cost model, options after a colon (``linear:step_s=0.01``).
        tensor_parallel: devices that share each layer.
        gpu_memory_utilization: fraction of device memory the engine may use (for the number of KV blocks).
        weight_dtype: width of the layers' weights.
        kv_dtype: width of the KV cache.
        scheduler: settings of SchedulerConfig by name.
    """

    model: str = "llama-3.1-8b"
    hardware: str = "a100-80gb"
    cost: str = "roofline"
    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.9
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Setup:
        """From flat settings, system and scheduler ones together; raises ConfigError for a name that is neither.

        What a cost model's data is of (a fitted cost's model and device) stands in place of the defaults.
        """
        own = _own_setup(settings.get("cost", cls.cost))
        settings = settings if own is None else {**own.settings, **settings}
        system = {name: value for name, value in settings.items() if name in SYSTEM_SETTINGS}
        scheduler = {name: value for name, value in settings.items() if name not in SYSTEM_SETTINGS}
        for name in scheduler:
            if name not in SCHEDULER_SETTINGS:
                raise unknown_name("setting", name, [*SYSTEM_SETTINGS, *SCHEDULER_SETTINGS])
        return cls(**system, scheduler=scheduler)

    def build(self) -> System:
        """Look everything up and check that it fits together; raises ConfigError."""
        model, hardware = self._sheets()
        settings = {"max_model_len": model.max_positions, **self.scheduler}
        model.check_tensor_parallel(self.tensor_parallel)
        find_policy(settings.get("policy", "chunked"))
        cost_model = self._cost_model(model, hardware)
        memory = None
        if "num_blocks" not in settings:
            memory = self._memory(model, hardware, settings)
            settings["num_blocks"] = memory.num_blocks
        return System(SchedulerConfig(**settings), cost_model, memory, self)

    def _sheets(self) -> tuple[ModelSheet, HardwareSheet | None]:
        """By name, or those of the cost model's data; None where that is of a device without a sheet."""
        own = _own_setup(self.cost)
        if own is None:
            return get_model(self.model), get_hardware(self.hardware)
        own_model, own_device = (own.settings[name] == getattr(self, name) for name in ("model", "hardware"))
        if self.weight_dtype != own.settings.get("weight_dtype", self.weight_dtype):
            raise ConfigError(
                f"cost {self.cost} is of {own.settings['weight_dtype']} weights; weight_dtype is {self.weight_dtype}"
            )
        model = own.model if own_model else get_model(self.model)
        return model, own.hardware if own_device else get_hardware(self.hardware)

    def _memory(self, model: ModelSheet, hardware: HardwareSheet | None, settings: Mapping[str, Any]) -> MemoryPlan:
        if hardware is None:
            raise ConfigError(
                f"there is no hardware sheet of {self.hardware}, to tell its memory from; give num_blocks"
            )
        sizes = {name: settings.get(name, _default(name)) for name in ("block_size", "max_num_seqs")}
        SchedulerConfig(**sizes)  # the memory sheet presumes valid sizes
        budget = settings.get("max_num_batched_tokens", _default("max_num_batched_tokens"))
        SchedulerConfig(max_num_batched_tokens=budget)
        return memory_plan(
            model,
            hardware,
            **sizes,
            max_num_batched_tokens=budget,
            gpu_memory_utilization=self.gpu_memory_utilization,
            tensor_parallel=self.tensor_parallel,
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
        )

    def _cost_model(self, model: ModelSheet, hardware: HardwareSheet | None) -> CostModel:
        name, options = split_options(self.cost)
        if name == "roofline":
            options = {"weight_dtype": self.weight_dtype, "kv_dtype": self.kv_dtype, **options}
        return make_cost_model(name, model=model, hardware=hardware, tensor_parallel=self.tensor_parallel, **options)


@dataclass(frozen=True)
class System:
    """A setup made ready: what a run needs. Raises ConfigError where the cost model cannot price such a run.

    Attributes:
        config: the scheduler's.
        cost_model: prices steps.
        memory: how the number of KV blocks was estimated; None when it was given.
        setup: where it all came from.
    """

    config: SchedulerConfig
    cost_model: CostModel
    memory: MemoryPlan | None
    setup: Setup

    def __post_init__(self) -> None:
        own: Layout = find_policy(self.config.policy).layout
        self.cost_model.prepare(self.config, own if self.config.layout == "auto" else self.config.layout)

    def describe(self) -> dict[str, Any]:
        """For a trace's meta: enough to run it again."""
        return {
            "policy": self.config.policy,
            "config": asdict(self.config),
            "model": self.setup.model,
            "hardware": self.setup.hardware,
            "tensor_parallel": self.setup.tensor_parallel,
            "cost_model": self.cost_model.describe(),
            "memory": None if self.memory is None else self.memory.as_dict(),
            "settings": {**{name: getattr(self.setup, name) for name in SYSTEM_SETTINGS}, **self.setup.scheduler},
        }


def _own_setup(cost: Any) -> OwnSetup | None:
    """What the data of a cost model of ours is of."""
    name, options = split_options(cost)
    return cost_model_class(name).own_setup(options) if name in BUILT_IN else None


def _default(name: str) -> Any:
    value = next(f.default for f in fields(SchedulerConfig) if f.name == name)
    if value is MISSING:
        raise ConfigError(f"{name} has no default")
    return value
