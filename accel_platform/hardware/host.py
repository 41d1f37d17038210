"""Identity of this host across reboots, and its present state."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from accel_platform.events.types import HostObserved
from accel_platform.hardware.cpu import cpu_facts

_SOFTWARE = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "numpy", "accel-platform")
HOST_NAME = "ACCEL_HOST_NAME"
"""Environment: what a host calls itself in claims of requests."""


def host_id() -> str:
    """Return `host-` and 12 hex digits, equal across runs and reboots of one installation on one machine.

    Clones of a virtual machine share it, because they share the installation's id.
    """
    return "host-" + hashlib.sha256(f"accel-platform {_machine_identity()}".encode()).hexdigest()[:12]


def host_name() -> str:
    """Return the name by which this host takes requests: ACCEL_HOST_NAME, or the machine's."""
    return os.environ.get(HOST_NAME) or socket.gethostname()


def observe_host() -> HostObserved:
    """Observe the machine and the software that figures depend on."""
    return HostObserved(
        hostname=socket.gethostname(),
        os=f"{platform.system()} {platform.release()}",
        cpu_model=cpu_facts()["name"],
        cpu_cores_physical=psutil.cpu_count(logical=False),
        cpu_cores_logical=psutil.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().total / 2**20,
        software={"python": platform.python_version(), **installed_versions(_SOFTWARE)},
    )


def installed_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return versions of the installed ones among these packages, without importing them."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine_identity() -> str:
    """Return the operating system's id of this installation, else the host name (in containers)."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if path.is_file() and (text := path.read_text(encoding="utf-8").strip()):
            return text
    if sys.platform == "darwin":
        command = ["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if found := re.search(r'"IOPlatformUUID" = "([^"]+)"', answer.stdout):
            return found[1]
    if sys.platform == "win32":
        import winreg

        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography") as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    return socket.gethostname()
