"""Requests typed in by hand: texts of a form become a step, or one sentence beside each field that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np

from scheduler.batch import BatchRequest
from scheduler.errors import InputError, UserError

from .step import StepFacts

MOST_REQUESTS = 12
MOST_TOKENS = 4_096
"""Known tokens of a request typed in by hand."""
MOST_BLOCK_SIZE = 1_024
MOST_ID = 1_000_000
"""Largest block id; and a token id has to fit int32."""
MOST_TEXT = 20_000
"""Characters of a field: the longest that could be of use, written as single ids."""
FIELDS = ("name", "tokens", "computed", "scheduled", "blocks")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


@dataclass(frozen=True)
class Line:
    """One request as typed: all texts. Empty `blocks`: they are allotted."""

    name: str
    tokens: str
    computed: str
    scheduled: str
    blocks: str = ""


@dataclass(frozen=True)
class Form:
    """What was typed in."""

    lines: tuple[Line, ...]
    block_size: str = "4"

    @classmethod
    def of_query(cls, query: Mapping[str, Any]) -> Form:
        """From an address's fields; the example where they name no request."""
        lines = tuple(
            Line(*(part.split("|") + [""] * len(FIELDS))[: len(FIELDS)])
            for part in str(query.get("requests") or "")[: MOST_TEXT * 2].split(";")[:MOST_REQUESTS]
            if part
        )
        return cls(lines, str(query.get("block_size") or "4")[:20]) if lines else EXAMPLES["abc"].form

    def query(self) -> str:
        """The address that shows this form again, with its question mark."""
        lines = ";".join("|".join(_plain(getattr(line, name)) for name in FIELDS) for line in self.lines)
        return "?" + urlencode({"mode": "hand", "block_size": self.block_size, "requests": lines}, safe="|;-,.")


@dataclass(frozen=True)
class Example:
    """A form to start from."""

    title: str
    form: Form


EXAMPLES = {
    "abc": Example(
        "A decodes, B is mid-prompt, C is new",
        Form((Line("A", "100-110", "10", "1", "7 2 12"), Line("B", "200-219", "4", "5", "3 9 5"),
              Line("C", "300-302", "0", "3", "6"))),
    ),
    "dbc": Example(
        "D joins B and C, who decode",
        Form((Line("D", "11-14", "0", "4", "1"), Line("B", "21-25", "4", "1", "2 3"),
              Line("C", "31-33", "2", "1", "4"))),
    ),
    "words": Example(
        "Words for tokens, blocks allotted",
        Form((Line("A", "name a color . blue", "4", "1"), Line("B", "say hello .", "0", "3"),
              Line("C", "capital of france ?", "0", "2"))),
    ),
}  # fmt: skip
"""The first two are worked examples known from texts on vLLM's flat batch and on ragged batching."""


class FormError(UserError):
    """What was typed in is wrong.

    Attributes:
        fields: ``(line, field)`` -> the sentence beside it; line -1 is the form's own `block_size`.
    """

    def __init__(self, fields: Mapping[tuple[int, str], str]) -> None:
        super().__init__("; ".join(fields.values()))
        self.fields = dict(fields)


def read_form(form: Form) -> StepFacts:
    """The step that was typed in; raises FormError with a sentence for each wrong field."""
    wrong: dict[tuple[int, str], str] = {}
    block_size = _number(form.block_size, "block size", 1, MOST_BLOCK_SIZE, wrong, (-1, "block_size"))
    vocabulary: dict[str, int] = {}
    drafts = [_draft(at, line, vocabulary, wrong) for at, line in enumerate(form.lines[:MOST_REQUESTS])]
    if not drafts:
        wrong[-1, "block_size"] = "there is no request; add one"
    if wrong:
        raise FormError(wrong)
    requests = _checked(_allotted([draft.request for draft in drafts], block_size), block_size)
    return StepFacts(
        title="Typed in by hand",
        requests=requests,
        slots=tuple(range(len(requests))),
        samples=tuple(request.computed + request.scheduled == len(request.token_ids) for request in requests),
        block_size=block_size,
        num_slots=len(requests),
        words=tuple(draft.words for draft in drafts),
    )


@dataclass(frozen=True)
class _Draft:
    request: BatchRequest
    words: tuple[str, ...]


def _draft(at: int, line: Line, vocabulary: dict[str, int], wrong: dict[tuple[int, str], str]) -> _Draft:
    words = _words(line.tokens, wrong, (at, "tokens"))
    request = BatchRequest(
        name=line.name.strip()[:20] or f"#{at}",
        token_ids=_ids(words, vocabulary, wrong, (at, "tokens")),
        computed=_number(line.computed, "computed", 0, MOST_TOKENS, wrong, (at, "computed")),
        scheduled=_number(line.scheduled, "scheduled", 1, MOST_TOKENS, wrong, (at, "scheduled")),
        block_table=_blocks(line.blocks, wrong, (at, "blocks")),
    )
    return _Draft(request, words)


def _words(text: str, wrong: dict[tuple[int, str], str], where: tuple[int, str]) -> tuple[str, ...]:
    """Tokens as typed, ranges of ids written out."""
    words: list[str] = []
    for word in text[:MOST_TEXT].replace(",", " ").split():
        ends = _RANGE.fullmatch(word)
        if ends is None:
            words.append(word)
        else:
            first, last = int(ends[1]), int(ends[2])
            words += [str(token) for token in range(first, min(last, first + MOST_TOKENS) + 1)]
        if len(words) > MOST_TOKENS:
            wrong[where] = f"these are over {MOST_TOKENS:,} tokens; expected fewer"
            return tuple(words[:MOST_TOKENS])
    if not words:
        wrong[where] = "there are no tokens; write words, ids, or a range such as 100-110"
    return tuple(words)


def _ids(
    words: Sequence[str], vocabulary: dict[str, int], wrong: dict[tuple[int, str], str], where: tuple[int, str]
) -> tuple[int, ...]:
    """Token ids: numbers as they are; where there are words, each word's number in order of first appearance."""
    if all(_is_number(word) for word in words):
        ids = tuple(int(word) for word in words)
        if max(ids, default=0) > np.iinfo(np.int32).max:
            wrong[where] = f"a token id is over {np.iinfo(np.int32).max:,}; expected one that fits int32"
        return ids
    return tuple(vocabulary.setdefault(word, len(vocabulary) + 1) for word in words)


def _blocks(text: str, wrong: dict[tuple[int, str], str], where: tuple[int, str]) -> tuple[int, ...]:
    words = text[:MOST_TEXT].replace(",", " ").split()
    if not all(_is_number(word) and 1 <= int(word) <= MOST_ID for word in words):
        wrong[where] = f"block ids are whole numbers from 1 to {MOST_ID:,} (0 is the null block), such as: 7 2 12"
        return ()
    if len({int(word) for word in words}) < len(words):
        wrong[where] = "a block is listed twice; each place of a block table has its own block"
    return tuple(int(word) for word in words)


def _number(
    text: str, what: str, least: int, most: int, wrong: dict[tuple[int, str], str], where: tuple[int, str]
) -> int:
    word = text.strip()
    if _is_number(word) and least <= int(word) <= most:
        return int(word)
    wrong[where] = f"{what} is {word[:20] or 'empty'}; expected a whole number from {least} to {most:,}"
    return least


def _allotted(requests: list[BatchRequest], block_size: int) -> list[BatchRequest]:
    """Requests without blocks get the lowest free ones, in order."""
    taken = {block for request in requests for block in request.block_table}
    free = (block for block in range(1, MOST_ID) if block not in taken)
    given = []
    for request in requests:
        if not request.block_table:
            need = -(-(request.computed + request.scheduled) // block_size)
            request = replace(request, block_table=tuple(next(free) for _ in range(need)))
        given.append(request)
    return given


def _checked(requests: list[BatchRequest], block_size: int) -> tuple[BatchRequest, ...]:
    wrong: dict[tuple[int, str], str] = {}
    written: dict[int, str] = {}
    for at, request in enumerate(requests):
        try:
            request.check(block_size)
        except InputError as error:
            field = "blocks" if "block_table" in str(error) else "scheduled"
            wrong[at, field] = str(error).removeprefix(f"request {request.name}: ")
            continue
        for block in _written_blocks(request, block_size):
            if block in written:
                wrong[at, "blocks"] = f"{written[block]} writes block {block} too; each needs its own to write to"
            written[block] = request.name
    if wrong:
        raise FormError(wrong)
    return tuple(requests)


def _written_blocks(request: BatchRequest, block_size: int) -> Sequence[int]:
    first, last = request.computed // block_size, (request.computed + request.scheduled - 1) // block_size
    return request.block_table[first : last + 1]


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[0-9]{1,12}", word) is not None


def _plain(text: str) -> str:
    """Without the two signs that separate fields and requests in an address."""
    return text.replace("|", " ").replace(";", " ")
