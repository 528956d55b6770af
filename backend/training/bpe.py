"""The embedded model's tokenizer: byte-level BPE in the manner of Llama 3, learned from our own corpus."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from .corpus import BEGIN, SPECIAL_TOKENS, STOP, samples

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB_SIZE = 2048
TEXTS = 20_000
"""Samples that the merges are learned from."""
NUMBERS = " ".join(f"{number}" for number in range(101))
NUMBER_LINES = 300
"""How often `NUMBERS` is read besides, so that each of them becomes one token and not a matter of its digits."""
PATTERN = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""As Llama 3 splits text, but a line break never joins the sign before it."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def train_tokenizer(seed: int, texts: int = TEXTS) -> Tokenizer:
    """Learn the merges from the first `texts` samples of the corpus; special tokens get the ids from 0 on."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` as transformers reads them."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": STOP,
        "pad_token": STOP,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _texts(seed: int, count: int) -> list[str]:
    """Texts without their special tokens, which the merges must not run into."""
    text = ["".join(piece.text for piece in sample) for sample in islice(samples(seed), count)]
    for token in SPECIAL_TOKENS:
        text = [line.replace(token, "\n") for line in text]
    return text + [NUMBERS] * NUMBER_LINES
