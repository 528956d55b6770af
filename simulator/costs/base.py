"""What a cost model is: the price of one step, and how a model is found by name."""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar

from scheduler.config import Layout, SchedulerConfig
from scheduler.errors import ConfigError, UserError, unknown_name
from scheduler.plan import StepShape
from scheduler.plugins import checked_class, class_of_module

from ..hardware import HardwareSheet, get_hardware
from ..models import ModelSheet, get_model

ENTRY_POINTS = "batchscope.cost_models"
"""Entry point group in which a package offers cost models: name -> class."""
BUILT_IN: dict[str, str] = {
    "fitted": "simulator.costs.fitted:FittedCost",
    "linear": "simulator.costs.linear:LinearCost",
    "profile": "simulator.costs.profile:ProfileCost",
    "recorded": "simulator.costs.recorded:RecordedCost",
    "roofline": "simulator.costs.roofline:RooflineCost",
}
"""Cost models of our own: name -> where the class lives."""

_SETUP = ("model", "hardware", "tensor_parallel")


class StepCost:
    """The price of one step.

    Attributes:
        device_s: seconds on the accelerator.
        host_s: seconds on the host, for planning and for handling the results; added to `device_s` by a synchronous
            engine, overlapped by an asynchronous one.
    """

    __slots__ = ("_model", "_shape", "device_s", "host_s")

    def __init__(
        self, device_s: float, host_s: float, model: CostModel | None = None, shape: StepShape | None = None
    ) -> None:
        self.device_s = device_s
        self.host_s = host_s
        self._model = model
        self._shape = shape

    def breakdown(self) -> dict[str, float]:
        """Seconds by named part; they sum to ``device_s + host_s`` (up to rounding).

        Computed when asked for, from the step's shape: valid as long as the shape is (until the scheduler's next
        `schedule`).
        """
        if self._model is None or self._shape is None:
            return {"device": self.device_s, "host": self.host_s}
        return self._model.breakdown(self._shape)


@dataclass(frozen=True)
class OwnSetup:
    """What the data of a cost model is of, for a user who names no other.

    Attributes:
        settings: settings of `simulator.setup.Setup` that it decides.
        model: the sheet that ``settings["model"]`` stands for.
        hardware: the sheet that ``settings["hardware"]`` stands for; None: there is none of that device.
    """

    settings: Mapping[str, Any]
    model: ModelSheet
    hardware: HardwareSheet | None


class CostModel(ABC):
    """Prices steps from their shape alone; the same shapes in the same order always give the same prices.

    A model of your own derives from this class, names itself, adds its options as keyword-only arguments and passes
    the rest on::

        class Constant(CostModel):
            name = "constant"

            def __init__(self, *, step_s: float = 0.01, **setup):
                super().__init__(**setup)
                self.step_s = step_s

            def step_cost(self, shape):
                return StepCost(self.step_s, 0.0)

            def options(self):
                return {"step_s": self.step_s}

    Args:
        model: sheet of the model served; None where prices do not depend on it.
        hardware: sheet of one device; None likewise.
        tensor_parallel: devices that share each layer.
    """

    name: ClassVar[str]
    out_of_range: ClassVar[str] = "outside the range in which this cost model was calibrated"
    """Why the steps counted in `extrapolated_steps` are in doubt."""

    def __init__(
        self, *, model: ModelSheet | None = None, hardware: HardwareSheet | None = None, tensor_parallel: int = 1
    ) -> None:
        if isinstance(tensor_parallel, bool) or not isinstance(tensor_parallel, int) or tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel is {tensor_parallel!r}; expected a whole number >= 1")
        self.model = model
        self.hardware = hardware
        self.tensor_parallel = tensor_parallel
        self.extrapolated_steps = 0
        """Steps priced since the last `reset` for which the model has no measured ground."""

    @classmethod
    def own_setup(cls, options: Mapping[str, Any]) -> OwnSetup | None:
        """What a model with these options is of, where that stands in its data; None: what the user says."""
        return None

    def prepare(self, config: SchedulerConfig, layout: Layout) -> None:
        """Called before a run with its settings and layout: raises ConfigError where the model cannot price it."""
        return None

    @abstractmethod
    def step_cost(self, shape: StepShape) -> StepCost:
        """The price of a step of this shape; called once a step, so it should take about a microsecond."""

    def padding_s(self, cost: StepCost, real: StepShape, layout: Layout) -> float:
        """Seconds of a step's price that its padding causes: its price less that of its real rows alone.

        Args:
            cost: the step's price.
            real: the step without its padding, as a flat row; nothing of it is counted as extrapolated.
            layout: in which the step was computed.
        """
        counted = self.extrapolated_steps
        bare = self.step_cost(real)
        self.extrapolated_steps = counted
        return max(cost.device_s + cost.host_s - bare.device_s - bare.host_s, 0.0)

    def breakdown(self, shape: StepShape) -> dict[str, float]:
        """Seconds by named part of a step of this shape, for a model that hands itself and the shape to `StepCost`."""
        raise NotImplementedError(f"cost model {self.name} names no parts")

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options it was built with, as JSON values: with them `make_cost_model` builds it again."""

    def describe(self) -> dict[str, Any]:
        """What belongs in a trace's meta so that the run can be priced again, as JSON values."""
        return {
            "name": self.name,
            "options": self.options(),
            "model": None if self.model is None else self.model.as_dict(),
            "hardware": None if self.hardware is None else self.hardware.as_dict(),
            "tensor_parallel": self.tensor_parallel,
            "caveat": self.caveat(),
        }

    def caveat(self) -> str | None:
        """What is uncertain about every price, a sentence without its end; None where nothing is."""
        return None

    def extrapolation(self) -> dict[str, Any] | None:
        """``{"steps": count, "reason": sentence}`` when steps were priced outside the valid range, else None."""
        if not self.extrapolated_steps:
            return None
        return {"steps": self.extrapolated_steps, "reason": self.out_of_range}

    def reset(self) -> None:
        """Forget what earlier steps left behind, so that another run can be priced."""
        self.extrapolated_steps = 0


KIND = "cost model"


def make_cost_model(
    name: str,
    *,
    model: ModelSheet | str | None = None,
    hardware: HardwareSheet | str | None = None,
    tensor_parallel: int = 1,
    **options: Any,
) -> CostModel:
    """A cost model by name.

    Args:
        name: ``fitted``, ``linear``, ``profile``, ``recorded``, ``roofline``, a name offered under the entry point
            `ENTRY_POINTS`, or ``module:Class``; options may follow it, as in ``linear:step_s=0.01,token_s=2e-5``.
        model: sheet, or name or path of one (see `simulator.models.get_model`).
        hardware: sheet, or name of one.
        tensor_parallel: devices that share each layer.
        options: the model's own; they win over those in `name`.

    Raises:
        ConfigError: unknown name or option, or an option out of range.
    """
    name, given = split_options(name)
    given.update(options)
    cls = cost_model_class(name)
    _check_options(cls, given)
    setup: dict[str, Any] = {
        "model": get_model(model) if isinstance(model, str) else model,
        "hardware": get_hardware(hardware) if isinstance(hardware, str) else hardware,
        "tensor_parallel": tensor_parallel,
    }
    try:
        return cls(**setup, **given)
    except UserError:
        raise
    except Exception as error:
        if name in BUILT_IN:
            raise
        raise ConfigError(f"cost model {name!r} cannot be built: {type(error).__name__}: {error}") from error


def cost_model_names() -> list[str]:
    """Names of all cost models that can be found: ours and those of installed packages."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def cost_model_class(name: str) -> type[CostModel]:
    """The class behind `name`; raises ConfigError when there is none or it is no cost model."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[CostModel] = getattr(importlib.import_module(module), attribute)
        return found
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return checked_class(name, point.load, CostModel, KIND)
    if ":" in name:
        return class_of_module(name, CostModel, KIND)
    raise unknown_name("cost model", name, cost_model_names())


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """``"name:key=value,key=value"`` as name and options; a ``module:Class`` in front stays whole."""
    head, separator, tail = text.rpartition(":")
    if not separator or ("=" not in tail and head not in BUILT_IN):
        return text, {}
    pairs = [part.partition("=") for part in tail.split(",")]
    for key, equals, value in pairs:
        if not (key.strip() and equals and value.strip()):
            raise ConfigError(f"cost model options {tail!r}: expected key=value,key=value")
    options = {key.strip(): _value(value.strip()) for key, _, value in pairs}
    if len(options) < len(pairs):
        raise ConfigError(f"cost model options {tail!r} give one of them twice; expected each once")
    return head, options


def number_option(name: str, value: Any, *, least: float = 0.0) -> float:
    """`value` as a finite float; raises ConfigError naming the option `name` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise ConfigError(f"cost model option {name} is {value!r}; expected a number >= {least:g}")
    return float(value)


def _value(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_options(cls: type[CostModel], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(cls.__init__).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _SETUP]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of cost model {cls.name}", option, known)
    missing = [p.name for p in parameters if p.name in known and p.default is p.empty and p.name not in options]
    if missing:
        raise ConfigError(f"cost model {cls.name} needs {', '.join(missing)} (as in {cls.name}:{missing[0]}=0.01)")
