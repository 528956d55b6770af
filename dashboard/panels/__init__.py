"""The panels: one module each, listed once, in the order in which pages show them."""

from __future__ import annotations

from . import slots, tokens
from .base import Panel

PANELS: dict[str, Panel] = {panel.key: panel for panel in (slots.PANEL, tokens.PANEL)}
