"""The panels: one module each, listed once, in the order in which pages show them."""

from __future__ import annotations

from . import (
    block_map,
    cost,
    kv,
    latency,
    occupancy,
    preemptions,
    queue,
    slots,
    spikes,
    tokens,
    waste,
    waterfall,
)
from .base import Panel

PANELS: dict[str, Panel] = {
    module.PANEL.key: module.PANEL
    for module in (
        slots, tokens, queue, occupancy, kv, waterfall, spikes, preemptions, cost, latency, waste, block_map,
    )
}  # fmt: skip
