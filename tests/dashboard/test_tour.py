"""The tour: its runs show what the texts say, and every question has one right answer that is read off the run."""

from __future__ import annotations

from urllib.parse import urlsplit

import plotly.graph_objects as go
import pytest

from dashboard.look import DARK, LIGHT
from dashboard.runs.workload_spec import workload_of
from dashboard.tour.picture import counter, picture, words
from dashboard.tour.stops import STOPS, film
from dashboard.what_if.check import faults_of
from dashboard.what_if.query import parse

NAIVE, SEATS, PADDED, RAGGED, CHUNKED = range(5)
ALL = range(len(STOPS))


def who(number: int) -> list[list[str]]:
    """Who computes something useful in each step."""
    return [[seat.name for seat in frame.seats if seat.tokens] for frame in film(number).frames]


def test_seed_004_the_naive_rectangle_computes_23_cells_in_5_steps_for_17_tokens() -> None:
    run = film(NAIVE)
    assert who(NAIVE) == [["A", "B", "C"], ["B", "C"], ["B"], ["D"], ["D"]]
    assert [frame.computed for frame in run.frames] == [12, 3, 3, 4, 1]
    assert (run.computed, run.useful) == (23, 17)
    assert [[seat.name for seat in frame.seats if seat.kind == "ended"] for frame in run.frames] == [
        [], ["A"], ["A", "C"], [], [],
    ]  # fmt: skip
    assert [frame.waiting for frame in run.frames] == [("D",)] * 3 + [()] * 2


def test_seed_003_prompts_of_17_14_13_and_14_tokens_pass_through_two_seats() -> None:
    steps = [[(s.slot, s.name, s.kind, s.tokens) for s in frame.seats if s.tokens] for frame in film(SEATS).frames]
    assert steps == [
        [(0, "P0", "prefill", 17)],
        [(1, "P1", "prefill", 14)],
        [(0, "P0", "decode", 1), (1, "P1", "decode", 1)],
        [(0, "P2", "prefill", 13)],
        [(0, "P2", "decode", 1), (1, "P1", "decode", 1)],
        [(0, "P2", "decode", 1), (1, "P1", "decode", 1)],
        [(0, "P3", "prefill", 14)],
        [(0, "P3", "decode", 1)],
    ]


def test_seed_003_a_seat_stands_still_while_the_other_s_prompt_is_computed() -> None:
    held = [(step, seat.name) for step, frame in enumerate(film(SEATS).frames) for seat in frame.seats
            if seat.kind == "held"]  # fmt: skip
    assert held == [(1, "P0"), (3, "P1")]


def test_seed_004_padded_continuous_batching_computes_12_cells_for_6_tokens_when_d_joins() -> None:
    run = film(PADDED)
    assert who(PADDED) == [["A", "B", "C"], ["D", "B", "C"], ["D", "B"]]
    assert [(frame.computed, frame.useful) for frame in run.frames] == [(12, 9), (12, 6), (2, 2)]
    assert run.frames[1].seat_of("D") is not None


def test_seed_004_the_flat_row_computes_6_rows_for_the_same_step() -> None:
    assert who(RAGGED) == who(PADDED)
    assert [frame.computed for frame in film(RAGGED).frames] == [9, 6, 2]


def test_seed_000_a_step_of_one_decode_five_prompt_tokens_and_three_of_a_new_prompt() -> None:
    step = film(CHUNKED).frames[2]
    assert [(seat.name, seat.kind, seat.tokens) for seat in step.seats] == [
        ("A", "decode", 1), ("B", "prefill", 5), ("C", "prefill", 3),
    ]  # fmt: skip
    assert step.computed == 9


@pytest.mark.parametrize("number", ALL)
def test_every_question_has_exactly_one_right_answer_and_the_run_gives_it(number: int) -> None:
    question = STOPS[number].question
    assert question.choices.count(question.answer(film(number))) == 1
    assert len(set(question.choices)) == len(question.choices)
    assert question.because(film(number)).endswith(".")


@pytest.mark.parametrize(
    ("number", "answer"), [(NAIVE, "3"), (SEATS, "P2"), (PADDED, "12"), (RAGGED, "6"), (CHUNKED, "4")]
)
def test_the_answers_are_those_of_the_texts(number: int, answer: str) -> None:
    assert STOPS[number].question.answer(film(number)) == answer


@pytest.mark.parametrize("number", ALL)
def test_squares_of_a_step_are_the_rows_it_computes(number: int) -> None:
    run = film(number)
    for shown in range(len(run.frames)):
        figure = picture(run, shown, LIGHT)
        squares = {bars["name"]: len(bars["x"]) for bars in figure["data"] if bars["name"] != "idle"}
        seen = run.frames[: shown + 1]
        assert sum(squares.values()) == sum(frame.computed for frame in seen)
        assert squares.get("prefill", 0) + squares.get("decode", 0) == sum(frame.useful for frame in seen)


@pytest.mark.parametrize("number", ALL)
def test_pictures_are_figures_that_plotly_accepts(number: int) -> None:
    run = film(number)
    go.Figure(picture(run, 0, LIGHT))
    go.Figure(picture(run, len(run.frames) - 1, DARK))


def test_the_counter_and_the_words_follow_the_step() -> None:
    assert counter(film(NAIVE), 1) == "2 of 5 steps · 15 cells computed · 11 of them tokens (73% useful)"
    assert words(film(NAIVE), 1) == (
        "Step 1: seat 0: A has ended and burns on (1 padding); seat 1: B decodes 1 token; seat 2: C decodes 1 token. "
        "Waiting: D."
    )


def test_pads_stand_at_the_left_of_short_prompts() -> None:
    figure = picture(film(NAIVE), 0, LIGHT)
    pads = next(bars for bars in figure["data"] if bars["name"] == "padding")
    tokens = next(bars for bars in figure["data"] if bars["name"] == "prefill")
    for seat in set(pads["y"]):
        ends = [base + x for base, x, y in zip(pads["base"], pads["x"], pads["y"], strict=True) if y == seat]
        starts = [base for base, y in zip(tokens["base"], tokens["y"], strict=True) if y == seat]
        assert max(ends) == pytest.approx(min(starts))


@pytest.mark.parametrize("number", ALL)
def test_the_link_carries_the_stop_s_workload_and_settings_that_what_if_accepts(number: int) -> None:
    address = urlsplit(STOPS[number].link())
    assert address.path == "/what-if"
    form = parse(address.query)
    assert workload_of(form.workload).prompt_tokens.tolist() == list(STOPS[number].requests.prompt_tokens)
    assert faults_of(form) == [None, None]
    for request, settings in zip(form.requests(), (STOPS[number].settings, STOPS[number].other), strict=True):
        given = request["settings"]
        assert {name: given[name] for name in settings} == dict(settings)
        assert given["cost"] == "linear:step_s=1"
