"""What pages work with: the runs, and who does the work behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .data.catalog import Catalog

if TYPE_CHECKING:
    from .live.feeds import Feeds
    from .runs.jobs import Jobs
    from .runs.store import RunStore
    from .runs.uploads import Uploads


@dataclass(frozen=True)
class Services:
    """Handed to every page's `layout` and `register`.

    Attributes:
        catalog: runs by key.
        store: the folders of the dashboard's own runs.
        jobs: the workers that make them.
        uploads: what people sent.
        feeds: live sources.
        engine_url: the live source to offer first; None: none is known.
        engine_key: what that source asks for; it is sent nowhere else.
    """

    catalog: Catalog
    store: RunStore
    jobs: Jobs
    uploads: Uploads
    feeds: Feeds
    engine_url: str | None = None
    engine_key: str | None = None
