"""``--config FILE.yaml``: a command's options from a file; what is wrong in it is named with its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError, UserError

if TYPE_CHECKING:
    import yaml

_KEY = "traces.config_file"
"""Where a click context keeps the file that was read."""


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    key: str
    setting: Any


@dataclass(slots=True)
class ConfigFile:
    """A configuration file that a command has read: its path, and the line of each option that it sets."""

    path: str
    lines: dict[str, _Line] = field(default_factory=dict)

    def wrong(self, line: _Line, sentence: str) -> ConfigError:
        """The error for a line."""
        return ConfigError(f"{self.path}, line {line.number}: {sentence}")


def load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Click callback of ``--config``: the file's values become the defaults of the command's options.

    Raises ConfigError for a file that is no flat mapping, a key that is no option or given twice, and a value that
    its option does not take.
    """
    if value is None:
        return
    file = ctx.meta[_KEY] = ConfigFile(value)
    names = _option_names(ctx.command, param)
    defaults: dict[str, Any] = {}
    for line in _read_lines(value):
        option = names.get(line.key.replace("-", "_"))
        if option is None or option.name is None:
            raise file.wrong(line, _unknown_key(line.key, names))
        if option.name in file.lines:
            before = file.lines[option.name]
            raise file.wrong(line, f"{line.key!r} is set already, in line {before.number} ({before.key!r})")
        file.lines[option.name] = line
        if line.setting is not None:
            defaults[option.name] = _checked(ctx, file, line, option)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def config_path(ctx: click.Context) -> str | None:
    """The configuration file that a command has read."""
    file = ctx.meta.get(_KEY)
    return None if file is None else file.path


def located(ctx: click.Context, error: ConfigError) -> ConfigError:
    """The same error with file and line in front when the setting that it is about came from the configuration."""
    file: ConfigFile | None = ctx.meta.get(_KEY)
    for name, line in {} if file is None else file.lines.items():
        from_file = ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
        if file is not None and from_file and _is_about(str(error), name, line.setting):
            return file.wrong(line, str(error))
    return error


def _is_about(sentence: str, name: str, setting: Any) -> bool:
    """Whether an error's sentence names a setting and its value, or quotes its value."""
    values = [text for text in re.split(r"[,=+]", _as_text(setting)) if text]
    if any(f"{text.strip()!r}" in sentence for text in values):
        return True
    named = re.search(rf"\b{name.replace('_', '[-_]')}\b", sentence)
    return named is not None and any(re.search(rf"(?<![\w.]){re.escape(text)}(?!\w)", sentence) for text in values)


def _option_names(command: click.Command, config: click.Parameter) -> dict[str, click.Parameter]:
    """Every spelling a YAML key may have -> its parameter."""
    names: dict[str, click.Parameter] = {}
    for param in command.params:
        if param is config:
            continue
        for spelling in [param.name or "", *param.opts]:
            if spelling.startswith("--") or not spelling.startswith("-"):
                names[spelling.lstrip("-").replace("-", "_")] = param
    return names


def _unknown_key(key: str, names: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0].replace('_', '-')!r}?)" if near else ""
    return f"unknown key {key!r}{hint}"


def _read_lines(path: str) -> Iterator[_Line]:
    import yaml

    try:
        loader = yaml.SafeLoader(Path(path).read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            found = type(loader.construct_document(root)).__name__
            raise ConfigError(f"{path}: expected 'option: value' lines, found a {found}")
        yield from [_line(path, loader, key, value) for key, value in root.value]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration: {reason}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = path if mark is None else f"{path}, line {mark.line + 1}"
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or 'syntax error'}") from error


def _line(path: str, loader: yaml.SafeLoader, key: yaml.Node, value: yaml.Node) -> _Line:
    number = key.start_mark.line + 1
    _refuse_twice(path, value)
    try:
        name, setting = loader.construct_object(key, deep=True), loader.construct_object(value, deep=True)
    except ValueError as error:  # a date that is none
        raise ConfigError(f"{path}, line {number}: not a valid value: {error}") from error
    return _Line(number, str(name), setting)


def _refuse_twice(path: str, value: yaml.Node) -> None:
    """Raise for a group of settings (a grid) that has a key twice: YAML would silently take the last."""
    import yaml

    seen: dict[str, int] = {}
    for key, _ in value.value if isinstance(value, yaml.MappingNode) else ():
        number = key.start_mark.line + 1
        if str(key.value) in seen:
            raise ConfigError(f"{path}, line {number}: {key.value!r} is set already, in line {seen[str(key.value)]}")
        seen[str(key.value)] = number


def _checked(ctx: click.Context, file: ConfigFile, line: _Line, option: click.Parameter) -> object:
    """A setting as click takes it, refused here, where its line is known, if the option does not take it."""
    wanted = _not_taken(line.setting, option)
    if wanted is not None:
        raise file.wrong(line, f"{line.key} is {line.setting!r}; expected {wanted}")
    value = _as_option_value(line.setting, option)
    try:
        option.process_value(ctx, value)
    except click.BadParameter as error:
        raise file.wrong(line, f"{line.key}: {error.message.rstrip('.')}") from error
    except UserError as error:
        raise file.wrong(line, f"{line.key}: {error}") from error
    return value


def _not_taken(setting: object, option: click.Parameter) -> str | None:
    """What the option expects, if `setting` is of a kind that click would bend into something else."""
    kind, several = option.type, option.multiple or option.nargs != 1
    if isinstance(setting, dict):
        return None if option.multiple else "one value, not a group of settings"
    if isinstance(setting, list):
        if any(isinstance(item, dict) for item in setting):
            return "values, not groups of settings"
        return None if several or isinstance(kind, click.types.StringParamType) else "one value, not a list"
    if isinstance(setting, bool) and not isinstance(kind, click.types.BoolParamType):
        return "a number" if isinstance(kind, _NUMBERS) else "text; true, false, yes, no, on and off need quotes"
    if isinstance(setting, float) and isinstance(kind, click.types.IntParamType):
        return "a whole number"
    return None


_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)


def _as_option_value(setting: object, option: click.Parameter) -> object:
    """A list becomes ``a,b`` for an option that takes one comma-separated text, a mapping ``name=a,b`` for one that may
    be given several times.
    """
    if isinstance(setting, dict):
        return [f"{name}={_as_text(value)}" for name, value in setting.items()]
    if option.multiple:
        return setting if isinstance(setting, list) else [setting]
    if isinstance(setting, list) and option.nargs == 1:
        return ",".join(str(item) for item in setting)
    # click reads 1 and 0 as a switch only in text
    return str(setting) if isinstance(option.type, click.types.BoolParamType) else setting


def _as_text(value: object) -> str:
    """A value in ``name=value``: a list with commas, a list within it with ``+``."""
    if isinstance(value, dict):
        return ",".join(f"{name}={_as_text(item)}" for name, item in value.items())
    if not isinstance(value, list):
        return str(value)
    return ",".join("+".join(map(str, item)) or "none" if isinstance(item, list) else str(item) for item in value)
