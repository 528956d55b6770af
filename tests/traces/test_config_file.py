"""Configuration files: defaults that flags win over, and mistakes that are named with their line."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scheduler.errors import ConfigError, InputError, unknown_name
from traces.console import common_options, emit


@click.command()
@click.argument("path", default="none")
@click.option("--max-num-seqs", type=int, default=4)
@click.option("--rate", type=float)
@click.option("--policies", default="chunked")
@click.option("--tag", multiple=True)
@click.option("--fast/--no-fast", default=None)
@click.option("--kind", type=click.Choice(["a", "b"]))
@common_options
def show(
    path: str, max_num_seqs: int, policies: str, as_json: bool, out: str | None, seed: int, **more: object
) -> None:
    for name in policies.split(","):
        if name not in ("static", "chunked"):
            raise unknown_name("policy", name, ["static", "chunked"])
    if max_num_seqs < 1:
        raise ConfigError(f"max_num_seqs is {max_num_seqs}; expected a whole number >= 1")
    if path == "bad":
        raise InputError("max_num_seqs is 9 in this file", path="w.csv")
    result = {"path": path, "max_num_seqs": max_num_seqs, "policies": policies, "seed": seed, **more}
    emit(result, as_json=as_json, out=out, render=lambda console: None)


def run(file: Path, text: str, *args: str) -> dict[str, object]:
    file.write_text(text)
    done = CliRunner().invoke(
        show, ["--json", "--config", str(file), *args], catch_exceptions=False, standalone_mode=False
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def test_a_config_file_gives_defaults_and_flags_win(file: Path) -> None:
    text = (
        "max-num-seqs: 9\nseed: 3\njson: true\npath: x.csv\npolicies: [static, chunked]\ntag: [a, b]\nout:\n"
        "fast: 1\nrate: 2\n"
    )
    assert run(file, text, "--seed", "5") == {
        "path": "x.csv", "max_num_seqs": 9, "policies": "static,chunked", "seed": 5, "tag": ["a", "b"], "fast": True,
        "rate": 2.0, "kind": None,
    }  # fmt: skip


@pytest.mark.parametrize(("setting", "tags"), [
    ("a", ["a"]), ("[a]", ["a"]), ("{seed: [1, 2], p: x}", ["seed=1,2", "p=x"]),
    ("{sizes: [[1, 2], []]}", ["sizes=1+2,none"]),
])  # fmt: skip
def test_an_option_that_may_be_repeated_takes_one_value_a_list_or_a_group(
    file: Path, setting: str, tags: list[str]
) -> None:
    assert run(file, f"tag: {setting}\n")["tag"] == tags


@pytest.mark.parametrize(("line", "sentence"), [
    ("max_num_seq: 9", r"unknown key 'max_num_seq' \(did you mean 'max-num-seqs'\?\)"),
    ("max_num_seqs: abc", "max_num_seqs: 'abc' is not a valid integer"),
    ("max_num_seqs: -4", "max_num_seqs is -4; expected a whole number >= 1"),
    ("max-num-seqs: 1.5", "max-num-seqs is 1.5; expected a whole number"),
    ("max_num_seqs: yes", "max_num_seqs is True; expected a number"),
    ("max_num_seqs: [1, 2]", "expected one value, not a list"),
    ("rate: true", "rate is True; expected a number"),
    ("rate: fast", "rate: 'fast' is not a valid float"),
    ("policies: chunkd", r"unknown policy 'chunkd' \(did you mean 'chunked'"),
    ("policies: [static, chunkd]", "unknown policy 'chunkd'"),
    ("policies: on", "policies is True; expected text"),
    ("json: maybe", "json: 'maybe' is not a valid boolean"),
    ("fast: maybe", "fast: 'maybe' is not a valid boolean"),
    ("kind: c", "kind: 'c' is not one of"),
    ("kind: [a]", "expected one value, not a list"),
    ("out: [a, b]", "expected one value, not a list"),
    ("seed: -1", "seed: -1 is not in the range"),
    ("seed: {x: 1}", "expected one value, not a group of settings"),
    ("tag: [{x: 1}]", "expected values, not groups of settings"),
    ("tag: {x: 1, x: 2}", "'x' is set already"),
    ("path: a\nseed: 1\npath: b", "'path' is set already, in line 2"),
    ("max_num_seqs: 1\nmax-num-seqs: 2", "'max-num-seqs' is set already, in line 2"),
    ("path: 2024-99-99", "not a valid value"),
    ("path: !!python/object:os.system x", "not valid YAML"),
    ("a: [1\nb: 2", "not valid YAML"),
])  # fmt: skip
def test_a_mistake_is_named_with_file_and_line(file: Path, line: str, sentence: str) -> None:
    last = 2 + line.count("\n")
    with pytest.raises(ConfigError, match=rf"^{file}, line {last}: .*{sentence}"):
        run(file, f"# settings\n{line}\n")


def test_only_the_settings_of_the_file_are_blamed_on_it(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"^max_num_seqs is -4; "):
        run(file, "max_num_seqs: 3\n", "--max-num-seqs", "-4")
    with pytest.raises(InputError, match=r"^w\.csv: max_num_seqs is 9"):
        run(file, "max_num_seqs: 9\npath: bad\n")


@pytest.mark.parametrize(("text", "sentence"), [("- 1\n", "found a list"), ("\x00", "not valid YAML")])
def test_a_file_that_is_no_mapping_is_one_sentence(file: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(file, text)


def test_an_empty_file_changes_nothing(file: Path) -> None:
    assert run(file, "# nothing\n")["max_num_seqs"] == 4


def test_a_missing_config_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot read the configuration: No such file"):
        CliRunner().invoke(
            show, ["--config", str(tmp_path / "gone.yaml")], catch_exceptions=False, standalone_mode=False
        )
