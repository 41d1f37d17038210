"""A back end for a team: PostgreSQL, object storage and two hosts, each in a network of its own; one is cut off."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from processes import REPOSITORY, needs_a_quiet_machine

pytestmark = [pytest.mark.slow, needs_a_quiet_machine]
pytest.importorskip("dagster_postgres", reason="the extra `postgres` is not installed")

SCRIPT = REPOSITORY / "benchmarks" / "partition.py"


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("partition", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, Any]]:
    if reason := _module().unavailable():
        pytest.skip(reason)
    done = subprocess.run([sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("until", ["ended", "taken"])
def test_the_request_of_a_host_that_is_cut_off_moves_and_nothing_is_lost_or_doubled(
    figures: dict[str, dict[str, Any]], until: str
) -> None:
    found = figures[until]
    assert found["results before the cut"] >= 1
    assert (found["state"], found["attempts"]) == ("done", 2)
    assert (found["results lost"], found["results doubled"], found["events doubled"]) == (0, 0, 0)
    assert found["that one"] == "done"  # it measures again, once it has joined


def test_a_request_outlives_a_short_cut(figures: dict[str, dict[str, Any]]) -> None:
    found = figures["some seconds"]
    assert (found["state"], found["attempts"]) == ("done", 1)
    assert (found["results lost"], found["results doubled"], found["events doubled"]) == (0, 0, 0)
