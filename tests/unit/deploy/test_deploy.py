"""The files that install the service: each that they name is there, and what they promise is in them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import REPOSITORY
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.settings import Settings

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
UNIT = (REPOSITORY / "deploy" / "accel.service").read_text()


def _stages() -> list[list[str]]:
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    stages: list[list[str]] = []
    for line in lines:
        if line.startswith("FROM"):
            stages.append([])
        stages[-1].append(line)
    return stages


def _options_of(*command: str) -> str:
    return CliRunner().invoke(app, [*command, "--help"]).stdout


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for stage in _stages():
        for line in stage:
            if line.startswith("COPY") and "--from" not in line:
                *sources, _ = line.split()[1:]
                for source in sources:
                    assert (REPOSITORY / source).exists(), source
                    assert f"!{source.rstrip('/')}" in ignored, source
    assert ignored[0] == "*", "what is not named stays out: secrets, results, caches"


def test_the_image_holds_every_package_and_runs_as_nobody_special() -> None:
    build, base, dagster, final = _stages()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {source for line in build if line.startswith("COPY") for source in line.split()[1:-1]}
    assert {*wheel["packages"], *(path.partition("/")[0] for path in wheel["force-include"])} <= copied
    assert any(line.startswith("USER accel") for line in base)
    assert final[0] == "FROM base"
    assert dagster[0] == "FROM base AS dagster"
    assert not any(
        line.startswith(("USER", "ENTRYPOINT")) for line in [*base[base.index("USER accel") + 1 :], *dagster]
    )
    assert not any(line.startswith("USER") for line in final)
    assert any(line.startswith("HEALTHCHECK") for line in final)
    assert not any("pip install" in line for line in [*base, *final])
    version = re.match(r"FROM python:3\.(\d+)", base[0])
    assert version is not None
    assert 11 <= int(version[1]) <= 13, project["project"]["requires-python"]


def test_the_image_and_the_unit_start_the_service_with_options_it_has() -> None:
    *_, final = _stages()
    start: list[str] = json.loads(next(line for line in final if line.startswith("CMD [")).removeprefix("CMD "))
    unit = shlex.split(next(line for line in UNIT.splitlines() if line.startswith("ExecStart=")).partition("=")[2])
    for command in (start, unit[1:]):
        assert command[0] == "serve"
        for option in (word for word in command if word.startswith("--")):
            assert option in _options_of("serve")


def test_the_health_check_runs() -> None:
    *_, final = _stages()
    check = next(line for line in final if line.startswith("HEALTHCHECK"))
    command: list[str] = json.loads(check[check.index("CMD") + 3 :])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "healthcheck", "exec")
    assert "'/ready'" in command[2]


COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
OURS = ("host", "pages", "daemon", "service")


def test_compose_is_closed_by_default() -> None:
    services = COMPOSE["services"]
    assert {name for name, one in services.items() if "ports" in one} == {"pages", "service"}
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", ()))
    for name in OURS:
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    used = {volume.partition(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert used == set(COMPOSE["volumes"])
    text = (REPOSITORY / "compose.yaml").read_text()
    assert "${ACCEL_PASSWORD:?" in text  # without one nothing starts


def test_compose_starts_programs_with_options_they_have() -> None:
    command = COMPOSE["services"]["host"]["command"]
    assert command[:3] == ["accel", "host", "serve"]
    for option in (word for word in command if word.startswith("--")):
        assert option in _options_of("host", "serve")
    for name, settings in (
        ("ACCEL_LOG_URI", "log_uri"),
        ("ACCEL_POSTGRES_URL", "postgres_url"),
        ("ACCEL_HOME", "home"),
    ):
        assert name in COMPOSE["services"]["service"]["environment"]
        assert settings in Settings.model_fields
    locations = yaml.safe_load(COMPOSE["configs"]["workspace"]["content"])["load_from"]
    graph = {"module_name": "assets.definitions", "location_name": "accel"}
    assert graph in [one.get("python_module") for one in locations]


def _compose() -> list[str] | None:
    return [found] if (found := shutil.which("docker-compose")) else None


@pytest.mark.skipif(_compose() is None, reason="docker-compose is not installed")
def test_docker_compose_understands_the_file() -> None:
    command = [*(_compose() or []), "--file", str(REPOSITORY / "compose.yaml"), "config", "--format", "json"]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not refused.stdout
    assert "write a password into .env" in refused.stderr
    environment["ACCEL_PASSWORD"] = "secret"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    services = json.loads(done.stdout)["services"]
    assert set(services) == {*OURS, "postgres", "storage", "bucket"}
    assert services["service"]["build"].get("target") is None
    for name in OURS:
        assert services[name]["environment"]["ACCEL_POSTGRES_URL"] == "postgresql://accel:secret@postgres/accel"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "accel.service"
    unit.write_text(UNIT.replace("/opt/accel/bin/accel", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True)
    assert "accel.service" not in checked.stderr, checked.stderr


def _verdict(*dependencies: dict[str, Any]) -> tuple[int, list[str]]:
    spec = importlib.util.spec_from_file_location("audit", REPOSITORY / "deploy" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[int, list[str]] = module.verdict({"dependencies": list(dependencies)})
    return found


def test_an_audit_that_could_ask_nobody_has_not_passed() -> None:
    clean = {"name": "a", "version": "1", "vulns": []}
    skipped = {"name": "b", "skip_reason": "not found on PyPI"}
    own = {"name": "accel-platform", "skip_reason": "not found on PyPI"}
    bad = {
        "name": "c",
        "version": "1",
        "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}, {"id": "CVE-2", "fix_versions": []}],
    }
    assert _verdict(clean, own) == (0, ["1 packages audited, 0 known vulnerabilities"])
    code, said = _verdict(skipped, own)
    assert code == 2
    assert "Not audited" in said[0]
    code, said = _verdict(clean, skipped, bad)
    assert code == 1
    assert said[0] == "c 1: CVE-1, mended in 2"
    assert "no version yet" in said[1]
    assert "b" in said[2]
