"""``batchscope model``: fetch models, list them and look at them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scheduler.errors import ConfigError, InputError
from traces.console import common_options, emit
from traces.tables import print_table

from .fetch import SOURCES, fetch
from .locate import EMBEDDED, embedded_folder, known_models, locate

if TYPE_CHECKING:
    from rich.console import Console


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def model() -> None:
    """Fetch models that the engine runs, and look at them."""


@model.command("fetch")
@click.argument("name")
@click.option("--to", type=click.Path(), help="Directory to make; default: models/ and the model's own name.")
@common_options
def fetch_command(name: str, to: str | None, as_json: bool, out: str | None, seed: int) -> None:
    """Download the small model NAME (smollm2) and make its directory, ready for --model."""
    folder = fetch(name, to)
    result = {"model": name, "folder": str(folder), "about": SOURCES[name].about}
    emit(result, as_json=as_json, out=out, render=lambda console: console.print(f"ready: --model {folder}"))


@model.command("list")
@common_options
def list_command(as_json: bool, out: str | None, seed: int) -> None:
    """List the models at hand (the embedded one, those in models/) and those that can be fetched."""
    rows = [_at_hand(folder) for folder in known_models()]
    rows += [{"model": name, "folder": "", "about": f"fetch {name}: {SOURCES[name].about}"} for name in SOURCES]
    emit(rows, as_json=as_json, out=out, render=lambda console: _print_rows(console, rows))


@model.command()
@click.argument("name", default=EMBEDDED)
@common_options
def show(name: str, as_json: bool, out: str | None, seed: int) -> None:
    """Describe the model NAME (embedded, a directory, a Hugging Face id): shape, sizes, tokenizer, KV cache."""
    facts = describe(locate(name))
    emit(facts, as_json=as_json, out=out, render=lambda console: _print_facts(console, facts))


def describe(folder: Path) -> dict[str, Any]:
    """Facts of the model in a directory, as `show` prints them.

    ``kv_bytes_per_token`` is 2 (keys, values) x layers x KV heads x head size x bytes of a number.

    Raises:
        ConfigError: an architecture that the engine does not know, or no weights.
        InputError: a file of the directory cannot be read.
    """
    from .model_config import ModelConfig
    from .tokenizer import Tokenizer

    config, tokenizer = ModelConfig.load(folder), Tokenizer.load(folder)
    shapes = list(_weights(folder))
    return {
        "folder": str(folder),
        "architecture": config.architecture,
        "parameters": sum(count for count, _ in shapes),
        "weight_bytes": sum(size for _, size in shapes),
        "dtype": str(config.dtype).removeprefix("torch."),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_positions": config.max_positions,
        "tied_embeddings": config.tie_word_embeddings,
        "vocabulary": config.vocab_size,
        "tokenizer_vocabulary": tokenizer.vocab_size,
        "eos_token_ids": list(config.eos_token_ids),
        "chat_template": tokenizer.chat_template is not None,
        "kv_bytes_per_token": 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.dtype.itemsize,
    }


def _weights(folder: Path) -> Iterator[tuple[int, int]]:
    """Numbers and bytes of every tensor in the directory's safetensors files, from their headers alone."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"model directory {folder} has no safetensors weights")
    for path in files:
        for name, entry in _header(path).items():
            if name != "__metadata__":
                count = 1
                for size in entry["shape"]:
                    count *= size
                yield count, entry["data_offsets"][1] - entry["data_offsets"][0]


def _header(path: Path) -> dict[str, Any]:
    """The JSON at the front of a safetensors file: 8 bytes of its length, little-endian, then the text."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, path.stat().st_size)))
    except (struct.error, ValueError) as error:
        raise InputError("is not a safetensors file", path=path) from error
    assert isinstance(header, dict)
    return header


def _at_hand(folder: Path) -> dict[str, str]:
    embedded = folder == embedded_folder()
    about = "ships with batchscope; answers simple questions" if embedded else "a model directory"
    return {"model": EMBEDDED if embedded else str(folder), "folder": str(folder), "about": about}


def _print_rows(console: Console, rows: list[dict[str, str]]) -> None:
    from rich.table import Table

    table = Table("model", "about")
    for row in rows:
        table.add_row(row["model"], row["about"])
    print_table(console, table)


def _print_facts(console: Console, facts: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("model", facts["folder"])
    for name, value in facts.items():
        if name != "folder":
            table.add_row(name.replace("_", " "), _spoken(value))
    print_table(console, table)


def _spoken(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
