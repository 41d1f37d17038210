"""`accel host serve --slurm`: what it needs is asked for before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.errors import InvalidInput, NotFound


def _serve(*words: str) -> BaseException | None:
    return CliRunner().invoke(app, ["host", "serve", "--port", "4000", "--slurm", *words]).exception


def test_slurm_needs_hardware_that_the_cluster_file_names_and_sbatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = _serve()
    assert isinstance(error, InvalidInput)
    assert "Name the cluster's hardware" in str(error)
    error = _serve("--hardware", "cuda")
    assert isinstance(error, InvalidInput)
    assert "There is no sbatch on PATH" in str(error)
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    error = _serve("--hardware", "mps")
    assert isinstance(error, NotFound)
    assert "The cluster has no mps" in str(error)
