"""A fuzzer over the whole OpenAPI document: no answer that it does not promise, and none of 500. Many more cases are
`benchmarks/schemathesis_run.py`."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uvicorn

from predictor.service.app import create_app
from predictor.service.background.warehouse_updates import WarehouseUpdater
from predictor.service.server import listen
from predictor_world import MODELS, measured_grid, world

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_operation_keeps_what_its_schema_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        WarehouseUpdater, "request_update", lambda self: None
    )  # writes are many, and their tables asked of nobody
    app = create_app(world(tmp_path / "home", measured_grid(MODELS[:2])))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        port = listening.getsockname()[1]
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(ROOT / "schemathesis.toml"),
            "run", f"http://127.0.0.1:{port}/openapi.json", "--checks", "all", "--phases", "examples,fuzzing",
            "--max-examples", "5", "--seed", "1", "--no-shrink", "--continue-on-failure",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
        server.should_exit = True
        thread.join()
    assert done.returncode == 0, done.stdout[-6000:]
    cases = re.search(r"([\d,]+) generated", done.stdout)
    assert cases
    assert int(cases[1].replace(",", "")) >= 100
