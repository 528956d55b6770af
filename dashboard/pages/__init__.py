"""The pages, in the order of the navigation."""

from __future__ import annotations

from . import inspect, live, replay, tour

PAGES = (live, replay, inspect, tour)
