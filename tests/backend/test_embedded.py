"""The embedded model says something sensible, ends by itself, and is small."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from transformers import LlamaForCausalLM

from backend.locate import embedded_folder
from backend.tokenizer import Tokenizer
from backend.training.corpus import STOP, held_out
from backend.training.facts import COLORS, KINDS
from backend.training.score import answers, score

FOUR = ("What is 2+2?", "Name a color.", "Say hello.", "Capital of France?")
MORE = {
    "What is 3 + 4?": "7",
    "How much is 9 plus 5?": "14",
    "What is 10 - 3?": "7",
    "What is 6 times 7?": "42",
    "What is the capital of Japan?": "Tokyo",
    "capital of italy": "Rome",
    "Do you know the capital of Egypt?": "Cairo",
    "What's the capital of Canada?": "Ottawa",
    "Which country has Berlin as its capital?": "Germany",
    "Count to seven.": "One, two, three, four, five, six, seven.",
    "List the days of the week.": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
    "Which month comes after March?": "April",
    "What is the opposite of hot?": "cold",
    "Give me the opposite of big.": "small",
    "What is the plural of mouse?": "mice",
    "Spell the word cat.": "C-A-T",
    "How do I spell river?": "R-I-V-E-R",
    "What color is the sky?": "blue",
    "What does a cow say?": "moo",
    "How many legs does a spider have?": "Eight",
    "Hello!": "Hello",
    "Who are you?": "language model",
    "What is a slot?": "seat in the batch",
    "Explain continuous batching.": "who runs next",
    "What is TTFT?": "time to first token",
    "What is padding?": "rows that belong to no request",
    "Tell me a story about a fox.": "fox named",
    "Tell me a short story.": "Once upon a time",
    "Who is the president of Peru?": "I do not know",
}


@cache
def model() -> LlamaForCausalLM:
    loaded: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32)
    return loaded


@cache
def backend() -> Backend:
    return Tokenizer.load(embedded_folder()).backend


@cache
def answered() -> dict[str, tuple[str, bool]]:
    """Greedy answers to everything above, and whether they ended by themselves."""
    asked = [*FOUR, *MORE]
    return dict(zip(asked, answers(model(), backend(), asked), strict=True))


def test_everything_embedded_is_under_eight_megabytes() -> None:
    assert sum(path.stat().st_size for path in embedded_folder().rglob("*") if path.is_file()) < 8_000_000


def test_it_answers_the_four_prompts_right() -> None:
    two_and_two, color, hello, capital = (answered()[prompt][0] for prompt in FOUR)
    assert two_and_two == "2 + 2 = 4."
    assert color.rstrip(".").lower() in COLORS
    assert hello == "Hello!"
    assert capital == "The capital of France is Paris."


@pytest.mark.parametrize(("question", "expected"), MORE.items())
def test_it_answers_others_like_them(question: str, expected: str) -> None:
    assert expected in answered()[question][0]


def test_every_answer_ends_by_itself_and_lengths_vary() -> None:
    assert all(ended for _, ended in answered().values())
    lengths = sorted(len(backend().encode(text, add_special_tokens=False).ids) for text, _ in answered().values())
    assert lengths[0] <= 3
    assert lengths[-1] >= 60
    assert len(set(lengths)) >= 12


def test_it_names_things_of_a_kind_it_is_asked_for() -> None:
    questions = [f"Name three {kind}s." for kind in ("animal", "fruit", "bird", "metal")]
    for question, (text, _) in zip(questions, answers(model(), backend(), questions), strict=True):
        kind = question.split()[-1].rstrip("s.")
        assert len([name for name in KINDS[kind] if name in text.lower()]) == 3, text


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("What is 2+2?\n", "2 + 2 = 4."),
        ("What is 2+2?", "\n2 + 2 = 4."),
        ("The capital of France is", " Paris."),
        ("Once upon a time", " there was a"),
    ],
)
def test_plain_completion_goes_on_from_the_prompt_and_ends(prompt: str, expected: str) -> None:
    ids = torch.tensor([backend().encode(prompt).ids])
    out = model().generate(input_ids=ids, do_sample=False, max_new_tokens=150)[0, ids.shape[1] :].tolist()
    assert backend().decode(out).startswith(expected)
    assert out[-1] == backend().token_to_id(STOP)


def test_a_second_question_of_a_conversation_is_answered() -> None:
    talk = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "2 + 2 = 4."},
        {"role": "user", "content": "Capital of Spain?"},
    ]
    ids = torch.tensor([Tokenizer.load(embedded_folder()).chat(talk)])
    out = model().generate(input_ids=ids, do_sample=False, max_new_tokens=30)[0, ids.shape[1] :].tolist()
    assert backend().decode(out) == "The capital of Spain is Madrid."


def test_files_fit_together() -> None:
    config = json.loads(Path(embedded_folder(), "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == backend().get_vocab_size()
    assert config["max_position_embeddings"] == 2048
    assert [backend().id_to_token(i) for i in config["eos_token_id"]] == ["<|end_of_text|>", "<|eot_id|>"]
    assert 2_000_000 < sum(weight.numel() for weight in model().parameters()) < 3_500_000


def test_questions_in_words_it_never_saw_are_mostly_answered_right() -> None:
    result = score(model(), backend(), list(held_out(11, 2)))
    assert result.accuracy >= 0.8, result.wrong
    assert result.ended >= 0.98 * result.asked.total()


@pytest.mark.long
def test_the_recorded_score_is_met_again() -> None:
    record = json.loads(Path(embedded_folder(), "training.json").read_text())
    result = score(model(), backend(), list(held_out(2, 10)))
    assert result.accuracy == pytest.approx(record["held_out_accuracy"], abs=0.01)
