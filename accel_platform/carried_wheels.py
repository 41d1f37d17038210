"""Wheels of the measuring part, to carry to a host without a network.

The versions are those installed here. torch is never carried: its build is the device's, so the host has to have it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from accel_platform.backends.registry import runtime_for
from accel_platform.errors import InvalidInput, NotFound

OWN = "accel-platform"
CORE = ("numpy", "psutil", "pyarrow", "pydantic", "typer", "uuid-utils")
"""Packages that planning, recording and exporting import; each runtime adds its own."""
GIVEN = ("torch",)
_NVML = "nvidia-ml-py"
"""Package that reads energy, clocks and throttling of NVIDIA GPUs. The extra `energy` requires it as well."""
_NEWEST_GLIBC = 39
"""Newest glibc 2.N to list: wheels name the oldest glibc that they run with, and pip compares the name exactly."""


@dataclass(frozen=True)
class TargetHost:
    """A host that gets the wheels."""

    python: str
    """Version of its Python, such as `3.12`."""
    platform: str
    """Platform tag of its wheels, such as `win_amd64`; `linux_x86_64` stands for all tags of manylinux."""
    installed: Mapping[str, str]
    """Packages that it has, by canonical name, with their versions."""

    def environment(self) -> dict[str, str]:
        """Return what requirement markers ask of the host."""
        system = {"linux": "Linux", "macosx": "Darwin", "win": "Windows"}[self.platform.partition("_")[0]]
        return {
            **{name: str(value) for name, value in default_environment().items()},
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_system": system,
            "sys_platform": {"Darwin": "darwin", "Windows": "win32"}.get(system, "linux"),
            "extra": "",
        }

    def pip_options(self) -> list[str]:
        """Return pip's options that choose this host's wheels."""
        tags = [self.platform]
        if self.platform.startswith("linux_"):
            machine = self.platform.removeprefix("linux_")
            tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, 4, -1)]
            tags += [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
        options = ["--only-binary=:all:", "--python-version", self.python, "--implementation", "cp"]
        return [*options, *(word for tag in tags for word in ("--platform", tag))]


def read_installed(path: Path) -> dict[str, str]:
    """Return the packages of a file that `pip list --format=freeze` wrote. Raises InvalidInput."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error.strerror}.") from error
    pairs = [line.split("==", 1) for line in lines if "==" in line]
    if not pairs:
        raise InvalidInput(f"{path} lists no package: write it on the host by `pip list --format=freeze`.")
    return {canonicalize_name(name.strip()): version.strip() for name, version in pairs}


def measuring_packages(hardware: Collection[str], target: TargetHost) -> dict[str, str]:
    """Return what to ask pip for, by canonical name: packages that the host lacks or has outside the allowed range.

    Each is pinned to the version here; one that only the host's system needs is not installed here, and is not pinned.
    Raises InvalidInput for a torch out of range.
    """
    ranges = {canonicalize_name(r.name): r for r in map(Requirement, _distribution(OWN).requires or ()) if not r.marker}
    packages = {package for name in hardware for package in runtime_for(name).packages if package != "onnxruntime-web"}
    if any(runtime_for(name).hardware == "cuda" for name in hardware):
        packages.add(_NVML)
    asked = [ranges.get(canonicalize_name(name)) or Requirement(name) for name in (*CORE, *sorted(packages))]
    environment = target.environment()
    lacking: dict[str, str] = {}
    while asked:
        requirement = asked.pop()
        name = canonicalize_name(requirement.name)
        if name in lacking or _is_there(requirement, target):
            continue
        if not _has(name):
            lacking[name] = f"{requirement.name}{requirement.specifier}"
            continue
        here = _distribution(name)
        lacking[name] = f"{name}=={here.version}"
        further = map(Requirement, here.requires or ())
        asked += [one for one in further if one.marker is None or one.marker.evaluate(environment)]
    return dict(sorted(lacking.items()))


def _is_there(requirement: Requirement, target: TargetHost) -> bool:
    """Return whether the host has a package in the required range. Raises InvalidInput for a torch outside of it."""
    name = canonicalize_name(requirement.name)
    version = target.installed.get(name)
    if version is not None and requirement.specifier.contains(version, prereleases=True):
        return True
    if version is not None and name in GIVEN:
        raise InvalidInput(f"The host has {name} {version}, and {requirement} is needed: install that there.")
    return name in GIVEN


def own_wheel() -> Path:
    """Return the clone or the wheel that this installation comes from. Raises NotFound where neither is left."""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return clone
    origin = json.loads(_distribution(OWN).read_text("direct_url.json") or "{}").get("url", "")
    path = Path(unquote(urlsplit(origin).path))
    if origin.startswith("file:") and path.exists():
        return path
    raise NotFound("The wheel that this installation came from is not here any more: name it with --wheel.")


def collect_wheels(
    folder: Path, hardware: Collection[str], target: TargetHost, *, wheel: Path | None = None
) -> list[Path]:
    """Put the platform's wheel and those that the host lacks into an empty or new folder; return them.

    Raises InvalidInput or NotFound, with pip's reason where a wheel cannot be had.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} holds something already: name a new folder.")
    packages = measuring_packages(hardware, target)
    source = wheel or own_wheel()
    # A clone whose environment has the builder needs no network for it.
    isolation = ["--no-build-isolation"] if source.is_dir() and _has("hatchling") else []
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), *isolation, str(source))
    if packages:
        _pip("download", "--no-deps", "--dest", str(folder), *target.pip_options(), *packages.values())
    return sorted(folder.glob("*.whl"))


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = re.findall(r"^ERROR: (.+)$", done.stderr, flags=re.MULTILINE)
        raise NotFound(f"pip cannot {arguments[0]} what is needed: {(errors or [done.stderr.strip()])[-1]}")


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise NotFound(f"{name} is not installed here: install the whole platform first.") from error


def _has(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
