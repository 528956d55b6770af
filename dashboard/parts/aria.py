"""Attributes for those who do not see the page, and for our scripts."""

from __future__ import annotations

from typing import Any


def aria(**words: str) -> dict[str, Any]:
    """``aria-*`` attributes of a component: ``aria(label="Speed")``."""
    return {f"aria-{name}": text for name, text in words.items()}


def data(**words: str) -> dict[str, Any]:
    """``data-*`` attributes of a component: ``data(key="slots")``."""
    return {f"data-{name}": text for name, text in words.items()}
