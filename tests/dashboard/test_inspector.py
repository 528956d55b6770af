"""The step inspector: worked examples by hand, recorded steps against the live scheduler, and what is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.data.run import TraceRun
from dashboard.inspector import figures, masks, words
from dashboard.inspector.recorded import burning_rows, facts_of_step
from dashboard.inspector.show import show
from dashboard.inspector.step import StepFacts
from dashboard.inspector.typed import EXAMPLES, MOST_REQUESTS, Form, FormError, Line, read_form
from dashboard.look import DARK, LIGHT
from scheduler import Request, Scheduler, SchedulerConfig
from scheduler.batch import FlatBatch, PaddedBatch, PersistentBatch
from scheduler.config import Layout
from scheduler.errors import InputError
from simulator.run import simulate
from traces.recorder import TraceRecorder
from traces.trace import Trace
from traces.workload import Workload

SEVEN = ("input_ids", "positions", "query_start_loc", "seq_lens", "block_table", "slot_mapping", "logits_indices")


def test_seed_000_a_b_and_c_are_the_default_and_give_the_seven_tensors_of_the_text() -> None:
    facts = read_form(Form.of_query({}))
    assert {name: getattr(facts.flat, name).tolist() for name in SEVEN} == {
        "input_ids": [110, 204, 205, 206, 207, 208, 300, 301, 302],
        "positions": [10, 4, 5, 6, 7, 8, 0, 1, 2],
        "query_start_loc": [0, 1, 6, 9],
        "seq_lens": [11, 9, 3],
        "block_table": [[7, 2, 12], [3, 9, 5], [6, 0, 0]],
        "slot_mapping": [50, 36, 37, 38, 39, 20, 24, 25, 26],
        "logits_indices": [0, 5, 8],
    }
    assert facts.samples == (True, False, True)  # B has not reached the end of its prompt


def test_seed_000_block_size_16_and_block_table_3_for_b_move_its_slots() -> None:
    lines = EXAMPLES["abc"].form.lines
    b = Line("B", "200-219", "4", "5", "3")
    facts = read_form(Form((lines[0], b, lines[2]), "16"))
    assert facts.flat.slot_mapping.tolist() == [7 * 16 + 10, 52, 53, 54, 55, 56, 96, 97, 98]


def test_seed_004_d_b_and_c_are_a_flat_row_of_6_and_a_rectangle_of_12_half_of_it_padding() -> None:
    counts = read_form(EXAMPLES["dbc"].form).counts
    assert (counts.tokens, counts.rows, counts.cols, counts.cells, counts.padding) == (6, 3, 4, 12, 6)
    assert counts.padding_share == 0.5


def test_seed_004_the_flat_mask_is_a_triangle_of_4_a_line_of_5_and_a_line_of_3_in_6_by_12() -> None:
    facts = read_form(EXAMPLES["dbc"].form)
    assert (facts.counts.flat_mask, facts.counts.pairs) == (6 * 12, 4 * 5 // 2 + 5 + 3)
    assert facts.counts.flat_masked_share == 1 - 18 / 72
    assert facts.counts.padded_mask == 12 * 5
    assert "18 are computed, 75% masked out" in words.ragged_mask(facts)


def test_words_become_tokens_by_first_appearance_and_blocks_are_allotted_from_the_lowest_free_one() -> None:
    facts = read_form(Form((Line("A", "say hello say", "0", "3"), Line("B", "hello you", "1", "1", "1")), "2"))
    assert facts.requests[0].token_ids == (1, 2, 1)
    assert facts.requests[1].token_ids == (2, 3)
    assert facts.requests[0].block_table == (2, 3)
    assert facts.word(0, 1) == "hello"


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        (Line("A", "", "0", "1"), "tokens", "no tokens"),
        (Line("A", "1-3", "0", "0"), "scheduled", "expected a whole number from 1"),
        (Line("A", "1-3", "-1", "1"), "computed", "expected a whole number from 0"),
        (Line("A", "1-3", "2", "2"), "scheduled", "exceed its 3 known tokens"),
        (Line("A", "1-3", "0", "3", "0"), "blocks", "0 is the null block"),
        (Line("A", "1-9", "0", "9", "1 2"), "blocks", "expected at least 3"),
        (Line("A", "1-9", "0", "9", "1 2 2"), "blocks", "listed twice"),
        (Line("A", "1-999999", "0", "1"), "tokens", "over 4,096 tokens"),
        (Line("A", "9" * 12, "0", "1"), "tokens", "int32"),
        (Line("A", "1-3", "9" * 400, "1"), "computed", "expected a whole number"),
        (Line("A", "1-3", "0", "1e3"), "scheduled", "expected a whole number"),
        (Line("A", "1-3", "0", "٣"), "scheduled", "expected a whole number"),
    ],
)
def test_a_wrong_field_gets_one_sentence_beside_it(line: Line, field: str, says: str) -> None:
    with pytest.raises(FormError) as caught:
        read_form(Form((line,), "4"))
    assert list(caught.value.fields) == [(0, field)]
    assert says in caught.value.fields[0, field]


@pytest.mark.parametrize("size", ["0", "", "-4", "1025", "4.5", "four"])
def test_a_wrong_block_size_gets_one_sentence(size: str) -> None:
    with pytest.raises(FormError) as caught:
        read_form(Form(EXAMPLES["abc"].form.lines, size))
    assert caught.value.fields[-1, "block_size"].startswith("block size is")


def test_two_requests_may_read_one_block_but_not_write_to_it() -> None:
    shared = Form((Line("A", "1-6", "4", "2", "1 2"), Line("B", "1-6", "4", "2", "1 3")), "4")
    assert read_form(shared).flat.slot_mapping.tolist() == [8, 9, 12, 13]
    clash = Form((Line("A", "1-6", "4", "2", "1 2"), Line("B", "1-6", "4", "2", "3 2")), "4")
    with pytest.raises(FormError, match="A writes block 2 too"):
        read_form(clash)


texts = st.text(max_size=30)


@given(st.lists(st.builds(Line, texts, texts, texts, texts, texts), max_size=4), texts)
def test_whatever_is_typed_is_a_step_or_a_form_error(lines: list[Line], size: str) -> None:
    try:
        facts = read_form(Form(tuple(lines), size))
    except FormError:
        return
    assert facts.flat.input_ids.shape == (facts.counts.tokens,)


@pytest.mark.parametrize("key", EXAMPLES)
def test_an_address_restores_the_form(key: str) -> None:
    from urllib.parse import parse_qsl

    form = EXAMPLES[key].form
    assert Form.of_query(dict(parse_qsl(form.query().removeprefix("?"), keep_blank_values=True))) == form


def test_an_address_with_too_many_requests_is_cut() -> None:
    form = Form.of_query({"requests": ";".join(["A|1|0|1"] * 100)})
    assert len(form.lines) == MOST_REQUESTS


requests_ = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=6)


def recorded(requests: list[tuple[int, int]], folder: Path, **config: Any) -> tuple[TraceRun, list[Any]]:
    """A live scheduler's run, recorded, with the batches that were built at each step."""
    scheduler = Scheduler(
        SchedulerConfig(**{"max_model_len": 32, "num_blocks": 64, "block_size": 4, "batch_timeout_s": 0.0, **config}),
        track_blocks=True,
    )
    batch = PersistentBatch.of(scheduler)
    meta = {"layout": scheduler.layout, "policy": scheduler.config.policy,
            "config": {"block_size": 4, "padding_side": scheduler.config.padding_side}}  # fmt: skip
    recorder = TraceRecorder(
        folder, meta, slots_total=scheduler.config.max_num_seqs, streams=scheduler.streams, plans=True
    )
    built = []
    with recorder:
        for index, (prompt, outputs) in enumerate(requests):
            request = Request(index, prompt, outputs)
            scheduler.add(request)
            recorder.arrived(request, 0.0)
        while scheduler.has_work:
            plan = scheduler.schedule()
            rows = scheduler.rows(plan)
            batch.apply(plan)
            whole = batch.build(plan, rows)
            rectangle = batch.build_padded(plan, rows, scheduler.burning()) if scheduler.layout == "padded" else None
            built.append((whole, rectangle, plan))
            scheduler.update(plan)
            recorder.step(plan, float(plan.step), float(plan.step + 1), 1.0, 0.0, 0.0)
        trace = recorder.close()
    return TraceRun("run", "run", trace), built


@settings(max_examples=25, deadline=None)
@given(
    requests=requests_,
    policy=st.sampled_from(("chunked", "static", "orca", "prefill-first")),
    layout=st.sampled_from(("padded", "ragged")),
    side=st.sampled_from(("left", "right")),
    budget=st.integers(12, 20),
)
def test_facts_of_a_recorded_step_are_the_live_scheduler_s_batches(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int]], policy: str, layout: Layout, side: str,
    budget: int,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("run") / "run.trace"
    run, built = recorded(
        requests, folder, policy=policy, layout=layout, padding_side=side, max_num_seqs=3, max_num_batched_tokens=budget
    )
    assert len(built) == run.num_steps
    for step, (flat, rectangle, plan) in enumerate(built):
        facts = facts_of_step(run, step)
        if rectangle is None:
            assert_same_flat(facts.flat, flat)
        else:
            assert_same_rectangle(facts.padded, rectangle)
            assert (facts.counts.rows, facts.counts.cols) == (plan.rows, plan.cols)
            assert facts.counts.cells == plan.shape.computed_tokens
        assert facts.counts.tokens == plan.real_shape.computed_tokens


def assert_same_flat(mine: FlatBatch, live: FlatBatch) -> None:
    for name in (*SEVEN, "req_indices", "slots"):
        assert getattr(mine, name).tolist() == getattr(live, name).tolist(), name


def assert_same_rectangle(mine: PaddedBatch, live: PaddedBatch) -> None:
    order = [mine.block_table[:, 0].tolist().index(block) for block in live.block_table[:, 0].tolist()]
    for name in ("positions", "is_token", "slot_mapping", "query_lens", "seq_lens", "kv_start", "block_table"):
        assert getattr(mine, name)[order].tolist() == getattr(live, name).tolist(), name
    assert (mine.num_requests, mine.width) == (live.num_requests, live.width)


def abcd(**config: Any) -> TraceRun:
    """Seed 004's A, B, C and D on three seats."""
    workload = Workload(np.zeros(4), np.array([3, 4, 2, 4]), np.array([1, 3, 2, 2]), request_ids=np.array(list("ABCD")))
    trace = simulate(
        workload, plans=True, cost="linear:step_s=1", num_blocks=64, block_size=4, max_num_seqs=3, **config
    )
    return TraceRun("abcd", "abcd", trace)


def test_seed_004_rows_that_ended_burn_on_in_the_naive_batch() -> None:
    run = abcd(policy="static", batch_timeout_s=0.0)
    assert [[run.names()[row.request] for row in burning_rows(run, step)] for step in range(5)] == [
        [], ["A"], ["A", "C"], [], [],
    ]  # fmt: skip
    facts = facts_of_step(run, 2)
    assert (facts.counts.cells, facts.counts.tokens) == (3, 1)
    assert facts.padded.kv_start.tolist() == [0, 1, 2]  # of B, A and C: left pads up to B's four tokens


def test_tokens_of_a_recorded_run_are_unknown_and_said_to_be() -> None:
    facts = facts_of_step(abcd(policy="chunked"), 0)
    assert facts.word(0, 0) == "·"
    assert "not kept" in str(show(facts, LIGHT))


def test_a_run_without_plans_or_without_the_step_is_refused_in_one_sentence() -> None:
    run = abcd(policy="chunked")
    with pytest.raises(InputError, match="holds no step 99; expected 0 to 2"):
        facts_of_step(run, 99)
    trace = simulate("default", requests=3, cost="linear:step_s=1")
    with pytest.raises(InputError, match="run with --plans"):
        facts_of_step(TraceRun("p", "plain", trace), 0)


def test_graph_padding_of_a_recorded_step_follows_the_flat_row() -> None:
    facts = facts_of_step(abcd(policy="chunked", cudagraph_capture_sizes=(4, 8, 16)), 0)
    assert (facts.counts.tokens, facts.graph_rows) == (9, 7)
    assert facts.flat.slot_mapping.tolist()[9:] == [-1] * 7


def pictures(facts: StepFacts) -> list[dict[str, Any]]:
    return [
        draw(facts, look)
        for draw in (figures.flat_row, figures.kv_map, masks.ragged_mask_figure, masks.padded_mask_figure)
        for look in (LIGHT, DARK)
    ]


@pytest.mark.parametrize("key", EXAMPLES)
def test_pictures_are_figures_that_plotly_accepts(key: str) -> None:
    for figure in pictures(read_form(EXAMPLES[key].form)):
        go.Figure(figure)


def test_the_picture_of_the_flat_mask_shows_the_real_mask() -> None:
    facts = read_form(EXAMPLES["dbc"].form)
    z = masks.ragged_mask_figure(facts, LIGHT)["data"][0]["z"]
    codes = np.frombuffer(base64.b64decode(z["bdata"]), dtype=np.int8).reshape(6, 12)
    assert (codes >= 2).tolist() == facts.ragged_mask().tolist()


def test_the_cache_picture_writes_where_slot_mapping_says() -> None:
    facts = read_form(EXAMPLES["abc"].form)
    figure = figures.kv_map(facts, LIGHT)
    shown = figures.blocks_drawn(facts)
    written = {
        shown[y] * 4 + base
        for bars in figure["data"]
        if bars["name"].endswith("written")
        for y, base in zip(bars["y"], bars["base"], strict=True)
    }
    assert written == set(facts.flat.slot_mapping.tolist())


def chunk_beside_decodes() -> StepFacts:
    """Seed 000's step of 200 decodes and 5,000 tokens of a prompt, from a recorded run."""
    prompts = np.array([1] * 200 + [6000])
    workload = Workload(np.array([0.0] * 200 + [0.5]), prompts, np.array([10] * 201))
    trace = simulate(workload, plans=True, cost="linear:step_s=1", max_num_batched_tokens=5200, num_blocks=2000)
    return facts_of_step(TraceRun("big", "big", trace), 1)


def test_seed_000_a_step_of_5200_tokens_is_drawn_in_part_and_says_so() -> None:
    facts = chunk_beside_decodes()
    assert (facts.counts.tokens, facts.counts.requests, facts.counts.cells) == (5200, 201, 1_005_000)
    assert len(facts.flat.logits_indices) == 201
    assert words.drawn_rows(facts) == "Drawn: the first 200 of 5,200 rows."
    assert "200 of 5,200 rows" in words.drawn_ragged(facts)
    assert "of 201 rows" in words.drawn_rectangle(facts)
    for figure in pictures(facts):
        assert len(str(figure)) < 2_000_000
        go.Figure(figure)


def test_of_a_prompt_longer_than_the_picture_the_first_rows_are_drawn_and_no_logits_row_is_marked() -> None:
    facts = read_form(Form((Line("A", "1-1000", "0", "1000"),), "16"))
    figure = figures.flat_row(facts, LIGHT)
    assert words.drawn_rows(facts) == "Drawn: the first 256 of 1,000 rows."
    assert figure["data"][-1]["x"] == []
    assert figures.MOST_ROWS == 256


@given(requests_, st.integers(1, 4))
def test_counts_are_those_of_the_real_masks(requests: list[tuple[int, int]], block_size: int) -> None:
    lines = tuple(
        Line(f"r{at}", f"1-{computed + scheduled}", str(computed), str(scheduled))
        for at, (computed, scheduled) in enumerate(requests)
    )
    facts = read_form(Form(lines, str(block_size)))
    mask, rectangle = facts.ragged_mask(), facts.padded
    assert (mask.size, int(mask.sum())) == (facts.counts.flat_mask, facts.counts.pairs)
    padded = rectangle.attention_mask()
    assert (padded.size, int(padded.sum())) == (facts.counts.padded_mask, facts.counts.pairs)
    assert int((~rectangle.is_token).sum()) == facts.counts.padding


def test_names_with_markup_stay_text_in_pictures() -> None:
    facts = read_form(Form((Line("<b>x</b>", "1-3", "0", "3"),), "4"))
    assert "<b>" not in str(figures.flat_row(facts, LIGHT))
    assert "<b>" not in str(figures.kv_map(facts, LIGHT))
    assert "<b>" not in str(masks.ragged_mask_figure(facts, LIGHT))


def test_a_trace_opened_from_disk_gives_the_same_facts(tmp_path: Path) -> None:
    run, _ = recorded([(5, 3), (9, 2)], tmp_path / "a.trace", max_num_seqs=2)
    again = TraceRun("run", "run", Trace.open(tmp_path / "a.trace"))
    assert facts_of_step(run, 1).flat.slot_mapping.tolist() == facts_of_step(again, 1).flat.slot_mapping.tolist()
