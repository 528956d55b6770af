"""Settings as the forms see them: names, choices, defaults and explanations, all read off the settings' own classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from scheduler.config import SchedulerConfig
from scheduler.policies import policy_names
from simulator.costs import cost_model_names
from simulator.hardware import hardware_names
from simulator.models import WIDTHS, model_names
from simulator.options import DERIVED
from simulator.setup import SYSTEM_SETTINGS, Setup
from traces.setting_options import attribute_texts

SHARED = ("model", "hardware", "cost")
"""Asked for once, for all variants; a variant may still have its own."""
MAIN = (
    "policy", "layout", "max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size", "enable_prefix_caching",
)  # fmt: skip
"""What a variant's card shows at once; all others are under More settings."""
_WORDS = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: as everywhere.
        kind: type of its values.
        default: what holds where it is not given; text where that is worked out.
        choices: the names it takes; empty where it takes any.
        help: one sentence.
        free: choices are what is on offer, and it takes other values too (a cost model with options).
    """

    name: str
    kind: type
    default: Any
    choices: tuple[str, ...]
    help: str
    free: bool = False

    def text(self, value: Any) -> str:
        """A value as people type it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, list | tuple):
            return "+".join(map(str, value)) or "none"
        return str(value)

    def value(self, typed: Any) -> Any:
        """What was typed, as the setting takes it; None: nothing. What cannot be read stays as it is: the check of the
        settings then names it.
        """
        if typed is None or (isinstance(typed, str) and not typed.strip()):
            return None
        if isinstance(typed, list | tuple):
            return tuple(typed)
        if not isinstance(typed, str):
            return int(typed) if self.kind is int and float(typed).is_integer() else typed
        try:
            return self._parsed(typed.strip())
        except (ValueError, KeyError):
            return typed.strip()

    def _parsed(self, text: str) -> Any:
        if self.kind is bool:
            return _WORDS[text.lower()]
        if self.kind is tuple:
            return () if text.lower() == "none" else tuple(map(int, text.replace(",", "+").split("+")))
        return self.kind(text)


def settings() -> Mapping[str, Setting]:
    """All settings of a simulated system by name, those of the system first."""
    return _settings()


@cache
def _settings() -> dict[str, Setting]:
    return {
        field.name: _setting(field.name, field.default, kind)
        for kind in (Setup, SchedulerConfig)
        for field in fields(kind)
        if kind is SchedulerConfig or field.name in SYSTEM_SETTINGS
    }


def _setting(name: str, default: Any, kind: type) -> Setting:
    hint = get_type_hints(kind)[name]
    listed = get_args(hint) if get_origin(hint) is Literal else _OFFERED.get(name, tuple)()
    return Setting(
        name, type(default), DERIVED.get(name, default), tuple(listed), attribute_texts(kind).get(name, ""),
        free=name == "cost",
    )  # fmt: skip


_OFFERED: Mapping[str, Any] = {
    "model": model_names,
    "hardware": hardware_names,
    "cost": cost_model_names,
    "policy": policy_names,
    "weight_dtype": lambda: WIDTHS,
    "kv_dtype": lambda: WIDTHS,
}
"""Settings whose values are names kept elsewhere."""


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The settings that differ: name, value here, value there, as people type them.

    Args:
        one: given settings.
        other: those they are held against.
    """
    known = settings()
    found = []
    for name, setting in known.items():
        here, there = (given.get(name, setting.default) for given in (one, other))
        if setting.text(here) != setting.text(there):
            found.append((name, setting.text(here), setting.text(there)))
    return found
