"""``python -m backend.training --out DIR``: make the embedded model anew."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traces.console import atomic_path

from .bpe import save_tokenizer, train_tokenizer
from .corpus import digest, held_out

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    from .train import Recipe

PER_PHRASING = 10
"""Held-out questions asked for each held-out phrasing."""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make; must not exist yet.")
@click.option("--steps", type=click.IntRange(min=1), help="Optimizer steps, if not those of the recipe.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(out: Path, steps: int | None, seed: int) -> None:
    """Train the embedded model from nothing and write it to a directory, with a record of how it went."""
    from .train import MAX_POSITIONS, Recipe, train

    recipe = Recipe(seed=seed) if steps is None else Recipe(seed=seed, steps=steps)
    tokenizer = train_tokenizer(seed)
    started_s = time.process_time()  # of this thread's work alone: a busy machine does not lengthen it
    model = train(tokenizer, recipe, _report)
    seconds = time.process_time() - started_s
    with atomic_path(out) as folder:
        folder.mkdir()
        save_model(model, folder)
        save_tokenizer(tokenizer, folder, MAX_POSITIONS)
        record = _record(recipe, seconds, folder, tokenizer)
        (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(record, indent=2))


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write configuration and weights, the weights rounded to bfloat16."""
    model.generation_config.do_sample = False
    model.bfloat16().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone, but belongs to a package


def _record(recipe: Recipe, seconds: float, folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """How it was made and how well it answers, measured on the weights as they were written."""
    import dataclasses

    import torch
    import transformers

    from .score import score

    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    result = score(model, tokenizer, list(held_out(recipe.seed + 2, PER_PHRASING)))
    topics = {name: f"{result.right[name]}/{asked}" for name, asked in sorted(result.asked.items())}
    for question, text in result.wrong:
        click.echo(f"wrong: {question!r} -> {text!r}", err=True)
    return {
        "recipe": dataclasses.asdict(recipe),
        "corpus_sha256": digest(recipe.seed, 1000),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "cpu_seconds": round(seconds),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "held_out_accuracy": round(result.accuracy, 4),
        "held_out_ended": f"{result.ended}/{result.asked.total()}",
        "held_out_by_topic": topics,
    }


def _report(step: int, loss: float) -> None:
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.4f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
