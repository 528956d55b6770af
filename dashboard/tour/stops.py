"""The five stops: what each says, which tiny run it shows, and its question.

The requests are those of three texts on batching: A, B, C and D, of whom A ends first and D waits (naive, padded and
ragged batches); four prompts of 17, 14, 13 and 14 tokens for two seats (slots and a queue); and a step with one decode,
five tokens of a prompt of 20 and three of a new one (the flat batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from traces.workload import Workload

from .film import Film, Frame, film_of
from .links import what_if_link

_TINY = {"block_size": 4, "num_blocks": 64, "cost": "linear:step_s=1"}
"""Every step takes a second: the tour is about what is computed, not how fast."""


@dataclass(frozen=True)
class Requests:
    """A workload of a handful of requests.

    Attributes:
        names: of each.
        prompt_tokens, output_tokens: of each; the first output comes with the prompt.
        arrival_s: of each, seconds; between two whole seconds: during a step.
    """

    names: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    arrival_s: tuple[float, ...]

    def workload(self) -> Workload:
        """As the simulator takes it."""
        return Workload(
            np.array(self.arrival_s, dtype=np.float64),
            np.array(self.prompt_tokens, dtype=np.int64),
            np.array(self.output_tokens, dtype=np.int64),
            request_ids=np.array(self.names),
            name="tour",
        )

    def spec(self) -> dict[str, Any]:
        """As a page describes it."""
        return {
            "kind": "list",
            "arrival_s": list(self.arrival_s),
            "prompt_tokens": list(self.prompt_tokens),
            "output_tokens": list(self.output_tokens),
        }


@dataclass(frozen=True)
class Question:
    """One question; which choice is right is read off the run.

    Attributes:
        ask: the question.
        choices: texts to choose from, exactly one of them right.
        answer: the right one, from the run.
        because: a sentence on it, from the run.
    """

    ask: str
    choices: tuple[str, ...]
    answer: Callable[[Film], str]
    because: Callable[[Film], str]


@dataclass(frozen=True)
class Stop:
    """One stop.

    Attributes:
        title: a few words.
        text: two or three sentences.
        requests, settings: the run it shows.
        question: what to find out.
        other: settings to compare with in What-if.
    """

    title: str
    text: str
    requests: Requests
    settings: Mapping[str, Any]
    question: Question
    other: Mapping[str, Any] = field(default_factory=dict)

    def link(self) -> str:
        """On into What-if: the same run as A, and the next idea as B."""
        common = {**_TINY, "max_num_seqs": self.settings["max_num_seqs"]}
        variants = {"A": {**common, **self.settings}, "B": {**common, **self.other}}
        return what_if_link(self.requests.spec(), variants)


@cache
def film(number: int) -> Film:
    """The run of a stop (from 0); made when first asked for, then kept."""
    stop = STOPS[number]
    return film_of(stop.requests.workload(), {**_TINY, **stop.settings})


def _joins(run: Film, name: str) -> int:
    return run.steps_of(name)[0]


def _joining(run: Film, name: str) -> Frame:
    return run.frames[_joins(run, name)]


def _why_d_waits(run: Film) -> str:
    done, gone = run.steps_of("A", "prefill", "decode")[-1], run.steps_of("A")[-1]
    return (
        f"A is done after step {done}, but its row burns on until step {gone}. "
        f"Of {run.computed} computed cells only {run.useful} hold a token."
    )


def _why_the_front(run: Film) -> str:
    heir = run.after("P0")
    return (
        f"{heir} stood at the front of the queue. It gets the seat in step {_joins(run, heir)}; P0's last was "
        f"{run.steps_of('P0')[-1]}."
    )


def _why_a_rectangle(run: Film) -> str:
    step = _joining(run, "D")
    return f"{len(step.seats)} rows × {step.cols} columns. Only {step.useful} cells hold a token; the rest is padding."


def _why_flat(run: Film) -> str:
    return (
        f"As many as there are tokens. The whole run computes {run.computed} rows for {run.useful} tokens, "
        f"and of this step {_joining(run, 'D').logits_rows} rows go on to the vocabulary."
    )


def _why_chunks(run: Film) -> str:
    chunks = set(run.steps_of("B", "prefill"))
    beside = len(chunks & set(run.steps_of("A", "decode")))
    return f"A decodes a token in {beside} of these {len(chunks)} steps: it never stands still for B."


ABCD = Requests(("A", "B", "C", "D"), (3, 4, 2, 4), (1, 3, 2, 2), (0.0, 0.0, 0.0, 0.0))
FOUR_PROMPTS = Requests(("P0", "P1", "P2", "P3"), (17, 14, 13, 14), (2, 4, 3, 2), (0.0, 0.0, 0.0, 0.0))
CHUNKS = Requests(("A", "B", "C"), (5, 20, 3), (8, 3, 4), (0.0, 0.5, 1.5))

STOPS = (
    Stop(
        "The naive rectangle",
        "A batch starts together and ends together. Short prompts are padded to the longest, and a request that has "
        "ended keeps its seat: its row goes on computing for nothing. D has to wait for all of it.",
        ABCD,
        {"policy": "static", "max_num_seqs": 3, "batch_timeout_s": 0.0},
        Question(
            "D came together with the others. In which step does it get a seat?",
            ("1", "2", "3"),
            lambda run: str(_joins(run, "D")),
            _why_d_waits,
        ),
        {"policy": "chunked"},
    ),
    Stop(
        "Seats and a queue",
        "Two seats, four prompts in a queue. When a request ends, its seat goes to the front of the queue in the next "
        "step. Each prompt is computed alone, while the other seat stands still; then both decode together.",
        FOUR_PROMPTS,
        {"policy": "slots", "max_num_seqs": 2},
        Question(
            "P0 ends first. Who takes its seat?",
            ("P1", "P2", "P3"),
            lambda run: run.after("P0"),
            _why_the_front,
        ),
        {"policy": "chunked"},
    ),
    Stop(
        "Continuous, but padded",
        "The seats of stop 2 with the requests of stop 1: D takes A's seat in the next step and nothing burns on. But "
        "the step is still a rectangle, and D's prompt makes B and C as wide as itself.",
        ABCD,
        {"policy": "chunked", "layout": "padded", "max_num_seqs": 3},
        Question(
            "D joins B and C. How many cells does that step compute?",
            ("4", "6", "12"),
            lambda run: str(_joining(run, "D").computed),
            _why_a_rectangle,
        ),
        {"policy": "chunked", "layout": "ragged"},
    ),
    Stop(
        "One flat row",
        "The same decisions without the rectangle. All tokens stand end to end; seven small tensors say whose they "
        "are. Only attention needs to know, so nothing is padded.",
        ABCD,
        {"policy": "chunked", "layout": "ragged", "max_num_seqs": 3},
        Question(
            "D joins B and C again. How many rows does that step compute now?",
            ("3", "6", "12"),
            lambda run: str(_joining(run, "D").computed),
            _why_flat,
        ),
        {"policy": "chunked", "layout": "padded"},
    ),
    Stop(
        "Chunked prefill",
        "A long prompt need not stop the others. A step has a budget of 9 tokens, and no request gets more than 5 "
        "beside others: B's prompt of 20 comes in chunks while A decodes in every step and C starts.",
        CHUNKS,
        {"policy": "chunked", "max_num_seqs": 3, "max_num_batched_tokens": 9, "long_prefill_token_threshold": 5},
        Question(
            "Over how many steps is B's prompt spread?",
            ("1", "2", "4"),
            lambda run: str(len(run.steps_of("B", "prefill"))),
            _why_chunks,
        ),
        {"policy": "orca", "max_num_batched_tokens": 64},
    ),
)  # fmt: skip
