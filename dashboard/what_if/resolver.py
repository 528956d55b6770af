"""The dashboard's own runs and uploads for the catalog: their keys are ``r-ID`` and ``u-ID``."""

from __future__ import annotations

from pathlib import Path

from dashboard.data.catalog import Resolver
from dashboard.runs.store import RunStore
from dashboard.runs.uploads import Uploads
from scheduler.errors import UserError


def resolver(store: RunStore, uploads: Uploads) -> Resolver:
    """Finds the traces behind keys of own runs and uploads; leaves other keys to others."""

    def resolve(key: str) -> tuple[Path, str] | None:
        kind, _, ident = key.partition("-")
        if kind == "r":
            return _run(store, ident)
        return _upload(uploads, ident) if kind == "u" else None

    return resolve


def run_key(run_id: str) -> str:
    """The catalog's key of an own run."""
    return f"r-{run_id}"


def _run(store: RunStore, ident: str) -> tuple[Path, str]:
    run = store.get(ident)
    path = run.trace_path
    if path is None:
        raise UserError(f"the run {run.label or ident!r} has no trace: {run.sentence or f'it is {run.state}'}")
    return path, run.label or "what-if"


def _upload(uploads: Uploads, ident: str) -> tuple[Path, str]:
    upload = uploads.get(ident)
    if upload.kind != "trace":
        raise UserError(f"{upload.name} is a workload, not a step trace")
    return upload.path, upload.name
