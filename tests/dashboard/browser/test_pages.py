"""Every page loads, at both widths and in both themes, and the header leads to it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from dashboard.pages import PAGES, home

from .conftest import NARROW, WIDE, OpenPage
from .driving import becomes, settled


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_header_leads_to_every_page_which_loads_without_a_complaint_and_fits_the_screen(
    open_page: OpenPage, dashboard_url: str, width: int, theme: str
) -> None:
    page = open_page(dashboard_url, width=width, theme=theme)
    page.get_by_role("heading", level=1, name="See what batching does").wait_for()
    assert_fits(page, width, theme)
    for each in PAGES:
        page.locator(".header nav").get_by_role("link", name=each.TITLE, exact=True).click()
        page.get_by_role("heading", level=1, name=each.TITLE).wait_for()
        assert_fits(page, width, theme)
        assert page.locator(".header .nav-link.here").all_inner_texts() == [each.TITLE]
        becomes(page, page.title, lambda title, right=f"{each.TITLE} · batchscope": title == right)  # type: ignore[misc]  # a default binds the loop's value


def assert_fits(page: Page, width: int, theme: str) -> None:
    settled(page)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_each_card_of_the_first_page_leads_to_another_page(open_page: OpenPage, dashboard_url: str) -> None:
    page = open_page(dashboard_url)
    page.locator(".way").first.wait_for()
    there = set()
    for at in range(page.locator(".way").count()):
        page.locator(".way").nth(at).click()
        page.get_by_role("heading", level=1, name="See what batching does").wait_for(state="hidden")
        page.locator("main h1").wait_for()
        there.add(urlsplit(page.url).path)
        page.locator(".brand").click()
        page.get_by_role("heading", level=1, name="See what batching does").wait_for()
    assert there == {each.PATH for each in PAGES} - {home.PATH}
