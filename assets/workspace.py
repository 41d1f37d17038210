"""The hosts in a `workspace.yaml`: listed, added and removed as text, so that comments stay. None is started here."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import AccelError, InvalidInput, NotFound, one_line
from accel_platform.settings import Settings
from assets.resources import DATA_DIR

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
_LIST = "load_from"


@dataclass(frozen=True)
class Host:
    """One host: its name as a code location, and where its code server answers."""

    name: str
    host: str
    port: int


def workspace_file(settings: Settings) -> Path:
    """Return the workspace file in use: the installation's own, or the platform's until a host is added or removed."""
    own = own_workspace(settings)
    return own if own.exists() else DATA_DIR / "workspace.yaml"


def own_workspace(settings: Settings) -> Path:
    """Return the path of an installation's own workspace file, which need not exist."""
    return settings.home / "workspace.yaml"


def hosts_in(path: Path) -> list[Host]:
    """Return the hosts of a workspace file, in order. Raises NotFound, or InvalidInput for another file."""
    return [host for host, _, _ in _entries(path.name, _read(path))]


def add(path: Path, name: str, address: str, *, target: Path | None = None) -> Host:
    """List a host, in a copy of the file if `target` names one.

    Raises InvalidInput for a name that is taken or unusable, or an address that is none.
    """
    text = _read(path)
    host = _host(name, address)
    taken = {_name_of(entry) for entry in _list(path.name, text)}
    if name in taken:
        raise InvalidInput(f"{path} has a location {name!r} already: remove it first, or choose another name.")
    if same := [one for one, _, _ in _entries(path.name, text) if (one.host, one.port) == (host.host, host.port)]:
        raise InvalidInput(f"{address} is the host {same[0].name!r} already.")
    # JSON's text is YAML's: without quotes `on` or `1.5` would be something else.
    fields = ("host: " + json.dumps(host.host), f"port: {host.port}", "location_name: " + json.dumps(name))
    indent = " " * _nodes(path.name, text).start_mark.column
    entry = f"{indent}- grpc_server:\n" + "".join(f"{indent}    {field}\n" for field in fields)
    # The list is the last thing in the file, or its end is where the next key begins.
    entries = _nodes(path.name, text).value
    end = max((_last_line(text, one) for one in entries), default=len(text.splitlines()))
    lines = text.splitlines(keepends=True)
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    _write(path, "".join(lines[:end]) + entry + "".join(lines[end:]), [*hosts_in(path), host], target or path)
    return host


def remove(path: Path, name: str, *, target: Path | None = None) -> Host:
    """Take a host off the list, in a copy of the file if `target` names one. Raises NotFound."""
    text = _read(path)
    entries = _entries(path.name, text)
    found = [(host, first, last) for host, first, last in entries if host.name == name]
    if not found and name in {_name_of(entry) for entry in _list(path.name, text)}:
        where = path if target in (None, path) else f"a copy of {path} at {target}"
        raise InvalidInput(
            f"{name!r} is this machine, not an added host. If it shall not measure, delete its entry in {where}."
        )
    if not found:
        known = ", ".join(host.name for host, _, _ in entries) or "none"
        raise NotFound(f"{path} lists no host {name!r}; its hosts: {known}.")
    [(host, first, last)] = found
    lines = text.splitlines(keepends=True)
    del lines[first:last]
    _write(path, "".join(lines), [one for one, _, _ in entries if one != host], target or path)
    return host


def answers(host: Host) -> bool:
    """Return whether a process listens at the host's address, within two seconds."""
    try:
        with socket.create_connection((host.host.strip("[]"), host.port), timeout=2.0):
            return True
    except OSError:
        return False


def _host(name: str, address: str) -> Host:
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is no name for a host: 1 to 63 letters, digits, '.', '_' or '-'.")
    host, colon, port = address.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not port.isascii() or not port.isdigit():
        raise InvalidInput(f"{address!r} is no address: write HOST:PORT, such as gpu-box:4000 or [::1]:4000.")
    if not 1 <= int(port) <= 65_535:
        raise InvalidInput(f"{port} is no port: 1 to 65535.")
    return Host(name, host, int(port))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound(f"There is no {path}: name the workspace file with --workspace.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error


def _write(path: Path, text: str, wanted: list[Host], target: Path) -> None:
    """Write the target, after a check that the new text lists the expected hosts and changes nothing else."""
    before = [entry for entry in _list(path.name, _read(path)) if "grpc_server" not in entry]
    after = [entry for entry in _list(path.name, text) if "grpc_server" not in entry]
    if before != after or sorted(h.name for h, _, _ in _entries(path.name, text)) != sorted(h.name for h in wanted):
        raise InvalidInput(f"{path} is written in a way that this command does not change: edit it by hand.")
    try:
        make_directory(target.parent)
        write_durably(target, text)
    except OSError as error:
        raise AccelError(f"{target} cannot be written: {error.strerror}.") from error


def _list(where: str, text: str) -> list[dict[str, Any]]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{where} is no YAML: {one_line(error)}.") from error
    entries = value.get(_LIST) if isinstance(value, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput(f"{where} is no workspace: it needs a list {_LIST}.")
    return entries


def _name_of(entry: dict[str, Any]) -> str | None:
    [fields] = entry.values() if len(entry) == 1 else [None]
    return fields.get("location_name") if isinstance(fields, dict) else None


def _nodes(where: str, text: str) -> yaml.SequenceNode:
    _list(where, text)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    [node] = [value for key, value in root.value if key.value == _LIST]
    assert isinstance(node, yaml.SequenceNode)
    return node


def _last_line(text: str, node: yaml.Node) -> int:
    """Return the line after a node; YAML counts blank lines and following comments as part of it."""
    lines = text.splitlines()
    end = min(int(node.end_mark.line), len(lines))
    while end > node.start_mark.line + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _entries(where: str, text: str) -> list[tuple[Host, int, int]]:
    """Return each host with its first line and the line after it."""
    found = []
    for entry, node in zip(_list(where, text), _nodes(where, text).value, strict=True):
        fields = entry.get("grpc_server")
        if isinstance(fields, dict) and "port" in fields:
            host = Host(str(fields.get("location_name")), str(fields.get("host", "localhost")), int(fields["port"]))
            found.append((host, node.start_mark.line, _last_line(text, node)))
    return found
