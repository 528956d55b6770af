"""The operations of a forward, one file a device path; `make_ops` picks one."""

from __future__ import annotations

from .base import FlatAttention, Ops, PaddedAttention, StepInputs, make_ops

__all__ = ["FlatAttention", "Ops", "PaddedAttention", "StepInputs", "make_ops"]
