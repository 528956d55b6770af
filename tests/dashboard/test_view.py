"""The address holds the view."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.view import View

KEYS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_.", min_size=1, max_size=40)
NUMBERS = st.floats(0, 1e7).map(lambda x: float(f"{x:.9g}"))


@st.composite
def views(draw: st.DrawFn) -> View:
    start, end = sorted(draw(st.tuples(NUMBERS, NUMBERS)))
    part = draw(st.booleans()) and start < end
    return View(
        runs=tuple(draw(st.lists(KEYS, max_size=4, unique=True))),
        axis=draw(st.sampled_from(("time", "step"))),
        start=start if part else None,
        end=end if part else None,
        step=draw(st.none() | st.integers(0, 10**9)),
        by=draw(st.sampled_from(("slots", "requests"))),
    )


def of_text(query: str) -> View:
    return View.of_query({name: values[0] for name, values in parse_qs(query.removeprefix("?")).items()})


@given(views())
def test_a_link_reproduces_the_view(view: View) -> None:
    assert of_text(view.query()) == view
    assert View.of_query(view.fields()) == view


def test_the_default_view_needs_no_query() -> None:
    assert View().query() == ""


@pytest.mark.parametrize(
    "query", ["?from=5&to=1", "?from=nan&to=2", "?from=a&to=b", "?x=sideways", "?step=-3", "?step=1e400", "?by=<b>"]
)
def test_what_makes_no_sense_in_a_link_is_left_at_its_default(query: str) -> None:
    assert of_text(query) == (View(end=2.0) if "nan" in query else View())


@given(st.dictionaries(st.sampled_from(["run", "x", "from", "to", "step", "by"]), st.text(max_size=30)))
def test_no_link_breaks_the_page(fields: dict[str, str]) -> None:
    view = View.of_query(fields)
    assert len(view.runs) <= 4
    assert view.start is None or view.end is None or view.start < view.end
