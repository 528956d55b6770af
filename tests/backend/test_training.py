"""The making of the embedded model comes out the same every time, and scores it on words it never saw."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.locate import embedded_folder
from backend.training.batches import Batch, batches, encoded
from backend.training.bpe import train_tokenizer
from backend.training.corpus import BEGIN, END_IDS, STOP, TURN, chat_prompt, digest, held_out, samples
from backend.training.dice import Dice
from backend.training.muon import orthogonal
from backend.training.topics import TOPICS
from backend.training.train import Recipe, train

SHORT = Recipe(steps=3, tokens=128, warmup=1)


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Training asks torch for deterministic algorithms and one thread; the other tests get back what they had."""
    strict, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(strict)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def record() -> dict[str, object]:
    """What was written down when the embedded model was made."""
    loaded = json.loads((embedded_folder() / "training.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_the_corpus_is_byte_for_byte_that_of_the_embedded_model(record: dict[str, object]) -> None:
    assert digest(0, 1000) == record["corpus_sha256"]
    assert digest(1, 1000) != record["corpus_sha256"]


def test_the_tokenizer_is_learned_again_byte_for_byte() -> None:
    assert json.loads(train_tokenizer(0).to_str()) == json.loads((embedded_folder() / "tokenizer.json").read_text())


def test_the_recipe_is_the_one_the_embedded_model_was_made_by(record: dict[str, object]) -> None:
    assert dataclasses.asdict(Recipe()) == record["recipe"]


def test_two_short_trainings_give_the_same_weights() -> None:
    tokenizer = train_tokenizer(0, texts=100)
    losses: list[float] = []
    first = train(tokenizer, SHORT, lambda step, loss: losses.append(loss)).state_dict()
    second = train(tokenizer, SHORT).state_dict()
    assert losses[-1] < losses[0]
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = train(tokenizer, dataclasses.replace(SHORT, seed=1, steps=1)).state_dict()
    assert not torch.equal(first["model.norm.weight"], other["model.norm.weight"])


def test_every_sample_begins_and_ends_as_a_model_expects() -> None:
    for sample in islice(samples(3), 500):
        text = "".join(piece.text for piece in sample)
        assert text.startswith(BEGIN)
        assert text.count(BEGIN) == 1
        assert text.endswith((TURN, STOP))
        assert sample[-1].learned
        assert not sample[0].learned


def test_held_out_phrasings_are_in_no_training_topic() -> None:
    trained = {phrasing for topic in TOPICS for phrasing in topic.phrasings}
    assert not trained & {phrasing for topic in TOPICS for phrasing in topic.held_out}
    assert sum(len(topic.held_out) for topic in TOPICS) >= 40


def test_every_held_out_question_accepts_its_own_answer() -> None:
    for question in held_out(7, 5):
        assert any(accepted in question.answer for accepted in question.accept), question


def test_all_numbers_of_the_questions_are_right() -> None:
    """Sums, checked by Python itself."""
    sums = [q for q in held_out(7, 50) if q.topic in {"sum", "difference", "product"}]
    for question in sums:
        expression, _, value = question.answer.rstrip(".").partition(" = ")
        a, sign, b = expression.split()
        assert int(value) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]


def test_batches_hold_every_sample_once_and_little_padding() -> None:
    tokenizer = train_tokenizer(0, texts=500)
    some = list(islice(batches(tokenizer, 5, 1024), 40))
    rows = [row for batch in some for row in unpadded(batch)]
    pool = Counter(tuple(encoded(tokenizer, sample)[0]) for sample in islice(samples(5), 2048))
    assert all(count <= pool[row] for row, count in Counter(rows).items())
    assert all(row[-1] in END_IDS for row in rows)
    assert all(batch.ids.size <= 1024 for batch in some)
    assert sum(batch.ids.size for batch in some) < 1.1 * sum(map(len, rows))


def unpadded(batch: Batch) -> Iterator[tuple[int, ...]]:
    for ids, weights in zip(batch.ids, batch.weights, strict=True):
        yield tuple(ids[: int(np.flatnonzero(weights)[-1]) + 1].tolist())


def test_the_chat_prompt_is_what_the_template_writes() -> None:
    from backend.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(embedded_folder())
    laid_out = tokenizer.encode(chat_prompt("Name a color."), add_special_tokens=False)
    assert tokenizer.chat([{"role": "user", "content": "Name a color."}]) == laid_out


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(2, 24), st.integers(2, 24), st.integers(0, 999))
def test_muon_makes_matrices_nearly_orthogonal(count: int, rows: int, columns: int, seed: int) -> None:
    matrices = torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(seed))
    before = torch.linalg.svdvals(matrices)
    well = (before[:, -1] > 0.05 * before[:, 0]).nonzero().flatten()  # five iterations lift no smaller ones all the way
    assert ((torch.linalg.svdvals(orthogonal(matrices))[well] - 0.95).abs() < 0.4).all()


def test_dice_choose_within_their_bounds_and_alike_for_a_seed() -> None:
    dice, again = Dice(4), Dice(4)
    draws = [(dice.between(2, 5), dice.pick("abc"), tuple(dice.several(range(6), 3))) for _ in range(300)]
    assert draws == [(again.between(2, 5), again.pick("abc"), tuple(again.several(range(6), 3))) for _ in range(300)]
    assert {number for number, _, _ in draws} == {2, 3, 4, 5}
    assert all(len(set(three)) == 3 for _, _, three in draws)
    assert Dice(0).weighted("ab", (0.0, 1.0)) == "b"


def test_the_command_makes_a_directory_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaForCausalLM

    import backend.training.__main__ as command
    import backend.training.score

    monkeypatch.setattr(command, "PER_PHRASING", 1)
    monkeypatch.setattr(backend.training.score, "MAX_NEW_TOKENS", 2)
    result = CliRunner().invoke(command.main, ["--out", str(tmp_path / "made"), "--steps", "1"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "training.json",
    }  # fmt: skip
    assert LlamaForCausalLM.from_pretrained(tmp_path / "made").dtype == torch.bfloat16
