"""`/trace`: a running trace over HTTP is the trace on disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from traces.check import check
from traces.trace import Trace

from .running import Running, running, until


@pytest.fixture(scope="module")
def traced(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tiny_model, names=("tiny",), trace=tmp_path_factory.mktemp("traces") / "run.trace") as one:
        generate(one, 20)
        yield one


def generate(server: Running, tokens: int) -> None:
    server.openai().completions.create(model="tiny", prompt="Hello", max_tokens=tokens, extra_body={"ignore_eos": True})


def events(reply: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """``(event, id, data)`` of a stream, as they come."""
    fields: dict[str, str] = {}
    for line in reply.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
            fields = {}


def first_steps(server: Running, count: int, query: str = "", **headers: str) -> list[dict[str, Any]]:
    with server.http() as client, client.stream("GET", f"/trace/steps{query}", headers=headers) as reply:
        assert reply.status_code == 200
        found = events(reply)
        return [next(found)[2] for _ in range(count)]


def test_the_overview_holds_meta_counts_and_requests(traced: Running) -> None:
    with traced.http() as client:
        told = client.get("/trace").json()
    assert told["running"] is True
    assert told["meta"]["source"] == "measured"
    assert told["rows"]["steps"] >= 20
    assert told["requests"]["rows"][1]["finish_reason"] == "length"
    assert told["requests"]["rows"][0]["finished_s"] is None


def test_pages_of_requests_and_spans_follow_each_other(traced: Running) -> None:
    with traced.http() as client:
        for table in ("gaps", "requests", "spans"):
            whole = client.get(f"/trace/{table}").json()
            assert whole["next"] == whole["total"] == len(whole["rows"])
            page = client.get(f"/trace/{table}", params={"from": 1, "limit": 1}).json()
            assert page["rows"] == whole["rows"][1:2]
            assert page["next"] == 2
            beyond = client.get(f"/trace/{table}", params={"from": 10**6}).json()
            assert beyond["rows"] == []
    assert {row["kind"] for row in whole["rows"]} >= {"queued", "prefill", "decode"}


def test_news_are_the_pages_of_all_tables_at_once(traced: Running) -> None:
    with traced.http() as client:
        starts = {"gaps": 3, "requests": 0, "spans": 1}
        told = client.get("/trace/news", params={**starts, "limit": 5}).json()
        for table, start in starts.items():
            page = client.get(f"/trace/{table}", params={"from": start, "limit": 5}).json()
            assert {"run_id": told["run_id"], **told["tables"][table]} == page
        assert told["steps"] == client.get("/trace").json()["rows"]["steps"]


def test_every_answer_names_the_run_and_two_servers_never_share_one(traced: Running, server: Running) -> None:
    paths = ("/trace", "/trace/requests", "/trace/spans", "/trace/gaps")
    with traced.http() as one, server.http() as other:
        names = {one.get(path).json()["run_id"] for path in paths}
        others = {other.get(path).json()["run_id"] for path in paths}
    assert len(names) == len(others) == 1
    assert names != others


def test_gaps_are_those_on_disk(traced: Running) -> None:
    with traced.http() as client:
        told = client.get("/trace/gaps").json()["rows"]
    recorded = Trace.open(traced.engine.trace_path).gaps
    assert [row["gap_s"] for row in told] == recorded["gap_s"].tolist()
    assert sum(row["count"] for row in told) >= 19


def test_steps_are_those_on_disk_with_all_columns(traced: Running) -> None:
    told = first_steps(traced, 20)
    recorded = Trace.open(traced.engine.trace_path).steps
    assert list(told[0]) == list(recorded.columns)
    for row in told:
        for name, value in row.items():
            stored = recorded[name].iloc[row["step"]]
            assert value == stored or (value is None and stored != stored)
    assert [row["step"] for row in told] == list(range(20))


def test_a_client_resumes_where_it_was(traced: Running) -> None:
    assert first_steps(traced, 2, "?from=5")[0]["step"] == 5
    assert first_steps(traced, 2, **{"last-event-id": "5"})[0]["step"] == 6
    assert first_steps(traced, 1, "?from=3", **{"last-event-id": "9"})[0]["step"] == 10


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9" * 30])
def test_a_last_event_id_that_is_no_step_is_refused(traced: Running, given: str) -> None:
    with traced.http() as client:
        reply = client.get("/trace/steps", headers={"last-event-id": given})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "Last-Event-ID"


def test_steps_come_while_they_are_made(traced: Running) -> None:
    start = traced.engine.stats().steps
    seen: list[int] = []

    def watch() -> None:
        with traced.http() as client, client.stream("GET", f"/trace/steps?from={start}") as reply:
            for _, event_id, data in events(reply):
                assert int(event_id) == data["step"]
                seen.append(data["step"])
                if len(seen) == 20:
                    return

    watcher = threading.Thread(target=watch)
    watcher.start()
    generate(traced, 10)
    until(lambda: len(seen) >= 10)
    generate(traced, 10)
    watcher.join(10)
    assert seen == list(range(start, start + 20))


def test_the_stream_ends_with_the_trace_and_has_missed_nothing(tiny_model: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []

    def watch(server: Running) -> None:
        with server.http() as client, client.stream("GET", "/trace/steps") as reply:
            seen.extend((name, data) for name, _, data in events(reply))

    with running(tiny_model, names=("tiny",), trace=tmp_path / "run.trace") as server:
        watcher = threading.Thread(target=watch, args=(server,))
        watcher.start()
        generate(server, 30)
    watcher.join(10)
    assert not watcher.is_alive()
    trace = Trace.open(tmp_path / "run.trace")
    assert trace.status == "finished"
    assert check(trace) == ([], {})
    *steps, last = seen
    assert [data["step"] for _, data in steps] == trace.column("steps", "step").tolist()
    assert last == ("end", {"steps": len(steps)})


def test_a_client_that_does_not_read_holds_nobody_back(traced: Running) -> None:
    with traced.http() as client, client.stream("GET", "/trace/steps"):
        generate(traced, 200)  # nobody reads; would hang if the engine waited for that
