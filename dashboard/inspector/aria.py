"""Labels for screen readers, as keyword arguments."""

from __future__ import annotations

from typing import Any


def labelled(text: str, **more: str) -> dict[str, Any]:
    """``aria-label`` and other ``aria-`` attributes; Python allows no hyphen in a keyword."""
    return {"aria-label": text, **{f"aria-{name}": value for name, value in more.items()}}
