"""What-if, driven to its end: a scenario, its runs and results; cancelled; refused; shared; and a sweep's point."""

from __future__ import annotations

import json
import operator
import re
from functools import partial
from pathlib import Path

from playwright.sync_api import Page

from dashboard.scenario import scenario_named

from .conftest import OpenPage
from .driving import becomes, choose, plot, settled, text_of

SCENARIO = scenario_named("ten-at-once")
SMALL = "workload=preset&requests={requests}&A.policy=static&B.policy=chunked&max_num_seqs=8"


def run(page: Page) -> None:
    button = page.locator("#what-if-run")
    becomes(page, button.is_enabled, bool)
    button.click()


def field(page: Page, page_name: str, variant: str, name: str) -> str:
    """Selector of a setting's field: Dash writes the ids of patterns as JSON with sorted keys."""
    ident = json.dumps({"name": name, "type": f"{page_name}-set", "variant": variant}, separators=(",", ":"))
    return f"[id='{ident}']"


def test_a_scenario_is_picked_run_and_its_results_stand_side_by_side(open_page: OpenPage, dashboard_url: str) -> None:
    page = open_page(dashboard_url + "/what-if")
    settled(page)
    choose(page, "what-if-scenario", SCENARIO.title)
    becomes(page, lambda: text_of(page, "#what-if-scenario-words .question"), lambda text: text == SCENARIO.question)
    assert page.locator("#what-if-variants .variant").count() == len(SCENARIO.variants)
    run(page)
    page.locator("#what-if-progress .run-row").first.wait_for()
    page.locator("#what-if-results").get_by_role("heading", name="Results").wait_for(timeout=90_000)
    runs = becomes(page, lambda: re.findall(r"r-[\w-]+", page.url), bool)
    assert len(runs) == len(SCENARIO.variants)
    plot(page, "slots")
    bounds = page.locator("h3", has_text="What bounds").all_inner_texts()
    assert [text for text in bounds if "(simulated)" in text] == bounds
    assert len(bounds) == len(SCENARIO.variants)

    page.locator("#what-if-own-part summary").click()
    assert page.locator("#what-if-own tbody tr").count() == len(runs)

    other = open_page(page.url)  # another person: the link grants the runs, and the list does not show them
    other.locator("#what-if-results").get_by_role("heading", name="Results").wait_for()
    other.locator("#what-if-own-part summary").click()
    assert "Nothing yet" in other.locator("#what-if-own").inner_text()
    other.goto(f"{dashboard_url}/replay?run={runs[0]}")
    settled(other)
    plot(other, "slots")
    other.locator("#replay-runs").click()
    other.get_by_role("option", name="static").first.wait_for()
    groups = other.locator(".mantine-MultiSelect-groupLabel, .mantine-ComboboxGroup-label").all_inner_texts()
    assert "My runs" not in groups


def test_runs_that_take_long_show_how_far_they_are_and_can_be_cancelled(
    open_page: OpenPage, dashboard_url: str
) -> None:
    page = open_page(f"{dashboard_url}/what-if?{SMALL.format(requests=200_000)}")
    settled(page)
    run(page)
    rows = page.locator("#what-if-progress .run-row")
    becomes(page, rows.count, partial(operator.eq, 2))
    becomes(page, lambda: page.locator("#what-if-progress .muted").first.inner_text(), lambda text: "%" in text or text)
    for at in range(2):
        rows.nth(at).get_by_role("button", name="Cancel").click()
    told = becomes(
        page, lambda: rows.all_inner_texts(), lambda texts: all("cancel" in text.lower() for text in texts) and texts
    )
    assert len(told) == 2
    becomes(page, page.locator("#what-if-run").is_enabled, bool)


def test_a_field_that_makes_no_sense_shows_one_sentence_and_nothing_runs(
    open_page: OpenPage, dashboard_url: str
) -> None:
    page = open_page(f"{dashboard_url}/what-if?{SMALL.format(requests=20)}")
    settled(page)
    seats = page.locator(field(page, "what-if", "B", "max_num_seqs"))
    before = seats.input_value()
    seats.fill("0")
    seats.press("Tab")
    told = becomes(page, lambda: text_of(page, "#what-if-card-B .fault"), bool)
    assert "max_num_seqs" in told
    assert page.locator("#what-if-run").is_disabled()
    seats.fill(before or "8")
    seats.press("Tab")
    becomes(page, lambda: text_of(page, "#what-if-card-B .fault"), operator.not_)
    becomes(page, page.locator("#what-if-run").is_enabled, bool)


def test_a_workload_that_cannot_be_read_gets_the_readers_sentence(
    open_page: OpenPage, dashboard_url: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n0.5,many,5\n")
    page = open_page(dashboard_url + "/what-if")
    settled(page)
    page.get_by_text("Upload", exact=True).click()
    page.locator("input[type=file]").set_input_files(bad)
    told = becomes(page, lambda: page.locator("main").inner_text(), lambda text: "bad.csv" in text and "many" in text)
    assert "Traceback" not in told


def test_a_sweeps_example_runs_and_a_point_of_it_opens_its_run(open_page: OpenPage, dashboard_url: str) -> None:
    page = open_page(dashboard_url + "/sweep")
    settled(page)
    page.get_by_text("Try an example").click()
    becomes(page, lambda: page.url, lambda url: "?" in url)
    settled(page)
    page.locator("#sweep-run").click()
    front = page.locator("""[id='{"key":"front","type":"sweep-figure"}'] .js-plotly-plot""")
    front.wait_for(timeout=90_000)
    becomes(page, lambda: front.evaluate("(plot) => (plot.data || []).length"), bool)
    front.scroll_into_view_if_needed()
    point = front.locator(".points path").first
    point.wait_for()
    point.click(force=True)
    page.get_by_role("button", name="Simulate this point").click()
    link = page.locator("#sweep-point-link a")
    link.wait_for(timeout=60_000)
    link.click()
    page.get_by_role("heading", level=1, name="Replay").wait_for()
    settled(page)
    plot(page, "slots")
