"""Which load generator wrote a result file, and reading it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import ConfigError, InputError

from .client_run import ClientRun
from .import_bench import MARKS, read_bench
from .import_guidellm import read_guidellm

BENCHMARKS = "benchmarks"
"""The field of guidellm's files that holds them."""


def is_result(path: str | Path) -> bool:
    """Whether a file is a load generator's result: a JSON object over many lines, or one line with its fields."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError):
        return False
    if not first.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(first)
    except ValueError:
        return first.strip() == "{" and any(_known(document) for document in _documents(Path(path)))
    return _known(found)


def read_result(path: str | Path, *, benchmark: int | None = None) -> ClientRun:
    """The run in a result file of ``vllm bench serve`` or of guidellm.

    Args:
        path: the file.
        benchmark: which one, from 1, of a file that holds several; None: it holds one.

    Raises:
        InputError: it is none, or a field is wrong.
        ConfigError: it holds several, and none was chosen; or not as many as `benchmark` says.
    """
    path = Path(path)
    found = [(read, entry) for document in _documents(path) for read, entry in _runs(document)]
    if not found:
        raise InputError("is no result of vllm bench serve or guidellm; expected its JSON", path=path)
    if benchmark is None and len(found) > 1:
        raise ConfigError(
            f"{path} holds {len(found)} benchmarks; expected one (validate takes --benchmark 1 to {len(found)})"
        )
    which = benchmark or 1
    if not 1 <= which <= len(found):
        raise ConfigError(f"benchmark is {which}; expected 1 to {len(found)}, as many as {path} holds")
    read, entry = found[which - 1]
    return read(entry, path)


def _runs(document: Any) -> list[tuple[Callable[[Mapping[str, Any], Path], ClientRun], Any]]:
    """Reader and entry of each run in a JSON document."""
    if not isinstance(document, dict):
        return []
    if isinstance(document.get(BENCHMARKS), list):
        return [(read_guidellm, entry) for entry in document[BENCHMARKS] if isinstance(entry, dict)]
    return [(read_bench, document)] if all(name in document for name in MARKS) else []


def _known(document: Any) -> bool:
    return bool(_runs(document))


def _documents(path: Path) -> list[Any]:
    """The JSON documents of a file: one, or several behind each other (``--append-result``)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text; expected JSON", path=path) from error
    decoder, documents, at = json.JSONDecoder(), [], 0
    while (at := _past_space(text, at)) < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise InputError(f"is not whole JSON: {error}", path=path) from error
        documents.append(document)
    return documents


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
