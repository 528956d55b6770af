"""Links from the tour into What-if, with the workload and the settings of a stop."""

from __future__ import annotations

from dashboard.what_if.query import link as what_if_link

__all__ = ["what_if_link"]
