"""Imports at the start of a command: nothing heavy for its help, and no other command."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = (
    "dagster", "duckdb", "fastapi", "great_expectations", "lightgbm", "numpy", "onnx", "openvino", "pandas", "pyarrow",
    "rich", "sklearn", "torch", "transformers",
)  # fmt: skip
_SCRIPT = f"""
import re
import sys
from typer.testing import CliRunner
from accel_platform.cli import _COMMANDS, app

def heavy():
    return [name for name in {HEAVY!r} if name in sys.modules]

def helped(*words):
    answer = CliRunner().invoke(app, [*words, "--help"])
    assert answer.exit_code == 0, answer.output
    usage = answer.output.splitlines()[0]
    assert not re.search(r"\\[\\[|\\.\\.\\.[\\]}}]", usage), "typer adds brackets and dots to names of arguments"
    options = answer.output.partition("Options:")[2]
    assert "<list[" not in options, "names of Python's types tell nobody what to write"
    return answer.output

top = helped()
assert not [name for name in sys.modules if name.startswith("accel_platform.cli.")], "the list of commands imports none"
assert all(name in top and entry.summary in top for name, entry in _COMMANDS.items()), top
import typer.main
for name in _COMMANDS:
    helped(name)
    command = typer.main.get_command(app).commands[name]
    for child in getattr(command, "commands", {{}}):
        helped(name, child)
    assert not heavy(), (name, heavy())
print(len(_COMMANDS))
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 20


def test_help_uses_the_terminals_width_and_cuts_no_summary() -> None:
    command = [sys.executable, "-m", "accel_platform", "bench", "--help"]
    wide, narrow = (
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env=os.environ | {"COLUMNS": columns}
        ).stdout
        for columns in ("100", "60")
    )
    assert "..." not in (wide + narrow).replace("[ARGS]...", "")
    assert "Run the benchmark of a suite file, and write its reports, charts and tables.\n" in wide
    assert 80 < max(map(len, wide.splitlines())) <= 100
    assert max(map(len, narrow.splitlines())) <= 60
