"""The pages, in the order of the navigation."""

from __future__ import annotations

from . import live, replay

PAGES = (live, replay)
