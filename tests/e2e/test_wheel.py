"""The wheel and the source distribution: what is in them, and the commands of an installation without a clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import REPOSITORY, free_port, running, wait_for

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
LOCATIONS = "{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { __typename } } } } }"


@dataclass(frozen=True)
class Distributions:
    wheel: Path
    sdist: Path


def _build(source: Path, output: Path, *options: str) -> Distributions:
    """Without options, the wheel is made from the source distribution."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=360)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = output.glob("*.whl"), output.glob("*.tar.gz")
    return Distributions(wheel, sdist)


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """The files that git tracks, or would if they were added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(name for name in set(listed) if name and (REPOSITORY / name).is_file())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return _build(REPOSITORY, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def accel(tmp_path_factory: pytest.TempPathFactory, built: Distributions) -> Path:
    """The command in an environment of its own, with what the platform depends on taken from this one; no extras."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, str(built.wheel)], check=True, timeout=360)
    [packages] = home.glob("lib/python*/site-packages")
    for needed in _dependencies():
        for name in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(needed.locate_file(name)))
    return python.with_name("accel")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


def _dependencies() -> list[Distribution]:
    """The distributions that the platform brings without extras."""
    found: dict[tuple[str, str], Distribution] = {}
    asked = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    while asked:
        requirement = asked.pop()
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key not in found:
                found[key] = distribution(requirement.name)
                further = map(Requirement, found[key].requires or ())
                asked += [one for one in further if one.marker is None or one.marker.evaluate({"extra": extra})]
    return list(found.values())


def _run(folder: Path, *command: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ACCEL_", "DAGSTER_", "PYTHONPATH"))
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_two_builds_are_equal_whichever_way_they_are_made(
    built: Distributions, sources: list[str], tmp_path: Path
) -> None:
    for name in sources:
        copy = tmp_path / "elsewhere" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, copy)
        copy.chmod(copy.stat().st_mode & 0o700)
    again = _build(tmp_path / "elsewhere", tmp_path / "dist", "--sdist", "--wheel")
    assert again.sdist.read_bytes() == built.sdist.read_bytes()
    assert again.wheel.read_bytes() == built.wheel.read_bytes()


def test_they_hold_what_git_tracks(built: Distributions, sources: list[str]) -> None:
    with tarfile.open(built.sdist) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert held == {*sources, "PKG-INFO"}

    with zipfile.ZipFile(built.wheel) as wheel:
        info = f"accel_platform-{VERSION}.dist-info/"
        in_wheel = {name: wheel.read(name) for name in wheel.namelist() if not name.startswith(info)}
        assert f"\nVersion: {VERSION}\n" in wheel.read(f"{info}METADATA").decode()
    places = {package: package for package in WHEEL["packages"]} | WHEEL["force-include"]
    expected = {
        places[root] + name.removeprefix(root): (REPOSITORY / name).read_bytes()
        for name in sources
        for root in places
        if name == root or name.startswith(f"{root}/")
    }
    assert in_wheel == expected
    assert built.wheel.stat().st_size < 14_000_000


def test_it_is_the_installed_platform_that_runs(accel: Path, folder: Path) -> None:
    assert _run(folder, str(accel), "--version") == f"accel {VERSION}\n"
    where = "import accel_platform, assets, migrations, predictor; print(accel_platform, assets, migrations, predictor)"
    shown = _run(folder, str(accel.with_name("python")), "-c", where)
    assert shown.count(str(accel.parents[1])) == 4
    assert list(folder.iterdir()) == []
    for extra in ("jax", "playwright", "pytest"):
        find = f"import importlib.util; print(importlib.util.find_spec({extra!r}))"
        assert _run(folder, str(accel.with_name("python")), "-c", find) == "None\n"


def test_the_pipeline_and_its_commands_run_in_any_folder(accel: Path, folder: Path) -> None:
    for name in ("assets.py", "predictor.py", "random.py"):  # other people's modules
        (folder / name).write_text(f"raise SystemExit('{name} of this folder')")
    small = ("--models", "bert-tiny", "--hardware", "cpu", "--batch-sizes", "1", "--effort", "quick")
    assets = json.loads(_run(folder, str(accel), "run", *small, "--no-serve", "--json"))["assets"]
    assert assets["measurements"]["measured"] == 1
    assert assets["reference_campaign"]["row_count"] > 0
    assert assets["legacy_history"]["row_count"] > 0
    assert assets["predictor"]["trained_now"] is True

    shutil.copytree(REPOSITORY / "samples" / "legacy" / "csv", folder / "results")
    migrated = json.loads(_run(folder, str(accel), "migrate", "results", "--json"))
    assert {document["outcome"] for document in migrated["documents"]} == {"duplicate"}
    _run(folder, str(accel), "train")

    [packaged] = accel.parents[1].glob("lib/python*/site-packages/assets/data/workspace.yaml")
    before, port = packaged.read_bytes(), free_port()
    _run(folder, str(accel), "host", "add", "elsewhere", f"127.0.0.1:{port}")
    assert packaged.read_bytes() == before
    assert f"port: {port}" in (folder / ".accel" / "workspace.yaml").read_text()


def test_the_pages_and_the_service_run_in_this_folder(accel: Path, folder: Path, tmp_path: Path) -> None:
    pages, service, log = free_port(), free_port(), tmp_path / "ui.log"
    command = [str(accel), "ui", "--ui-port", str(pages), "--port", str(service)]
    with running(command, log, folder=folder, PYTHONPATH="") as process:
        wait_for("accel ui", 120, lambda: "asset graph" in log.read_text() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        question = {"model": "bert-base-uncased", "batch_size": 4, "sequence_length": 128}
        answer = httpx.post(f"http://127.0.0.1:{service}/recommend", json=question, timeout=180)
        assert answer.status_code == 200, answer.text
        assert answer.json()["recommendations"]
        entries = wait_for("the code locations", 60, lambda: _locations(pages), log)
    assert {name for name, kind in entries.items() if kind == "RepositoryLocation"} == {"accel", "this-host"}


def _locations(port: int) -> dict[str, str] | None:
    """Each code location's name with its type, once all are loaded."""
    answer = httpx.post(f"http://127.0.0.1:{port}/graphql", json={"query": LOCATIONS}, timeout=90).json()
    entries: list[dict[str, Any]] = answer["data"]["workspaceOrError"]["locationEntries"]
    if not entries or any(entry["locationOrLoadError"] is None for entry in entries):
        return None
    return {entry["name"]: entry["locationOrLoadError"]["__typename"] for entry in entries}
