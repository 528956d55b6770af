"""Whose fault an error in a run is: ours, or that of a policy or cost model of the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from scheduler import Policy
from scheduler.errors import ConfigError, UserError
from scheduler.plan import StepShape
from scheduler.policies import find_policy

from .costs import CostModel, StepCost
from .setup import System


@contextmanager
def users_faults(system: System) -> Iterator[None]:
    """Within the block, an error out of a class of the user's own is a ConfigError that names it; others stay.

    An engine that waits for ever is the policy's doing too: it planned nothing although requests were waiting.
    """
    _hold_to_contract(system.cost_model)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        sentence = _sentence(system, error)
        if sentence is None:
            raise
        raise ConfigError(sentence) from error


def _hold_to_contract(model: CostModel) -> None:
    """Have what a cost model of the user's own returns looked at, step by step; ours are spared the time."""
    if not _modules(type(model), CostModel) or "step_cost" in vars(model):
        return
    price = model.step_cost

    def checked(shape: StepShape) -> StepCost:
        cost = price(shape)
        if not isinstance(cost, StepCost):
            raise ConfigError(f"cost model {model.name}: step_cost returned {cost!r}; expected a StepCost")
        if not (0 <= cost.device_s < math.inf and 0 <= cost.host_s < math.inf):
            raise ConfigError(
                f"cost model {model.name}: a step costs {cost.device_s} s of device and {cost.host_s} s of host; "
                "expected seconds >= 0"
            )
        return cost

    setattr(model, "step_cost", checked)  # noqa: B010 (a method of this one object)


def _sentence(system: System, error: Exception) -> str | None:
    policy = find_policy(system.config.policy)
    named = {
        **dict.fromkeys(_modules(policy, Policy), f"policy {system.config.policy}"),
        **dict.fromkeys(_modules(type(system.cost_model), CostModel), f"cost model {system.setup.cost}"),
    }
    cause: BaseException | None = error
    while cause is not None:  # SimPy raises a copy; where it came from is in the original
        found = _innermost(cause.__traceback__, named)
        if found is not None:
            return f"{found[0]} failed: {_told(cause)} ({found[1]})"
        cause = cause.__cause__
    if isinstance(error, RuntimeError) and _modules(policy, Policy):
        return f"policy {system.config.policy} failed: {error}"
    return None


def _modules(kind: type, base: type) -> list[str]:
    """Modules of a class and its ancestors that are not of this project."""
    ours = base.__module__.partition(".")[0]
    found = (ancestor.__module__ for ancestor in kind.__mro__[:-1])
    return [module for module in found if module.partition(".")[0] not in (ours, "abc", "typing")]


def _innermost(trace: TracebackType | None, named: dict[str, str]) -> tuple[str, str] | None:
    found = None
    while trace is not None:
        frame = trace.tb_frame
        who = named.get(frame.f_globals.get("__name__", ""))
        if who is not None:
            found = who, f"{Path(frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
