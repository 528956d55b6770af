"""The text that the embedded model learns from: conversations and plain pages, endless and the same for a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from .dice import Dice
from .topics import TOPICS, Topic

BEGIN, START, END, TURN, STOP = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>",
)  # fmt: skip
SPECIAL_TOKENS = (BEGIN, START, END, TURN, STOP)
"""In the manner of Llama 3; their ids are their places here."""
END_IDS = [SPECIAL_TOKENS.index(STOP), SPECIAL_TOKENS.index(TURN)]
"""Either ends an answer: the first a plain page, the second a turn of a conversation."""

PLAIN_SHARE = 0.28
"""Share of samples without the chat layout: a question, a new line, the answer."""
BARE_SHARE = 0.35
"""Share of the plain samples that are an answer alone, so that the start of a sentence can be continued."""
MORE_TURNS = 0.15
SYSTEM_SHARE = 0.12
SYSTEMS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.", "You are a small model.",
    "Be kind and helpful.", "You are a helpful, honest and polite assistant. Give short and correct answers.",
)  # fmt: skip
PREFIXES = (
    "Please ", "Hey, ", "Can you help me? ", "Hello! ", "I have a question: ", "Quick question. ", "So, ", "Now ",
    "Can you tell me: ", "Please tell me: ",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One question with its answer; `accept` as in `topics.Facts`."""

    topic: str
    text: str
    answer: str
    accept: tuple[str, ...]


@dataclass(frozen=True)
class Piece:
    """A stretch of a sample's text; only `learned` ones count in the loss."""

    text: str
    learned: bool


def samples(seed: int) -> Iterator[list[Piece]]:
    """Training samples without end; each begins with `BEGIN` and ends with `TURN` or `STOP`."""
    dice = Dice(seed)
    while True:
        yield _plain(dice) if dice.chance(PLAIN_SHARE) else _conversation(dice)


def digest(seed: int, count: int) -> str:
    """SHA-256 of the first `count` samples, as hex: the same on any machine."""
    state = hashlib.sha256()
    for sample in islice(samples(seed), count):
        for piece in sample:
            state.update(f"{piece.learned:d}{piece.text}\0".encode())
    return state.hexdigest()


def held_out(seed: int, per_phrasing: int) -> Iterator[Question]:
    """Questions in words that no training sample uses, `per_phrasing` of each; all have an `accept`."""
    dice = Dice(seed)
    for topic in TOPICS:
        for phrasing in topic.held_out:
            for _ in range(per_phrasing):
                yield _question(dice, topic, phrasing)


def chat_prompt(question: str) -> str:
    """The text before the assistant's first word, as the chat template writes it."""
    return BEGIN + _turn("user", question) + TURN + _turn("assistant", "")


def _conversation(dice: Dice) -> list[Piece]:
    system = _turn("system", dice.pick(SYSTEMS)) + TURN if dice.chance(SYSTEM_SHARE) else ""
    pieces = [Piece(BEGIN + system, learned=False)]
    for _ in range(1 if not dice.chance(MORE_TURNS) else dice.between(2, 4)):
        question = _asked(dice)
        pieces.append(Piece(_turn("user", question.text) + TURN + _turn("assistant", ""), learned=False))
        pieces.append(Piece(question.answer + TURN, learned=True))
    return pieces


def _plain(dice: Dice) -> list[Piece]:
    question = _asked(dice)
    if dice.chance(BARE_SHARE) or question.answer.startswith(question.text):
        return [Piece(BEGIN, learned=False), Piece(question.answer + STOP, learned=True)]
    return [Piece(BEGIN + question.text, learned=False), Piece(f"\n{question.answer}{STOP}", learned=True)]


def _turn(role: str, text: str) -> str:
    return f"{START}{role}{END}\n\n{text}"


def _asked(dice: Dice) -> Question:
    topic = dice.weighted(TOPICS, [topic.weight for topic in TOPICS])
    question = _question(dice, topic, dice.pick(topic.phrasings))
    return Question(question.topic, _dressed(dice, question.text), question.answer, question.accept)


def _question(dice: Dice, topic: Topic, phrasing: str) -> Question:
    facts = topic.make(dice)
    return Question(topic.name, phrasing.format(**facts.fields), facts.answer, facts.accept)


def _dressed(dice: Dice, text: str) -> str:
    """The question as people type: with a word before it, in small letters, without its last mark."""
    if dice.chance(0.12):
        text = dice.pick(PREFIXES) + text[0].lower() + text[1:]
    if dice.chance(0.1):
        text = text.lower()
    if dice.chance(0.12) and text[-1] in ".?!":
        text = text[:-1]
    return text
