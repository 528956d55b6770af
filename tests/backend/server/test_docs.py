"""The examples of docs/serving.md run as they stand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from tests.conftest import ROOT

from .running import Running

TEXT = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
DEFAULT = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("code", [code for code in blocks("sh") if code.startswith("curl")])
def test_a_curl_command_gets_json(server: Running, code: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    told = subprocess.run(["sh", "-c", code.replace(DEFAULT, server.url)], capture_output=True, text=True, check=True)
    assert "error" not in json.loads(told.stdout)


def test_the_python_example_runs(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(code.replace(DEFAULT, server.url), {})
    assert capsys.readouterr().out.endswith(" tokens\n")


def test_every_metric_is_in_the_table(server: Running) -> None:
    with server.http() as client:
        names = re.findall(r"^# TYPE ((?:vllm|batchscope):\w+) ", client.get("/metrics").text, flags=re.MULTILINE)
    told = set(re.findall(r"(?:vllm|batchscope):\w+", TEXT)) | {"vllm:prefix_cache_hits_total"}  # told as `_hits_total`
    assert set(names) == told


def test_every_path_is_in_the_table(server: Running) -> None:
    with server.http() as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path.replace("{name}", "NAME") not in TEXT]
