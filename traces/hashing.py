"""What a unit of `hash_ids` stands for: found from how many ids each request has for its lengths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scheduler.errors import ConfigError, InputError

from .workload import Covers, IntArray

# In this order, the first that holds for every request. Mooncake: one id per 512 prompt tokens, the last unit
# partial. Ids over prompt and output, whole units of 16 only. Then other widths over the prompt, as in Qwen-Bailian's
# 16 and the KV block sizes in use.
_PROMPT_BLOCKS = (16, 32, 64, 128, 256, 1024)


@dataclass(frozen=True)
class HashRule:
    """A unit of `block` tokens, over the ``prompt`` (last unit partial) or the ``sequence`` of prompt and output."""

    block: int
    covers: Covers
    whole: bool = False
    """Only full units have an id."""

    def counts(self, prompt: IntArray, output: IntArray) -> IntArray:
        """Ids that each request must have."""
        tokens = prompt if self.covers == "prompt" else prompt + output
        return tokens // self.block if self.whole else -(-tokens // self.block)

    def __str__(self) -> str:
        over = "input" if self.covers == "prompt" else "(input + output)"
        return f"{over} / {self.block} rounded {'down' if self.whole else 'up'}"


@dataclass(frozen=True)
class ForcedBlock:
    """What the user or the file says: tokens a unit, and what the ids cover (None: find out)."""

    block: int
    covers: Covers | None

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"hash block is {self.block}; expected a whole number of tokens >= 1")


_GUESSES = (
    HashRule(512, "prompt"),
    HashRule(16, "sequence", whole=True),
    *(HashRule(block, "prompt") for block in _PROMPT_BLOCKS),
)


def find_hash_rule(
    prompt: IntArray,
    output: IntArray,
    counts: IntArray,
    lines: IntArray,
    *,
    forced: ForcedBlock | None,
    path: str | Path,
) -> HashRule:
    """The rule that `counts` (ids a request) follow; requests without ids fit any rule.

    Args:
        prompt: ``(n,)`` prompt tokens.
        output: ``(n,)`` output tokens.
        counts: ``(n,)`` ids of each request.
        lines: ``(n,)`` line of each request in the file.
        forced: a unit that is known; then fewer ids than units are fine, more are not.
        path: the file, for the sentence.

    Raises:
        InputError: no rule fits all requests; names the first that the best rule does not fit.
    """
    if forced is not None:
        return _forced_rule(prompt, output, counts, lines, forced, path)
    fits = [(rule.counts(prompt, output) == counts) | (counts == 0) for rule in _GUESSES]
    for rule, fit in zip(_GUESSES, fits, strict=True):
        if fit.all():
            return rule
    best = max(range(len(_GUESSES)), key=lambda i: int(fits[i].sum()))
    row = int(np.argmin(fits[best]))
    sentence = f"has {counts[row]} hash_ids; expected {_GUESSES[best].counts(prompt, output)[row]} ({_GUESSES[best]})"
    raise InputError(f"{sentence}; --hash-block says how many tokens an id stands for", path=path, line=int(lines[row]))


def _forced_rule(
    prompt: IntArray, output: IntArray, counts: IntArray, lines: IntArray, forced: ForcedBlock, path: str | Path
) -> HashRule:
    over_prompt = HashRule(forced.block, "prompt")
    covers: Covers = forced.covers or ("prompt" if _within(over_prompt, prompt, output, counts).all() else "sequence")
    rule = HashRule(forced.block, covers)
    fit = _within(rule, prompt, output, counts)
    if not fit.all():
        row = int(np.argmin(fit))
        most = rule.counts(prompt, output)[row]
        sentence = f"has {counts[row]} hash_ids of {forced.block} tokens; its lengths allow at most {most} ({rule})"
        raise InputError(sentence, path=path, line=int(lines[row]))
    return rule


def _within(rule: HashRule, prompt: IntArray, output: IntArray, counts: IntArray) -> npt.NDArray[np.bool_]:
    fit: npt.NDArray[np.bool_] = counts <= rule.counts(prompt, output)
    return fit
