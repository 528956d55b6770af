"""The What-if page: what the cards show is what they read back, runs are asked for as typed, and a click runs them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flask
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from waitress.server import create_server

import dashboard.pages
from dashboard.app import create_app
from dashboard.data.catalog import Catalog
from dashboard.pages import replay, sweep, what_if
from dashboard.runs.jobs import Jobs
from dashboard.runs.request import RunRequest
from dashboard.runs.store import RunStore
from dashboard.runs.uploads import Uploads
from dashboard.scenario import scenarios
from dashboard.services import Services
from dashboard.what_if.check import fault_of, faults_of
from dashboard.what_if.query import FIRST, Form, of_scenario, parse
from dashboard.what_if.resolver import resolver, run_key
from dashboard.what_if.settings import SHARED, settings
from dashboard.what_if.variants import shared_fields, variant_cards
from dashboard.what_if.words import canonical
from dashboard.what_if.workload_part import spec_of, workload_part
from scheduler.errors import UserError

from .test_what_if_query import SPECS, forms

CHROMIUM = Path(os.environ.get("BATCHSCOPE_CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
SMALL = "/what-if?workload=default&requests=20&max_num_seqs=4&A.policy=static&B.policy=chunked"


def controls(tree: Any) -> list[Any]:
    """All components with an id in a part of a page."""
    parts = tree if isinstance(tree, list) else [tree]
    found = [each for part in parts for each in (part, *part._traverse())]
    return [each for each in found if getattr(each, "id", None)]


def inputs(tree: Any, kind: str, value: str = "value") -> list[dict[str, Any]]:
    """As Dash lists them for a callback."""
    return [
        {"id": each.id, "value": getattr(each, value, None)}
        for each in controls(tree)
        if isinstance(each.id, dict) and each.id["type"] == kind
    ]


@examples(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(forms())
def test_what_the_cards_show_is_what_they_read_back(form: Form) -> None:
    cards = [*shared_fields("what-if", form.shared), *variant_cards("what-if", form)]
    lists: list[Any] = [
        inputs(cards, "what-if-set"), inputs(cards, "what-if-label"), inputs(cards, "what-if-clients"),
        inputs(cards, "what-if-own", "data"),
    ]  # fmt: skip
    load = {"seed": form.seed, "concurrency": form.concurrency, "think_s": form.think_s}
    read = what_if.form_of(lists, form.workload, load, "")
    shown = {name: settings()[name].default for name in SHARED}
    assert read == Form(
        form.workload, {**shown, **form.shared}, form.variants, form.seed, form.concurrency, form.think_s
    )


@pytest.mark.parametrize("spec", [each for each in SPECS if each["kind"] in ("preset", "upload", "generate")], ids=str)
def test_the_workload_s_fields_read_back_what_they_show(spec: dict[str, Any]) -> None:
    part = workload_part("p", canonical(spec))

    def one(kind: str) -> dict[str, Any]:
        return inputs(part, kind)[0]

    lists: list[Any] = [
        one("workload-kind"), one("workload-name"), inputs(part, "workload-size"), one("workload-count"),
        one("workload-limit"), inputs(part, "workload-part-kind"), inputs(part, "workload-number"),
    ]  # fmt: skip
    read = spec_of(lists[0]["value"], lists[1]["value"], inputs(part, "workload-file-id", "data")[0]["value"], lists)
    assert canonical(read) == canonical(spec)


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda each: each.key)
def test_every_scenario_is_a_form_without_a_fault(scenario: Any) -> None:
    assert faults_of(of_scenario(scenario)) == [None] * len(scenario.variants)


@pytest.mark.parametrize(("name", "value"), [
    ("max_num_seqs", 0), ("policy", "chunkd"), ("block_size", -1), ("watermark", 2.0), ("cost", "linear"),
    ("cudagraph_capture_sizes", "8 4"), ("gpu_memory_utilization", 0.01), ("tensor_parallel", 3),
])  # fmt: skip
def test_a_wrong_setting_is_named_with_the_sentence_of_the_command_line(name: str, value: Any) -> None:
    request = {"workload": {"kind": "preset", "name": "default"}, "settings": {name: value}}
    with pytest.raises(UserError) as refused:
        RunRequest.of(request).check()
    fault = fault_of(request)
    assert fault is not None
    assert fault.sentence == str(refused.value)
    assert fault.setting in (name, "")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with served_services(tmp_path) as made:
        yield made


@contextmanager
def served_services(folder: Path) -> Iterator[Services]:
    store, uploads = RunStore(folder / "runs"), Uploads(folder / "uploads")
    jobs = Jobs(store, uploads)
    catalog = Catalog({}, [resolver(store, uploads)])
    yield Services(catalog, store, jobs, uploads, feeds=None)  # type: ignore[arg-type] # nothing here is live
    jobs.close()


def wait_for(services: Services, run_id: str) -> None:
    end = time.monotonic() + 60
    while services.store.get(run_id).active:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_form_s_runs_are_kept_under_their_labels_and_open_from_the_catalog(services: Services) -> None:
    form = parse(SMALL.partition("?")[2])
    with flask.Flask("test").test_request_context():
        flask.g.owner = "o" * 30
        items = [what_if.submit(services, at, request) for at, request in enumerate(form.requests())]
        refused = what_if.submit(services, 2, {**form.requests()[0], "settings": {"max_num_seqs": 0}})
    assert (refused["id"], refused["sentence"][:15]) == ("", "max_num_seqs is")
    for item, policy in zip(items, ("static", "chunked"), strict=True):
        wait_for(services, item["id"])
        run = services.catalog.run(run_key(item["id"]))
        assert (run.meta["policy"], run.slots_total, run.source) == (policy, 4, "simulated")
        assert len(run.column("requests", "arrival_s")) == 20


def test_keys_of_others_are_left_to_others_and_a_lost_run_is_told_of(services: Services) -> None:
    resolve = resolver(services.store, services.uploads)
    assert resolve("sample-chunked") is None
    with pytest.raises(UserError, match="there is no run of this id"):
        resolve("r-../../etc/passwd")
    with pytest.raises(UserError, match="there is no upload of this id"):
        resolve("u-" + "x" * 22)


@pytest.fixture
def url(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(dashboard.pages, "PAGES", (replay, what_if, sweep))
    server = create_server(create_app(services).server, host="127.0.0.1", port=0, threads=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.effective_port}"
    server.close()
    thread.join(timeout=10)


@pytest.fixture
def page() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}; set BATCHSCOPE_CHROMIUM")
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        made = browser.new_page(viewport={"width": 1280, "height": 900})
        made.set_default_timeout(60_000)
        made.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
        made.on("pageerror", lambda error: complaints.append(str(error)))
        yield made
        browser.close()
    assert complaints == []


def test_a_click_runs_the_variants_and_a_link_shows_them_again(url: str, page: Any) -> None:
    page.goto(url + SMALL)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector("#board-cards")
    assert page.locator(".summary").count() == 1
    assert "run=r-" in page.url
    address = page.url
    page.goto(address)
    page.wait_for_selector("#board-cards")
    assert page.url == address
    page.get_by_text("My runs").click()
    assert page.locator("#what-if-own tbody tr").count() == 2


def test_a_wrong_number_is_told_of_and_cannot_be_run(url: str, page: Any) -> None:
    page.goto(url + SMALL)
    page.wait_for_selector(".chip")
    field = page.locator("#what-if-card-B").get_by_label("max_num_seqs")
    field.fill("0")
    page.wait_for_selector("#what-if-card-B .fault")
    assert page.locator("#what-if-card-B .fault").inner_text().startswith("max_num_seqs is 0; expected")
    assert page.get_by_role("button", name="Run", exact=True).is_disabled()
    field.fill("8")
    page.wait_for_selector("#what-if-card-B .chip:has-text('max_num_seqs')")
    assert page.get_by_role("button", name="Run", exact=True).is_enabled()
    page.wait_for_function("window.location.search.includes('B.max_num_seqs=8')")


def test_variants_are_copied_and_removed_and_a_scenario_fills_the_form(url: str, page: Any) -> None:
    page.goto(url + SMALL)
    page.wait_for_selector(".chip")
    page.get_by_label("Add a copy of B").click()
    page.wait_for_selector("#what-if-card-C")
    page.get_by_label("Remove A").click()
    page.wait_for_selector("#what-if-card-C", state="detached")
    page.wait_for_function("!window.location.search.includes('static')")
    page.locator("#what-if-scenario").click()
    page.get_by_role("option").first.click()
    page.wait_for_selector(".question")
    assert page.locator(".variant").count() == len(scenarios()[0].variants)
    assert page.url.endswith(f"?scenario={scenarios()[0].key}")


def test_the_first_form_stands_in_the_first_visit(url: str, page: Any) -> None:
    page.goto(f"{url}/what-if")
    page.wait_for_selector(".chip")
    assert page.locator(".variant").count() == len(FIRST.variants)


def test_a_sweep_is_run_and_a_point_of_it_is_opened_in_replay(url: str, page: Any) -> None:
    page.goto(f"{url}/sweep?workload=default&requests=20&grid1=max_num_seqs=2,8&rates=4,16&slo.ttft=1")
    page.wait_for_selector(".previews .js-plotly-plot")
    page.get_by_role("button", name="Run", exact=True).click()
    point = page.locator("#sweep-results .scatterlayer .points path").first
    point.wait_for()
    assert "on the front" in page.locator("#sweep-results .words").first.inner_text()
    page.locator("#sweep-results .plot").first.evaluate("it => it.scrollIntoView({block: 'center'})")
    page.wait_for_timeout(500)  # the figure takes its place
    box = point.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.get_by_role("button", name="Simulate this point").click()
    page.get_by_text("Open this run in Replay").click()
    page.wait_for_selector("#board-cards")
    assert "/replay?run=r-" in page.url
