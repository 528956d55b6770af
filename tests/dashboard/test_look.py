"""Two themes: each colour can be told from what it stands on, and the style sheet agrees with the figures."""

from __future__ import annotations

import re

import pytest

from dashboard.look import DARK, LIGHT, Look, look_named
from tests.conftest import ROOT

STYLE = (ROOT / "dashboard" / "assets" / "style.css").read_text()


def luminance(color: str) -> float:
    """Relative luminance, https://www.w3.org/TR/WCAG21/#dfn-relative-luminance."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_text_is_readable_on_cards_and_page(look: Look) -> None:
    for ground in (look.card, look.paper):
        assert contrast(look.ink, ground) >= 7
        assert contrast(look.muted, ground) >= 4.5


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_runs_stand_out_from_the_card(look: Look) -> None:
    assert all(contrast(color, look.card) >= 3 for color in look.runs)


@pytest.mark.parametrize(("look", "block"), [(LIGHT, 0), (DARK, 1)], ids=["light", "dark"])
def test_the_style_sheet_has_the_colours_of_the_figures(look: Look, block: int) -> None:
    text = re.findall(r":root[^{]*\{(.*?)\}", STYLE, re.DOTALL)[block]
    said = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text))
    assert [said[f"run-{index}"] for index in range(4)] == [color.lower() for color in look.runs]
    for name in ("ink", "muted", "paper", "card", "accent"):
        assert said[name] == getattr(look, name).lower()


def test_an_unknown_theme_is_the_light_one() -> None:
    assert look_named("<b>") is look_named(None) is LIGHT
