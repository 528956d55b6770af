"""The runs a person can choose from, grouped: given traces, their own runs, samples."""

from __future__ import annotations

from typing import Any

from dashboard.services import Services


def run_choices(services: Services) -> list[dict[str, Any]]:
    """Options for a select, in groups."""
    groups: dict[str, list[dict[str, str]]] = {}
    for entry in services.catalog.entries():
        groups.setdefault(entry.group, []).append({"value": entry.key, "label": entry.name})
    return [{"group": group, "items": items} for group, items in groups.items()]
