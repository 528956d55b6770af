"""The runs a person can choose from, grouped: given traces, their own runs and uploads, samples."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from dashboard.data.catalog import Entry
from dashboard.owner import current_owner
from dashboard.services import Services
from scheduler.errors import UserError

MOST_OWN = 50
"""Own runs in a list: the newest."""


def run_choices(services: Services, also: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Options for a select, in groups; `also` are keys from a link that the reader's own lists lack."""
    entries = [*own_entries(services), *services.catalog.entries()]
    known = {entry.key for entry in entries}
    entries += [_linked(services, key) for key in also if key not in known]
    groups: dict[str, list[dict[str, str]]] = {}
    for entry in entries:
        label = f"{entry.name} ({entry.source})" if entry.source else entry.name
        groups.setdefault(entry.group, []).append({"value": entry.key, "label": label})
    return [{"group": group, "items": items} for group, items in groups.items()]


def own_entries(services: Services) -> list[Entry]:
    """The simulations and uploads of whoever asks, newest first."""
    owner = current_owner()
    runs = [
        Entry(f"r-{run.id}", f"{run.label or 'run'}, {_when(run.created_s)}", "My runs", "simulated")
        for run in services.store.own(owner)
        if run.state == "done" and run.trace_path is not None
    ]
    uploads = [
        Entry(f"u-{upload.id}", f"{upload.name}, {_when(upload.created_s)}", "My uploads", upload.facts["source"])
        for upload in services.uploads.own(owner)
        if upload.kind == "trace"
    ]
    return [*runs[:MOST_OWN], *uploads[:MOST_OWN]]


def _linked(services: Services, key: str) -> Entry:
    try:
        run = services.catalog.run(key)
    except UserError:
        return Entry(key, key, "From a link", "")  # the board says what is wrong with it
    return Entry(key, run.name, "From a link", run.source)


def _when(created_s: float) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(created_s))
