"""A host that only measures: the measuring part in an environment of its own, and its results in the whole platform."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from processes import REPOSITORY

from accel_platform.carried_wheels import TargetHost, measuring_packages

pytestmark = pytest.mark.slow


def _torch_and_what_it_needs() -> list[Distribution]:
    found: dict[str, Distribution] = {}
    asked = [Requirement("torch")]
    while asked:
        one = asked.pop()
        if one.name not in found:
            found[one.name] = distribution(one.name)
            further = map(Requirement, found[one.name].requires or ())
            asked += [r for r in further if r.marker is None or r.marker.evaluate({"extra": ""})]
    return list(found.values())


@pytest.fixture(scope="module")
def measuring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the platform's wheel, the measuring part and torch alone."""
    home = tmp_path_factory.mktemp("measuring")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(home), str(REPOSITORY)],
        check=True,
        capture_output=True,
        timeout=360,
    )
    venv.create(home / "env", symlinks=True)
    python = home / "env" / "bin" / "python"
    [wheel] = home.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=360)
    target = TargetHost(f"{sys.version_info[0]}.{sys.version_info[1]}", f"linux_{platform.machine()}", {})
    [packages] = (home / "env").glob("lib/python*/site-packages")
    for needed in (*map(distribution, measuring_packages(["cpu"], target)), *_torch_and_what_it_needs()):
        for name in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(needed.locate_file(name)))
    return python.with_name("accel")


def _run(command: Sequence[str], folder: Path, *, fails: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ACCEL_", "DAGSTER_", "PYTHONPATH"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout if not fails else done.stderr


def test_it_measures_and_exports_and_the_whole_platform_imports(measuring: Path, tmp_path: Path) -> None:
    accel = str(measuring)
    for absent in ("duckdb", "dagster", "fastapi", "altair", "obstore", "onnxruntime"):
        find = f"import importlib.util; print(importlib.util.find_spec({absent!r}))"
        assert _run([str(measuring.with_name("python")), "-c", find], tmp_path) == "None\n"

    devices = json.loads(_run([accel, "detect", "--json"], tmp_path))["devices"]
    assert {d["hardware"] for d in devices if d["available"]} == {"cpu"}
    small = ["--models", "bert-tiny", "--hardware", "cpu", "--batch-sizes", "1", "--effort", "quick"]
    [measured] = json.loads(_run([accel, "bench", "run", *small, "--json"], tmp_path))["results"]
    assert measured["status"] == "ok"
    assert "bert-tiny" in _run([accel, "bench", "run", *small, "--repeat", "2"], tmp_path)
    _run([accel, "bench", "request", *small], tmp_path)
    [taken] = json.loads(_run([accel, "bench", "take", "--json"], tmp_path))
    assert taken["state"] == "done"
    assert "needs duckdb" in _run([accel, "db", "stats"], tmp_path, fails=1)
    _run([accel, "bench", "export", "campaign.parquet"], tmp_path)

    whole = [sys.executable, "-m", "accel_platform"]
    elsewhere = tmp_path / "whole"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "ACCEL_HOME": str(elsewhere / "home")}
    subprocess.run([*whole, "bench", "import", str(tmp_path / "campaign.parquet")], env=environment, check=True)
    query = "SELECT model_id, round(latency_p50_ms, 4) AS p50_ms FROM results WHERE status = 'ok' ORDER BY 2"
    answer = subprocess.run(
        [*whole, "db", "query", query, "--json"], env=environment, check=True, capture_output=True, text=True
    )
    rows = json.loads(answer.stdout)
    assert [row["model_id"] for row in rows] == ["bert-tiny"] * 4
    assert round(measured["latency_p50_ms"], 4) in [row["p50_ms"] for row in rows]
