"""Classes of the user's own, found as `module:Class`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .errors import ConfigError


def modules_of_this_folder() -> None:
    """Let `module:Class` find modules in the current folder, after all that is installed. For command lines.

    Worker processes that multiprocessing starts get the same path.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def class_of_module(name: str, base: type[Any], kind: str) -> type[Any]:
    """The class behind ``module:Class``.

    Args:
        name: the two, with a colon between them.
        base: what it must derive from.
        kind: what `base` is, for the sentence: ``"policy"``.

    Raises:
        ConfigError: it cannot be imported, is not there, is no such class, or lacks a method.
    """
    return checked_class(name, lambda: _attribute(name, base, kind), base, kind)


def checked_class(name: str, load: Callable[[], object], base: type[Any], kind: str) -> type[Any]:
    """What `load` brings, a class derived from `base` that has all its methods; raises ConfigError."""
    try:
        found = load()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # whatever somebody else's module does when it is imported
        raise ConfigError(f"{kind} {name!r} cannot be loaded: {_told(error)}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{kind} {name!r} is not a class derived from {base.__module__}.{base.__name__}")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"{kind} {name!r} cannot be used: its class lacks the method {', '.join(missing)}")
    return found


def _attribute(name: str, base: type[Any], kind: str) -> object:
    where, _, attribute = name.partition(":")
    module = importlib.import_module(where)
    if not hasattr(module, attribute):
        raise ConfigError(
            f"{kind} {name!r} cannot be loaded: module {where!r} has no class {attribute!r}; "
            f"{_candidates(module, attribute, base, kind)}"
        )
    return getattr(module, attribute)


def _candidates(module: ModuleType, wanted: str, base: type[Any], kind: str) -> str:
    classes = [name for name, found in inspect.getmembers(module, inspect.isclass) if _usable(found, base)]
    near = difflib.get_close_matches(wanted, classes, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"it has {', '.join(classes) or f'no {kind}'}{hint}"


def _usable(found: type, base: type[Any]) -> bool:
    return issubclass(found, base) and not inspect.isabstract(found)


def _told(error: BaseException) -> str:
    """The error in one line; its kind too, unless that only repeats that a module or a name is missing."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ImportError | ValueError) and text else f"{type(error).__name__}: {text}"
