"""What to simulate for a recorded run: its own settings, or for a recording without any those of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.config import SchedulerConfig
from scheduler.errors import ConfigError, unknown_name

from .costs import CostModel, make_cost_model
from .costs.base import split_options
from .costs.fitted import FittedCost
from .devices import sheet_of_device
from .hardware import HardwareSheet, get_hardware
from .measured import MeasuredRun
from .models import ModelSheet, get_model
from .setup import SCHEDULER_SETTINGS, Setup, System


def system_of(
    measured: MeasuredRun,
    cost: str | None = None,
    model: str | None = None,
    hardware: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> System:
    """What to simulate for a recorded run; the arguments are those of `validate`. Raises ConfigError."""
    given = dict(settings or {})
    if measured.settings is None:
        return _given_system(measured, cost, model, hardware, given)
    tensor_parallel = given.pop("tensor_parallel", measured.tensor_parallel)
    for name in given:
        if name not in SCHEDULER_SETTINGS:
            raise unknown_name("setting of a recorded run", name, [*SCHEDULER_SETTINGS, "tensor_parallel"])
    scheduler = {**measured.settings, **given}
    sheet, card = _model(measured, model), _hardware(measured, hardware)
    setup = Setup(
        model=model or str(measured.model),
        hardware=hardware or (card.name if card else str(measured.hardware)),
        cost=cost or "profile",
        tensor_parallel=tensor_parallel,
        scheduler=scheduler,
    )
    cost_model = _cost_model(measured, cost, sheet, card, tensor_parallel)
    return System(SchedulerConfig(**scheduler), cost_model, None, setup)


def _given_system(
    measured: MeasuredRun, cost: str | None, model: str | None, hardware: str | None, settings: dict[str, Any]
) -> System:
    """Of a recording that holds no settings: those of the user, and the defaults of a simulation."""
    if hardware is None:
        raise ConfigError(f"{measured.path} does not say on which hardware it was measured; give --hardware")
    if model is None:
        if measured.model is None:
            raise ConfigError(f"{measured.path} does not say which model was served; give --model")
        try:
            get_model(measured.model)
        except ConfigError as error:
            raise ConfigError(f"{measured.path} names a model that is not known here; give --model: {error}") from error
    named = {"model": model or measured.model, "hardware": hardware, **({} if cost is None else {"cost": cost})}
    return Setup.of({**settings, **named}).build()


def _cost_model(
    measured: MeasuredRun, cost: str | None, model: ModelSheet | None, hardware: HardwareSheet | None,
    tensor_parallel: int,
) -> CostModel:  # fmt: skip
    setup: dict[str, Any] = {"model": model, "hardware": hardware, "tensor_parallel": tensor_parallel}
    if cost is not None:
        name, options = split_options(cost)
        made = make_cost_model(name, **setup, **options)
        slowdown = slowdown_of(measured, made)
        if slowdown is None or "slowdown" in options:
            return made
        return make_cost_model(name, **setup, **options, slowdown=slowdown)
    if measured.cost is None:
        raise ConfigError(f"{measured.path} holds no operator tables; give the cost model to validate")
    return make_cost_model("profile", **setup, **measured.cost)


def slowdown_of(measured: MeasuredRun, cost: CostModel) -> float | None:
    """How slow the machine was in a run, against when its cost was fitted; None where no probe tells."""
    if measured.probe_s is None or not isinstance(cost, FittedCost) or cost.file.probe_s is None:
        return None
    return measured.probe_s / cost.file.probe_s


def _model(measured: MeasuredRun, given: str | None) -> ModelSheet | None:
    """The sheet asked for, or that of the recorded name where there is one; cost models that need one say so."""
    if given is not None:
        return get_model(given)
    try:
        return get_model(str(measured.model))
    except ConfigError:
        return None


def _hardware(measured: MeasuredRun, given: str | None) -> HardwareSheet | None:
    if given is not None:
        return get_hardware(given)
    return None if measured.hardware is None else sheet_of_device(measured.hardware)
