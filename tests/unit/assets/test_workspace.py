"""The list of hosts in a workspace file: what is added can be removed, and everything else stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.settings import Settings
from assets.resources import DATA_DIR
from assets.workspace import Host, add, hosts_in, own_workspace, remove, workspace_file

OURS = (DATA_DIR / "workspace.yaml").read_text()
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(
    lambda n: n not in ("accel", "this-host")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "workspace.yaml"
    path.write_text(OURS)
    return path


def test_what_was_added_is_listed_and_comments_stay(file: Path) -> None:
    assert hosts_in(file) == []
    first, second = add(file, "gpu-1", "gpu-box:4000"), add(file, "on", "[::1]:4001")
    assert hosts_in(file) == [first, second] == [Host("gpu-1", "gpu-box", 4000), Host("on", "[::1]", 4001)]
    assert file.read_text().startswith(OURS)
    entries = yaml.safe_load(file.read_text())["load_from"]
    assert entries[-1] == {"grpc_server": {"host": "[::1]", "port": 4001, "location_name": "on"}}
    remove(file, "gpu-1")
    assert hosts_in(file) == [second]
    remove(file, "on")
    assert file.read_text() == OURS


def test_an_installation_changes_a_copy_of_its_own(tmp_path: Path) -> None:
    installation = Settings(home=tmp_path / "home")
    own = own_workspace(installation)
    assert workspace_file(installation) == DATA_DIR / "workspace.yaml"
    with pytest.raises(NotFound):
        remove(workspace_file(installation), "gpu-1", target=own)
    assert not own.exists()
    added = add(workspace_file(installation), "gpu-1", "gpu-box:4000", target=own)
    assert workspace_file(installation) == own
    assert hosts_in(own) == [added]
    assert own.read_text().startswith(OURS)
    assert (DATA_DIR / "workspace.yaml").read_text() == OURS
    remove(workspace_file(installation), "gpu-1", target=own)
    assert own.read_text() == OURS


@settings(max_examples=10)
@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.data())
def test_whatever_is_added_and_removed_the_rest_stays(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("w") / "workspace.yaml"
    file.write_text(OURS)
    for port, name in enumerate(names, start=4000):
        add(file, name, f"box:{port}")
    left = list(names)
    for name in data.draw(st.permutations(names)):
        remove(file, name)
        left.remove(name)
        assert [host.name for host in hosts_in(file)] == left
    assert file.read_text() == OURS


def test_what_stands_around_the_list_stays(file: Path) -> None:
    text = "a: 1\nload_from:\n# first\n- python_file: x.py  # why\n# last\n\nb: 2"
    file.write_text(text)
    add(file, "gpu", "box:1")
    value = yaml.safe_load(file.read_text())
    assert (value["a"], value["b"], len(value["load_from"])) == (1, 2, 2)
    remove(file, "gpu")
    assert file.read_text() == text


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a" * 64, "a\nb", "a:b", "ä"])
def test_names_that_are_none(file: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="no name"):
        add(file, name, "box:4000")
    assert file.read_text() == OURS


@pytest.mark.parametrize(
    "address", ["", "box", "box:", ":4000", "box:0", "box:65536", "box:x", "a b:1", "box:4000/x", "-b:1"]
)
def test_addresses_that_are_none(file: Path, address: str) -> None:
    with pytest.raises(InvalidInput, match=r"address|port"):
        add(file, "gpu", address)
    assert file.read_text() == OURS


def test_a_name_or_an_address_is_listed_once(file: Path) -> None:
    add(file, "gpu", "box:4000")
    for name, address in (("gpu", "other:1"), ("this-host", "other:1"), ("other", "box:4000")):
        with pytest.raises(InvalidInput, match="already"):
            add(file, name, address)
    with pytest.raises(NotFound, match="its hosts: gpu"):
        remove(file, "other")


@pytest.mark.parametrize("text", ["", "load_from: 1", "[1]", "a: [", "load_from: [{python_file: a.py}]"])
def test_files_that_are_not_changed(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidInput):
        add(file, "gpu", "box:4000")
    assert file.read_text() == text
    with pytest.raises(NotFound):
        hosts_in(file.with_name("gone.yaml"))
