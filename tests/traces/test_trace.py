"""One reader for finished, stopped and temporary traces; plans and block tables of any step; broken input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scheduler.errors import InputError
from scheduler.plan import StepPlan
from scheduler.scheduler import Scheduler
from traces import schema
from traces.replay import CHECKPOINT_STEPS
from traces.trace import Trace

from .plans import cut_short, plan, recorder, request, run_scheduler, two_requests
from .test_recorder import small_config, some_requests
from .test_schema import DOCUMENT

POLICIES = ["chunked", "static", "slots", "orca", "prefill-first"]


@pytest.mark.parametrize("policy", POLICIES)
def test_parquet_and_row_files_read_alike(policy: str, tmp_path: Path) -> None:
    options = {"token_times": True, "plans": True}
    rows = run_scheduler(small_config(policy, False), some_requests(), **options)
    parquet = run_scheduler(small_config(policy, False), some_requests(), path=tmp_path / "run.trace", **options)
    assert {file.suffix for file in parquet.path.iterdir()} == {".parquet", ".json"}
    for table in schema.READABLE:
        if table == "tokens":
            continue
        left, right = rows.columns(table), parquet.columns(table)
        for name, values in left.items():
            np.testing.assert_array_equal(values, right[name], err_msg=f"{table}.{name}")
            assert values.dtype == right[name].dtype
    pd.testing.assert_frame_equal(rows.requests, parquet.requests)
    assert rows.summary() == parquet.summary()


@pytest.mark.parametrize("path", [None, "run.trace"])
def test_pieces_and_parts_add_up_to_the_whole(path: str | None, tmp_path: Path) -> None:
    trace = run_scheduler(small_config("chunked", False), some_requests(), path=tmp_path / path if path else None)
    for table in ("steps", "spans", "requests", "gaps"):
        whole = trace.columns(table)
        name = next(iter(whole))
        np.testing.assert_array_equal(np.concatenate([chunk[name] for chunk in trace.chunks(table)]), whole[name])
        np.testing.assert_array_equal(trace.columns(table, [name], start=7)[name], whole[name][7:])
        assert len(trace.columns(table, [name], start=10**6)[name]) == 0


def test_pandas_and_pyarrow_read_a_finished_trace_without_us(tmp_path: Path) -> None:
    trace = two_requests(tmp_path / "run.trace", token_times=True)
    frame = pd.read_parquet(trace.path / "requests.parquet")
    assert [list(times) for times in frame["token_times_s"]] == [[2.0, 3.0, 4.0], [3.0, 4.0]]
    assert frame["finished_s"].tolist() == [4.0, 4.0]


def test_frames_carry_names_instead_of_codes() -> None:
    trace = two_requests()
    assert trace.steps["wait_reason"].tolist() == ["none"] * 3
    assert set(trace.spans["kind"]) == {"queued", "prefill", "decode"}
    assert trace.requests["finish_reason"].tolist() == ["length", "length"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_every_steps_plan_and_block_table_can_be_rebuilt(policy: str, async_scheduling: bool, plain: bool) -> None:
    rows: dict[int, list[tuple[int, int, int, int, bool]]] = {}
    blocks: dict[int, dict[int, list[int]]] = {}

    def watch(scheduler: Scheduler, made: StepPlan) -> None:
        found = scheduler.rows(made)
        rows[made.step] = [
            (one.index, int(slot), int(computed), int(scheduled), bool(samples))
            for one, slot, computed, scheduled, samples in zip(
                found.requests, found.slots, found.computed, found.scheduled, found.samples, strict=True
            )
        ]
        blocks[made.step] = {one.index: list(one.blocks) for one in found.requests}

    config = small_config(policy, async_scheduling).replaced(num_blocks=14)
    aborts = [(0.05, 5), (0.2, 20), (0.3, 30)]
    trace = run_scheduler(config, some_requests(), aborts=aborts, plain=plain, watch=watch, plans=True)
    steps = sorted(rows)
    for step in [*steps, *np.random.default_rng(0).choice(steps, 20).tolist()]:
        rebuilt = trace.plan_at(step)
        expected = rows[step]
        assert (sorted(rebuilt) == sorted(expected)) if policy == "slots" else (rebuilt == expected), step
        table = trace.block_table_at(step)
        assert {index: table[index] for index in blocks[step]} == blocks[step], step


def test_replay_goes_back_over_checkpoints() -> None:
    last = CHECKPOINT_STEPS * 2 + 10
    a = request(0, 2, 9 * last, slot=0)
    with recorder(plans=True) as record:
        record.arrived(a, 0.0)
        record.step(plan(0, tail=[(a, 0, 2, True)], admitted=[a], arrived=[a]), 0.0, 1.0, 1.0, 0.0, 0.0)
        for step in range(1, last + 1):
            joined = [a] if step == 1 else []
            record.step(plan(step, steady=1, joined=joined), float(step), step + 1.0, 1.0, 0.0, 0.0)
        trace = record.close()
    for step in (last, 5, CHECKPOINT_STEPS + 3, CHECKPOINT_STEPS - 1, last):
        assert trace.plan_at(step) == [(0, 0, step + 1, 1, True)]
    assert trace.arrived_before(0) == [0]
    with pytest.raises(LookupError, match="holds no step"):
        trace.plan_at(last + 1)


def test_plans_must_have_been_kept() -> None:
    with pytest.raises(LookupError, match="recorded without plans"):
        two_requests().plan_at(0)


def test_empty_run_reads_as_empty_tables(tmp_path: Path) -> None:
    for path in (None, tmp_path / "run.trace"):
        with recorder(path, token_times=True) as record:
            trace = record.close()
        assert [len(trace.steps), len(trace.spans), len(trace.requests), len(trace.gaps)] == [0, 0, 0, 0]
        assert trace.summary()["makespan_s"] is None


def test_broken_input_is_named_in_one_sentence(tmp_path: Path) -> None:
    def complaint(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            Trace.open(path).summary()
        return str(caught.value)

    assert "there is no such trace" in complaint(tmp_path / "absent.trace")
    (tmp_path / "file").write_text("x")
    assert "is a file; expected the folder of a step trace" in complaint(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "holds no meta.json" in complaint(tmp_path / "empty")
    trace = two_requests(tmp_path / "run.trace")
    whole = (trace.path / "meta.json").read_text()
    (trace.path / "steps.parquet").write_bytes((trace.path / "steps.parquet").read_bytes()[:100])
    assert "steps.parquet: is no whole Parquet file" in complaint(trace.path)
    (trace.path / "steps.parquet").unlink()
    assert "holds no table 'steps'" in complaint(trace.path)
    for text, sentence in (
        (whole[: len(whole) // 2], "is not whole JSON"),
        (json.dumps({"schema_version": 99}), "schema_version is 99; this program reads 1"),
        ("[1, 2]", "holds no schema_version"),
    ):
        (trace.path / "meta.json").write_text(text)
        assert sentence in complaint(trace.path)


EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_documentation_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cut_short(tmp_path / "run.trace") as record:
        record.step(plan(0), 0.0, 1.0, 1.0, 0.0, 0.0)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "trace-format.md", "exec"), {})
