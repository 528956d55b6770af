"""Small recordings that ship with the project: one workload under every policy, measured; and its simulated twin.

`make.py` in this folder made them with the embedded model.
"""

from __future__ import annotations

from pathlib import Path

from scheduler.errors import unknown_name

_FOLDER = Path(__file__).resolve().parent
_SUFFIX = ".trace"


def sample_names() -> list[str]:
    """Names of the recordings: each policy's name, and ``chunked-simulated``."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def sample_path(name: str) -> Path:
    """The folder of a recording, for `Trace.open`; raises ConfigError for a name that is none."""
    if name not in sample_names():
        raise unknown_name("sample", name, sample_names())
    return _FOLDER / f"{name}{_SUFFIX}"
