"""Workloads as a page describes them: a mapping of plain values, never a path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import click
import numpy as np

from scheduler.errors import ConfigError, unknown_name
from traces.arrivals import parse_arrivals
from traces.cli_workload import generate as generate_command
from traces.generate import UNIT, Generator, Prefixes, Sessions
from traces.lengths import Lengths, parse_lengths
from traces.presets import PRESETS, at_rate, resolve_workload
from traces.specs import parse_spec
from traces.workload import IntArray, Workload

MOST_REQUESTS = 200_000
"""No workload made from a page has more; twice what the pages are made for."""
MOST_LISTED = 10_000
"""Requests written out one by one."""
MOST_PARTS = 8
"""Workloads mixed into one."""
MOST_UNITS = 16_000_000
"""Units of content (16 tokens each) that a page may ask for: about a gigabyte while they are made."""
MOST_TEXT = 300
"""Characters of one field."""
NEVER_WRONG = 10**12
"""Whole numbers beyond this are a slip of the pen, and too long for the arithmetic of the readers."""
_ENDLESS = re.compile(r"\d{13}|[\d.][eE][+-]?\d{3}")


class UploadedWorkloads(Protocol):
    """Where uploaded workloads are found."""

    def workload(self, upload_id: str) -> Workload:
        """The workload behind an id; raises UserError."""


def workload_of(spec: Mapping[str, Any], uploads: UploadedWorkloads | None = None, *, seed: int = 0) -> Workload:
    """The workload that `spec` describes; same spec and seed, same requests.

    Args:
        spec: `kind` and the fields of that kind::

            {"kind": "preset", "name": "azure-conv", "requests": 500, "rate": 4.0}
            {"kind": "generate", "requests": 500, "arrivals": "poisson:rate=8", "prompt": "lognormal:mean=500,sigma=1",
             "output": "constant:200", "prefixes": "groups=4,length=240", "sessions": "turns=3,max_context=32768",
             "max_tokens": 0}                          # as `batchscope workload generate`, the same defaults
            {"kind": "upload", "id": "...", "requests": 500, "rate": 4.0}
            {"kind": "list", "arrival_s": [0.0, 0.5], "prompt_tokens": [512, 65535], "output_tokens": [64, 64]}
            {"kind": "mix", "parts": [spec, spec]}     # in order of arrival

        uploads: where an upload's id is looked up.
        seed: of all randomness.

    Raises:
        ConfigError: a field that is unknown, missing, of the wrong type or out of range; it is named.
        UserError: there is no such upload.
    """
    check_spec(spec)
    return _KINDS[spec["kind"]][0](spec, uploads, seed)


def check_spec(spec: object) -> None:
    """Raise ConfigError for a spec of no known kind, or with a field that its kind does not have."""
    if not isinstance(spec, Mapping):
        raise ConfigError(f"workload is {_shown(spec)}; expected a mapping with a kind")
    kind = text_field("workload kind", spec.get("kind"))
    if kind not in _KINDS:
        raise unknown_name("workload kind", kind, _KINDS)
    fields = _KINDS[kind][1]
    for name in spec:
        if name != "kind" and name not in fields:
            raise unknown_name(f"field of workload kind {kind}", str(name)[:MOST_TEXT], fields)


def text_field(name: str, value: object) -> str:
    """`value`, a text of sensible length without numbers that no machine holds; raises ConfigError."""
    if not isinstance(value, str) or len(value) > MOST_TEXT or not value.isprintable():
        raise ConfigError(f"{name} is {_shown(value)}; expected one line of at most {MOST_TEXT} characters")
    if _ENDLESS.search(value):
        raise ConfigError(f"{name} is {_shown(value)}; expected numbers of at most 12 digits")
    return value


def whole_field(name: str, value: object, *, least: int, most: int) -> int:
    """`value`, a whole number from `least` to `most`; raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is {_shown(value)}; expected a whole number from {least:,} to {most:,}")
    return value


def number_field(name: str, value: object, *, above: float) -> float:
    """`value`, a finite number above `above`; raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= NEVER_WRONG:
        raise ConfigError(f"{name} is {_shown(value)}; expected a number > {above:g}")
    return float(value)


def _preset(spec: Mapping[str, Any], uploads: UploadedWorkloads | None, seed: int) -> Workload:
    name = text_field("preset name", spec.get("name"))
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return resolve_workload(name, requests=_requests(spec), rate=_rate(spec), seed=seed)


def _upload(spec: Mapping[str, Any], uploads: UploadedWorkloads | None, seed: int) -> Workload:
    if uploads is None:
        raise ConfigError("workload kind upload is not known here; expected preset, generate or list")
    upload_id = spec.get("id")
    if not isinstance(upload_id, str):
        raise ConfigError(f"upload id is {_shown(upload_id)}; expected a text")
    found = uploads.workload(upload_id)
    requests, rate = _requests(spec), _rate(spec)
    taken = found if requests is None else found.head(requests)
    return taken if rate is None else at_rate(taken, rate)


def _generate(spec: Mapping[str, Any], uploads: UploadedWorkloads | None, seed: int) -> Workload:
    given = {**_GENERATE, **{name: value for name, value in spec.items() if value is not None}}
    texts = {name: text_field(name, given[name]) for name in ("arrivals", "prompt", "output")}
    requests = whole_field("requests", given["requests"], least=1, most=MOST_REQUESTS)
    generator = Generator(
        parse_arrivals(texts["arrivals"]),
        _lengths(texts["prompt"], "prompt"),
        _lengths(texts["output"], "output"),
        prefixes=_part("prefixes", given.get("prefixes"), Prefixes),
        sessions=_part("sessions", given.get("sessions"), Sessions),
        max_tokens=whole_field("max_tokens", given["max_tokens"], least=0, most=NEVER_WRONG),
    )
    _check_content(generator, requests)
    return generator.workload(requests, seed=seed)


def generate_defaults() -> dict[str, Any]:
    """What the command line takes where nothing is given."""
    options = [option for option in generate_command.params if isinstance(option, click.Option)]
    names = ("requests", "arrivals", "prompt", "output", "max_tokens")
    return {str(option.name): option.default for option in options if option.name in names}


_GENERATE = generate_defaults()


def _lengths(text: str, what: str) -> Lengths:
    if text.partition(":")[0].strip() == "empirical":
        raise ConfigError(f"{what} is {text!r}; expected constant, uniform, lognormal or zipf (no file is read here)")
    return parse_lengths(text, what)


def _part(name: str, value: object, kind: type[Any]) -> Any:
    """The prefixes or sessions of a text as on the command line; None where there are none."""
    if value is None or value == "":
        return None
    return parse_spec("option", f"{name}:{text_field(name, value)}", {name: kind})


def _check_content(generator: Generator, requests: int) -> None:
    """Refuse what would fill the memory of the machine, by the most content that these settings could mean."""
    prefixes, sessions = generator.prefixes, generator.sessions
    if prefixes is not None:
        whole_field("prefixes groups", prefixes.groups, least=1, most=1_000_000)
    if sessions is None:
        units = 0 if prefixes is None else requests * (prefixes.length // UNIT)
    else:
        if not sessions.max_context:
            raise ConfigError("sessions has no max_context; expected the longest conversation, as in max_context=32768")
        number_field("sessions think", sessions.think, above=-1)
        if sessions.turns * requests > 10 * MOST_REQUESTS:
            raise ConfigError(f"sessions turns is {sessions.turns:g}; expected fewer turns or fewer requests")
        units = requests * -(-sessions.max_context // UNIT)
    if units > MOST_UNITS:
        raise ConfigError(
            f"this workload has up to {units * UNIT:,} tokens of shared content; expected at most "
            f"{MOST_UNITS * UNIT:,}: fewer requests, or shorter prefixes or conversations"
        )


def _list(spec: Mapping[str, Any], uploads: UploadedWorkloads | None, seed: int) -> Workload:
    times = np.array([number_field("arrival_s", value, above=-1e-9) for value in _column(spec, "arrival_s")])
    if np.any(np.diff(times) < 0):
        raise ConfigError("arrival_s goes back in time; expected seconds that never decrease")
    prompt, output = _whole_column(spec, "prompt_tokens"), _whole_column(spec, "output_tokens")
    if not len(times) == len(prompt) == len(output):
        raise ConfigError("arrival_s, prompt_tokens and output_tokens differ in length; expected one entry a request")
    return Workload(np.maximum(times, 0.0), prompt, output, name="listed requests")


def _column(spec: Mapping[str, Any], name: str) -> list[Any]:
    values = spec.get(name)
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MOST_LISTED:
        raise ConfigError(f"{name} is {_shown(values)}; expected a list of 1 to {MOST_LISTED:,} numbers")
    return list(values)


def _whole_column(spec: Mapping[str, Any], name: str) -> IntArray:
    values = [whole_field(name, value, least=1, most=NEVER_WRONG) for value in _column(spec, name)]
    return np.array(values, dtype=np.int64)


def _mix(spec: Mapping[str, Any], uploads: UploadedWorkloads | None, seed: int) -> Workload:
    parts = spec.get("parts")
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= MOST_PARTS:
        raise ConfigError(f"parts is {_shown(parts)}; expected a list of 1 to {MOST_PARTS} workloads")
    if any(isinstance(part, Mapping) and part.get("kind") == "mix" for part in parts):
        raise ConfigError("a part of the mix is itself a mix; expected all parts in one list")
    # each part draws from a seed of its own, or their arrivals would move together
    made = [workload_of(part, uploads, seed=seed + place) for place, part in enumerate(parts)]
    if any(part.hash_ids is not None or part.session is not None for part in made):
        raise ConfigError("a part of the mix has prefixes or sessions; expected parts without shared content")
    if sum(map(len, made)) > MOST_REQUESTS:
        raise ConfigError(f"this mix has {sum(map(len, made)):,} requests; expected at most {MOST_REQUESTS:,}")
    return _merged(made)


def _merged(parts: list[Workload]) -> Workload:
    """All requests in order of arrival; those of one instant in order of the parts."""
    times = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(times, kind="stable")
    limits = [part.output_tokens if part.max_tokens is None else part.max_tokens for part in parts]
    limited = any(part.max_tokens is not None for part in parts)
    return Workload(
        times[order],
        np.concatenate([part.prompt_tokens for part in parts])[order],
        np.concatenate([part.output_tokens for part in parts])[order],
        max_tokens=np.concatenate(limits)[order] if limited else None,
        name=" + ".join(part.name for part in parts),
    )


def _requests(spec: Mapping[str, Any]) -> int | None:
    value = spec.get("requests")
    return None if value is None else whole_field("requests", value, least=1, most=MOST_REQUESTS)


def _rate(spec: Mapping[str, Any]) -> float | None:
    value = spec.get("rate")
    return None if value is None else number_field("rate", value, above=0)


def _shown(value: object) -> str:
    """A value in a sentence, cut to what a line holds; a whole number too long for Python to print is only named."""
    if isinstance(value, int) and abs(value) > 10**100:
        return "a number of over 100 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_Make = Callable[[Mapping[str, Any], UploadedWorkloads | None, int], Workload]
_KINDS: dict[str, tuple[_Make, tuple[str, ...]]] = {
    "preset": (_preset, ("name", "requests", "rate")),
    "generate": (_generate, ("requests", "arrivals", "prompt", "output", "prefixes", "sessions", "max_tokens")),
    "upload": (_upload, ("id", "requests", "rate")),
    "list": (_list, ("arrival_s", "prompt_tokens", "output_tokens")),
    "mix": (_mix, ("parts",)),
}
"""Kind -> how it is made, and its fields."""
