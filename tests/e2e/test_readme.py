"""Every command the README shows runs as it stands there, one after the other, as a newcomer would type them.

`make run`, `make test` and `make ui` are commands of their own, proved in a fresh clone and in test_main_job.py; here
it is checked that the Makefile has them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from processes import free_port, running, wait_for

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
_TOUR = re.findall(r"^\$ (.+)$", README, flags=re.MULTILINE)
_SHOWN = dict(re.findall(r"^\$ (.+)\n((?:(?!\$ |```).*\n)*)", README, flags=re.MULTILINE))
_WITH_PAGES = ("docs", "accel_platform", "benchmarks", "deploy")
_MAKE = re.findall(r"(?:^|`)make (\w+)", README, flags=re.MULTILINE)


def test_the_readme_shows_a_tour() -> None:
    assert [shlex.split(command)[1] for command in _TOUR if command.startswith("accel")] == [
        "detect", "bench", "migrate", "bench", "db", "matrix", "db", "db", "train", "recommend", "predict", "predict",
        "db",
    ]  # fmt: skip


@pytest.mark.parametrize("target", sorted(set(_MAKE)))
def test_make_knows_the_targets_the_readme_names(target: str) -> None:
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_links_pictures_and_anchors_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(p for top in _WITH_PAGES for p in (ROOT / top).rglob("*.md"))]
    texts = {
        page: re.sub(r"^[ \t]*```.*?^[ \t]*```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL) for page in pages
    }
    anchors = {
        page: {_anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        for page, text in texts.items()
    }
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page, text in texts.items()
        for link, path, anchor in re.findall(r"\]\((([^)#\s]*)(?:#([^)\s]*))?)[^)]*\)", text)
        if "://" not in link
        if not (page.parent / path).exists()
        or (anchor and anchor not in anchors.get((page.parent / path).resolve() if path else page, {anchor}))
    ]
    assert broken == []


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading: its words in small letters, between hyphens."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def test_files_that_the_documentation_names_are_there() -> None:
    named = {
        path
        for page in [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        for path in re.findall(
            r"`((?:accel_platform|assets|benchmarks|migrations|predictor|tests)/[\w/.]+)`", page.read_text()
        )
    }
    assert named
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.slow
def test_every_command_of_the_tour_runs(tmp_path: Path) -> None:
    for shown in ("samples", "accel_platform/knowledge/reference"):
        shutil.copytree(ROOT / shown, tmp_path / shown)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ACCEL_HOME": str(tmp_path / "home"),
    }
    port = free_port()
    for command in _TOUR:
        if command.startswith("curl"):
            log = tmp_path / "serve.log"
            serve = [str(Path(sys.executable).with_name("accel")), "serve", "--port", str(port)]
            with running(serve, log, ACCEL_HOME=environment["ACCEL_HOME"]):
                wait_for("the service", 180, lambda port=port: _answers(port), log)
                done = _run(command.replace(":8000", f":{port}"), tmp_path, environment)
            assert '"recommendations"' in done.stdout
        else:
            done = _run(command, tmp_path, environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip() or done.stderr.strip(), command
        assert "Traceback" not in done.stderr, command
        shown = _SHOWN[command].splitlines()
        if len(shown) > 1 and shown[1].startswith("---"):
            assert done.stdout.splitlines()[0].split() == shown[0].split(), f"{command}: the README shows other columns"
        if "migrate" in command:
            assert done.stdout.splitlines()[-1] == shown[-1]
        if "matrix" in command:
            assert {line.split()[0] for line in done.stdout.splitlines()} == {line.split()[0] for line in shown}


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


def _run(command: str, directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
