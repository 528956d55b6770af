"""Who asks: an opaque name that a browser keeps in a cookie."""

from __future__ import annotations

import flask

COOKIE = "batchscope-owner"


def current_owner() -> str:
    """The name of the browser whose request is being answered."""
    return str(flask.g.owner)
