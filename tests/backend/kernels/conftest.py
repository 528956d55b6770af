"""Kernels are tested in Triton's interpreter on the CPU, or on a GPU with ``TRITON_INTERPRET=0``."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from backend.kernels.tiles import INTERPRETED


@pytest.fixture(scope="session", autouse=True)
def _kernels_can_run() -> None:
    """The variable counts at triton's first import, which may have come before this file."""
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.fail("triton was imported before TRITON_INTERPRET=1 was set, and there is no GPU")
