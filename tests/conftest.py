"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: kernels run without a GPU

# how long an example takes says little on a busy machine
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public workloads and recordings; tests that need it skip where it is absent."""
    path = Path(os.environ.get("BATCHSCOPE_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no data folder at {path}; set BATCHSCOPE_DATA")
    return path
