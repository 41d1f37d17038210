"""A model that really got slower, measured for real, is found by the command that gates a merge, and nothing else is.

The slowdown is more layers under the same model id, as a commit may bring. One core measures, and other work on the
machine slows both sides alike.
"""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench_world import SPEC, World
from typer.testing import CliRunner, Result

from accel_platform.bench.labels import COMMIT_VARIABLES
from accel_platform.bench.plan import plan
from accel_platform.cli import app
from accel_platform.hardware import detect

pytestmark = pytest.mark.slow

SLOWER = replace(SPEC, config={**SPEC.config, "num_hidden_layers": 6})
OLD, SAME, NEW = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


def accel(world: World, *arguments: str, code: int) -> Result:
    done = CliRunner().invoke(app, ["regress", *arguments, "--home", str(world.settings.home)])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.usefixtures("one_core")
def test_a_real_slowdown_is_confirmed_recorded_and_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "home"))
    for name in COMMIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    world = World(tmp_path / "home", detect())  # with the one core
    cells = plan([SPEC], ["onnxruntime"], [1], [16])
    for commit in [OLD] * 5 + [SAME]:
        world.run(cells, labels={"commit": commit})
    world.run(plan([SLOWER], ["onnxruntime"], [1], [16]), labels={"commit": NEW})
    asked = ("check", "--baseline", OLD[:8], "--candidate", NEW)

    [alone] = json.loads(accel(world, *asked, "--json", code=0).stdout)["cells"]
    assert (alone["state"], alone["reason"]) == ("suspicious", "one process alone says so")
    assert alone["change_percent"] > 50

    page, report = tmp_path / "page.md", tmp_path / "report.xml"
    written = ("--markdown", str(page), "--junit", str(report))
    done = accel(world, *asked, "--confirm", "--record", "--json", *written, code=1)
    [cell] = json.loads(done.stdout)["cells"]
    assert (cell["state"], cell["processes_after"]) == ("regressed", 3)
    assert cell["change_percent"] > 50
    assert "| bert-tiny | onnxruntime, batch 1, length 16, float32 |" in page.read_text()
    assert ET.parse(report).getroot().get("failures") == "1"
    confirming = [event for event in world.events("RunStarted") if "confirms" in event.labels]
    assert [event.labels["commit"] for event in confirming] == [NEW] * 3

    # The same code again, measured at the same time, is none.
    accel(world, "check", "--baseline", OLD, "--candidate", SAME, code=0)

    accel(world, "accept", cell["regression_id"], "--by", "ada", "--reason", "six layers", code=0)
    assert "its new level was accepted" in accel(world, *asked, code=0).stdout
