"""The step inspector and the tour, by clicks: fields edited, steps walked, questions answered, the way on taken."""

from __future__ import annotations

import operator
import re
from functools import partial

from playwright.sync_api import Page

from dashboard.tour.film import Film
from dashboard.tour.stops import STOPS, Question, film
from dashboard.what_if.query import parse
from traces.trace import Trace

from .conftest import OpenPage
from .driving import becomes, choose, segment, settled, text_of


def test_requests_typed_in_by_hand_are_laid_open_and_a_wrong_field_says_what_is_wrong(
    open_page: OpenPage, dashboard_url: str
) -> None:
    page = open_page(dashboard_url + "/inspect")
    settled(page)
    shown = page.locator("#inspect-shown")
    first = becomes(page, lambda: shown.inner_text(), lambda text: "slot_mapping" in text)
    page.locator("#inspect-block-size").fill("4")
    other = becomes(page, lambda: shown.inner_text(), lambda text: text != first and "slot_mapping" in text)
    becomes(page, lambda: page.url, lambda url: "block_size=4" in url or "size=4" in url)
    again = open_page(page.url)
    settled(again)
    becomes(again, lambda: again.locator("#inspect-shown").inner_text(), lambda text: text == other)
    page.locator("#inspect-block-size").fill("0")
    becomes(page, lambda: text_of(page, ".mantine-TextInput-error"), bool)
    page.locator("#inspect-block-size").fill("16")
    becomes(page, lambda: page.locator(".mantine-TextInput-error").count(), lambda count: count == 0)
    page.get_by_role("button", name="Add a request").click()
    becomes(page, lambda: page.get_by_role("button", name=re.compile("^Remove request")).count(), lambda n: n == 4)


def test_a_step_of_a_run_is_laid_open_and_the_next_one_is_a_click_away(
    open_page: OpenPage, dashboard_url: str, chunked: Trace
) -> None:
    page = open_page(dashboard_url + "/inspect")
    settled(page)
    segment(page, "inspect-mode", "A step of a run")
    choose(page, "inspect-run", "chunked")
    becomes(page, lambda: text_of(page, "#inspect-step-note"), lambda t: f"0 to {len(chunked.steps) - 1:,}" in t)
    becomes(page, lambda: page.locator("#inspect-shown").inner_text(), lambda text: "query_start_loc" in text)
    before = page.locator("#inspect-shown h2").inner_text()
    page.get_by_role("button", name="Next").click()
    becomes(page, lambda: page.url, lambda url: "step=1" in url)
    becomes(page, lambda: page.locator("#inspect-shown h2").inner_text(), lambda text: text != before)


def test_each_stop_plays_to_its_end_knows_right_from_wrong_and_leads_to_the_next(
    open_page: OpenPage, dashboard_url: str
) -> None:
    page = open_page(dashboard_url + "/tour")
    for number, stop in enumerate(STOPS):
        page.get_by_role("heading", name=f"{number + 1}. {stop.title}").wait_for()
        settled(page)
        walk(page, len(film(number).frames))
        answer(page, stop.question, film(number))
        if stop is not STOPS[-1]:
            page.get_by_role("link", name=f"{STOPS[number + 1].title} →").click()


def walk(page: Page, frames: int) -> None:
    """Step by step to the end of the picture."""
    for _ in range(frames - 1):
        before = text_of(page, "#tour-counter")
        page.locator("#tour-on").click()
        becomes(page, lambda: text_of(page, "#tour-counter"), partial(operator.ne, before))
    becomes(page, page.locator("#tour-on").is_disabled, bool)


def answer(page: Page, question: Question, run: Film) -> None:
    """Wrong at first, then right."""
    right = question.answer(run)
    wrong = next(choice for choice in question.choices if choice != right)
    page.get_by_role("radio", name=wrong, exact=True).click()
    becomes(page, lambda: text_of(page, "#tour-feedback"), lambda text: "Not quite." in text)
    page.get_by_role("radio", name=right, exact=True).click()
    becomes(page, lambda: text_of(page, "#tour-feedback"), lambda text: question.because(run) in text)


def test_the_tours_way_on_opens_what_if_with_the_same_settings(open_page: OpenPage, dashboard_url: str) -> None:
    page = open_page(dashboard_url + "/tour?stop=1")
    settled(page)
    page.locator("#tour-what-if").click()
    page.get_by_role("heading", level=1, name="What if?").wait_for()
    settled(page)
    asked = dict(re.findall(r"[?&]([^=&]+)=([^&]*)", STOPS[0].link()))
    form = parse(asked)
    assert page.locator("#what-if-variants .variant").count() == len(form.variants) == 2
    for letter, variant in zip("AB", form.variants, strict=True):
        field = page.locator(f"""[id='{{"name":"policy","type":"what-if-set","variant":"{letter}"}}']""")
        assert field.input_value() == variant.settings["policy"]
