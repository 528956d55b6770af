"""What a policy is, and how policies are found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, ClassVar, Literal

from ..errors import RequestRefused, unknown_name
from ..plugins import checked_class, class_of_module

if TYPE_CHECKING:
    from ..config import SchedulerConfig
    from ..request import Request
    from ..step import Step

ENTRY_POINTS = "batchscope.policies"


class Policy(ABC):
    """Decides who runs in a step. Subclass it, implement `plan`, and name it ``module:Class`` or by an entry point.

    Attributes:
        name: how users call it.
        layout: its own layout, used when the configuration says ``auto``.
        holds: ended rows keep their seat and burn on until the whole batch has ended.
        budgeted: the token budget binds it.
        reserves: it gives each request all its KV blocks at admission and never preempts.
        slot_order: rows, blocks and results go by slot number rather than by admission.
        splits_prompts: a prompt may be computed in several steps.
        repeats: after a step of decodes alone, it plans the same again as long as no request comes, ends or leaves
            (nothing in it depends on the time or on how often it was asked); then it is not asked.
    """

    name: ClassVar[str]
    layout: ClassVar[Literal["padded", "ragged"]] = "ragged"
    holds: ClassVar[bool] = False
    budgeted: ClassVar[bool] = True
    reserves: ClassVar[bool] = False
    slot_order: ClassVar[bool] = False
    splits_prompts: ClassVar[bool] = False
    repeats: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    @abstractmethod
    def plan(self, step: Step) -> None:
        """Plan one step by calling `step.run_all` and `step.admit`."""

    def refuse(self, request: Request) -> RequestRefused | None:
        """Why this policy could never serve the request, or None."""
        return None


def builtin_policies() -> dict[str, type[Policy]]:
    """The policies that come with the scheduler, by name."""
    from . import chunked, orca, prefill_first, slots, static

    known = (chunked.Chunked, static.Static, slots.Slots, orca.Orca, prefill_first.PrefillFirst)
    return {policy.name: policy for policy in known}


def policy_names() -> list[str]:
    """All names that `find_policy` knows, without ``module:Class`` ones."""
    return [*builtin_policies(), *(point.name for point in entry_points(group=ENTRY_POINTS))]


def find_policy(name: str) -> type[Policy]:
    """The policy class called `name` (built in, an entry point, or ``module:Class``); raises ConfigError."""
    builtin = builtin_policies()
    if name in builtin:
        return builtin[name]
    if ":" in name:
        return class_of_module(name, Policy, "policy")
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return checked_class(name, point.load, Policy, "policy")
    raise unknown_name("policy", name, policy_names())
