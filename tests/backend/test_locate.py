"""A model's name leads to its directory, or to one clear sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.locate import embedded_folder, known_models, locate
from scheduler.errors import ConfigError
from tests.conftest import ROOT


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``models/SmolLM2-135M-Instruct`` under the current folder, with a configuration and nothing else."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_embedded_is_the_model_of_the_package() -> None:
    assert locate("embedded") == embedded_folder()
    assert (locate("embedded") / "model.safetensors").is_file()


def test_a_directory_is_taken_as_it_is(model: Path) -> None:
    assert locate(model) == model
    assert locate("models/SmolLM2-135M-Instruct").resolve() == model
    assert known_models() == [embedded_folder(), Path("models/SmolLM2-135M-Instruct")]


def test_a_directory_without_configuration_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        locate(tmp_path)


def test_a_file_is_no_model(model: Path) -> None:
    with pytest.raises(ConfigError, match="is a file; expected a directory"):
        locate(model / "config.json")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("embeded", "embedded"),
        ("SmolLM2-135M-Instruct", "models/SmolLM2-135M-Instruct"),
        ("models/SmolLM2-135M-Instrct", "models/SmolLM2-135M-Instruct"),
        ("models/smollm2-135m", "models/SmolLM2-135M-Instruct"),
        ("smollm2", "models/SmolLM2-135M-Instruct"),
    ],
)
def test_a_name_with_a_slip_is_answered_with_the_nearest(model: Path, name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown model '{name}' \(did you mean {near}\?\)"):
        locate(name)


def test_a_model_that_can_be_fetched_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"`batchscope model fetch smollm2` makes models/SmolLM2-135M-Instruct"):
        locate("smollm2")


def test_a_name_like_no_other_gets_the_three_ways() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'gpt'; expected 'embedded', a directory .*, or a Hugging"):
        locate("gpt")


def located_offline(name: str, cache: Path) -> str:
    """What a process without network, with its own cache of Hugging Face models, finds (or says)."""
    code = (
        "import sys; from backend.locate import locate; from scheduler.errors import ConfigError\n"
        "try: print(locate(sys.argv[1]))\n"
        "except ConfigError as error: print(error)"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-c", code, name]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=env).stdout.strip()


def test_a_hub_model_comes_out_of_the_local_cache(tmp_path: Path) -> None:
    commit = "0" * 40
    snapshot = tmp_path / "models--some--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text(commit)
    assert located_offline("some/model", tmp_path) == str(snapshot)


def test_a_hub_model_out_of_reach_is_one_sentence_that_says_what_was_tried(tmp_path: Path) -> None:
    said = located_offline("some/model", tmp_path)
    assert said.startswith(
        "model 'some/model': there is no directory some/model, and Hugging Face could not be asked ("
    )
    assert "\n" not in said
    assert "`batchscope model fetch smollm2`" in located_offline("models/SmolLM2-135M-Instruct", tmp_path)
