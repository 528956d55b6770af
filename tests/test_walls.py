"""The rooms import downwards only, and nobody pays for what another room needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

ROOMS = ("scheduler", "traces", "simulator", "backend", "dashboard")
MAY_IMPORT = {
    "scheduler": set(),
    "traces": {"scheduler"},
    "simulator": {"scheduler", "traces"},
    "backend": {"scheduler", "traces"},
    "dashboard": {"scheduler", "traces", "simulator", "backend"},
}
NEVER = {
    "scheduler": {"torch", "simpy", "triton", "dash", "plotly", "pandas", "pyarrow", "transformers", "click", "rich"},
    "traces": {"torch", "simpy", "triton", "dash", "plotly", "transformers"},
    "simulator": {"torch", "triton", "dash", "plotly", "transformers"},
    "backend": {"simpy", "dash", "plotly"},
    "dashboard": {"torch", "triton"},
}
SHELL = [sys.executable, "-c"]


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Top-level names of all imports in a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_floors_below_it(room: str) -> None:
    above = set(ROOMS) - MAY_IMPORT[room] - {room}
    wrong = [(path.name, name) for path in sources(room) for name in imported(path) if name in above]
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_never_imports_what_it_must_run_without(room: str) -> None:
    wrong = [(path.name, name) for path in sources(room) for name in imported(path) if name in NEVER[room]]
    assert not wrong


def test_the_scheduler_needs_numpy_alone() -> None:
    allowed = {"numpy", "scheduler"} | set(sys.stdlib_module_names)
    assert not [(path.name, name) for path in sources("scheduler") for name in imported(path) if name not in allowed]


def loaded_after(code: str) -> set[str]:
    """Top-level modules in memory after some code, in a process of its own."""
    program = f"import sys\n{code}\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([*SHELL, program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(result.stdout.splitlines()[-1].split())


def test_help_imports_no_room_and_no_heavy_library() -> None:
    code = "import batchscope\ntry:\n    batchscope.main(['--help'])\nexcept SystemExit:\n    pass"
    heavy = {"torch", "transformers", "pandas", "pyarrow", "simpy", "dash", "rich", "simulator", "traces"}
    assert not loaded_after(code) & heavy


def test_simulating_does_not_import_torch_or_the_dashboard() -> None:
    code = (
        "import batchscope\ntry:\n    batchscope.main(['simulate', '--requests', '5', '--json'])\n"
        "except SystemExit:\n    pass"
    )
    assert not loaded_after(code) & {"torch", "transformers", "dash", "plotly", "backend", "dashboard"}


def test_the_engines_room_and_its_commands_load_nothing_heavy_until_they_run() -> None:
    code = "import backend, backend.cli, backend.cli_serve, backend.cli_model, backend.cli_profile"
    assert not loaded_after(code) & {"torch", "triton", "transformers", "pandas", "pyarrow", "fastapi", "uvicorn"}
