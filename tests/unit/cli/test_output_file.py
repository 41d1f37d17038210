"""Files that commands write: refused before any work, and never in the place of a pipe."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from accel_platform.cli import app
from accel_platform.errors import InvalidInput
from accel_platform.table_io.files import save_bytes

COMMANDS = (
    "report comprehensive -o",
    "chart latency -o",
    "matrix -o",
    "compare hardware -o",
    "db export results -o",
    "evaluate -o",
    "evaluate --report",
    "predict bert-base --hardware cpu --chart",
    "predict --generate-matrix --format csv --output",
    "regress check --baseline a --candidate b --markdown",
    "regress check --baseline a --candidate b --junit",
    "bench coverage --write",
    "bench export",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_in_no_directory_is_refused_before_the_work(command: str, tmp_path: Path) -> None:
    """Nothing was measured into the home, so any work would end with another error."""
    file = tmp_path / "nowhere" / "x.html"
    with pytest.raises(InvalidInput, match="nowhere does not exist"):
        app([*command.split(), str(file), "--home", str(tmp_path / "home")], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_two_formats_are_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_platform.backends.detect.detect", lambda: pytest.fail("detected first"))
    with pytest.raises(InvalidInput, match="--json and --format csv are two formats"):
        app(["detect", "--json", "--format", "csv", "--home", str(tmp_path / "home")], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_a_link_stays(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    save_bytes(pipe, b"answer")
    reader.join(timeout=20)
    assert read == [b"answer"]
    assert pipe.is_fifo()
    link.symlink_to(file)
    save_bytes(link, b"answer")
    assert link.is_symlink()
    assert file.read_bytes() == b"answer"
