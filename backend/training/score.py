"""How well a trained model answers: greedy answers to questions in words it never saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .corpus import END_IDS, Question, chat_prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

MAX_NEW_TOKENS = 200


@dataclass(frozen=True)
class Score:
    """Questions answered right, by topic; `ended` of all ended by themselves."""

    asked: Counter[str]
    right: Counter[str]
    ended: int
    wrong: list[tuple[str, str]]

    @property
    def accuracy(self) -> float:
        """Share of all questions answered right."""
        return self.right.total() / self.asked.total()


def score(model: LlamaForCausalLM, tokenizer: Tokenizer, questions: Sequence[Question], rows: int = 32) -> Score:
    """Ask everything through the chat layout, `rows` at a time; right is an answer that ends and holds an `accept`."""
    result = Score(Counter(), Counter(), 0, [])
    ended = 0
    ordered = sorted(questions, key=lambda question: len(question.answer))
    for start in range(0, len(ordered), rows):
        some = ordered[start : start + rows]
        for question, (text, whole) in zip(some, answers(model, tokenizer, [q.text for q in some]), strict=True):
            ended += whole
            result.asked[question.topic] += 1
            if whole and any(accepted in text for accepted in question.accept):
                result.right[question.topic] += 1
            else:
                result.wrong.append((question.text, text))
    return Score(result.asked, result.right, ended, result.wrong)


@torch.inference_mode()
def answers(model: LlamaForCausalLM, tokenizer: Tokenizer, questions: Sequence[str]) -> list[tuple[str, bool]]:
    """Greedy answers in one padded batch, and whether each ended by itself."""
    prompts = [tokenizer.encode(chat_prompt(question), add_special_tokens=False).ids for question in questions]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=END_IDS,
        pad_token_id=END_IDS[0],
    )
    rows = out[:, width:].tolist()
    return [(tokenizer.decode(row, skip_special_tokens=True), any(token in END_IDS for token in row)) for row in rows]
