"""The pages, in the order of the navigation."""

from __future__ import annotations

from . import inspect, live, replay, sweep, tour, what_if

PAGES = (what_if, live, replay, inspect, sweep, tour)
