"""Errors a user can cause, as one tree: each is one clear sentence, shown without a stack trace (exit code 2).

UserError
├── ConfigError       a setting out of range, an unknown name, a YAML typo
├── InputError        a file that cannot be read as what it should be (names file, line, field)
└── RequestRefused    a request that can never be served with this configuration
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave us; `str(error)` is the sentence to show."""


class ConfigError(UserError):
    """A setting is wrong; the sentence names the field and what is accepted."""


class InputError(UserError):
    """A file is wrong; the sentence names the file, the line and the field where they are known.

    Args:
        expected: what is wrong and what was expected, e.g. ``"input_length is -3; expected a whole number >= 1"``.
        path: the file, as the user named it.
        line: 1-based line number.
    """

    def __init__(self, expected: str, *, path: object = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {expected}" if where else expected)
        self.line = line


class RequestRefused(UserError):
    """A request that could never run under this configuration; the sentence says what would let it."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not among `known`, with the nearest one suggested."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return ConfigError(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}")
