"""Models of the user's own, measured in every form and then answered for by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_models import IMAGE, write_forms

pytestmark = pytest.mark.slow

_HARDWARE = ("cpu", "onnxruntime", "openvino")
_SOURCES = {
    "Net": "net.py:Net", "script": "script.pt", "program": "program.pt2", "graph": "graph.onnx", "ir": "ir.xml"
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_forms(tmp_path_factory.mktemp("own"))
    entries = {
        key: {"source": source, **({} if source.endswith(("onnx", "xml")) else {"inputs": IMAGE})}
        for key, source in _SOURCES.items()
    }
    (made / "models.json").write_text(json.dumps(entries))
    return made


def _accel(folder: Path, *words: str) -> Any:
    done = subprocess.run(
        [Path(sys.executable).with_name("accel"), *words, "--json"],
        cwd=folder,
        env={**os.environ, "ACCEL_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_every_form_is_measured_and_answered_for(folder: Path) -> None:
    measured = _accel(
        folder, "bench", "run", "--models-file", "models.json", "--hardware", ",".join(_HARDWARE),
        "--batch-sizes", "2", "--effort", "quick",
    )  # fmt: skip
    found = {(row["model_id"], row["hardware"]): row["status"] for row in measured["results"]}
    runs = {cell for cell, status in found.items() if status == "ok"}
    everywhere = {
        (name, hardware) for name in ("Net", "script", "program") for hardware in ("cpu", "onnxruntime", "openvino")
    }
    assert runs == everywhere | {("graph", "onnxruntime"), ("graph", "openvino"), ("ir", "openvino")}
    # By name alone, from another folder's point of view: the log knows file and inputs.
    again = _accel(
        folder,
        "bench",
        "run",
        "--models",
        "Net",
        "--hardware",
        "onnxruntime",
        "--batch-sizes",
        "4",
        "--effort",
        "quick",
    )
    assert [row["status"] for row in again["results"]] == ["ok"]
    _accel(folder, "db", "rebuild")
    for name in ("Net", "graph"):
        answer = _accel(folder, "predict", name, "--hardware", "RTX 4090", "--batch-size", "2")
        assert answer["latency_ms"]["p50"] > 0, name
