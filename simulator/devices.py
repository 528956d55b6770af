"""Which hardware sheet a device's own name means, as drivers and profiles write it."""

from __future__ import annotations

import re

from .hardware import HARDWARE, HardwareSheet


def sheet_of_device(device: str) -> HardwareSheet | None:
    """The sheet all of whose name's words stand in `device`, the one of most words; None where there is none.

    ``NVIDIA GeForce RTX 4090`` is ``rtx-4090``, ``NVIDIA A100-SXM4-80GB`` is ``a100-80gb``.
    """
    words = set(re.findall(r"[a-z]+[0-9]+[a-z]*|[0-9]+[a-z]*|[a-z]+", device.lower()))
    fitting = [name for name in HARDWARE if set(name.split("-")) <= words]
    return HARDWARE[max(fitting, key=lambda name: name.count("-"))] if fitting else None
