"""The browser backend's parts that need no browser: the server's walls, the release's check, adapters, placements."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accel_platform.backends.browser import package
from accel_platform.backends.browser.backend import count_placements
from accel_platform.backends.browser.launch import find_browser
from accel_platform.backends.browser.server import Loopback
from accel_platform.backends.browser.session import Browser, adapter_name, is_software
from accel_platform.backends.registry import BROWSERS
from accel_platform.errors import AccelError


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "run.wasm").write_bytes(b"\0asm")
    (tmp_path / "secret").write_text("not yours", encoding="utf-8")
    server = Loopback({"runtime": tmp_path / "served"})
    yield server
    server.close()


def answer(url: str, data: bytes | None = None) -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=10) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_what_is_served_isolates_the_page(loopback: Loopback) -> None:
    status, headers, body = answer(f"{loopback.url}/runtime/run.wasm")
    assert (status, body) == (200, b"\0asm")
    assert headers["Content-Type"] == "application/wasm"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"


@pytest.mark.parametrize(
    "path", ["/runtime/../secret", "/runtime/%2e%2e%2fsecret", "/runtime/..", "/other/x", "/given/x"]
)
def test_nothing_else_is_served(loopback: Loopback, path: str) -> None:
    assert answer(loopback.url + path)[0] == 404


def test_who_does_not_know_the_path_gets_and_gives_nothing(loopback: Loopback) -> None:
    host = loopback.url.rpartition("/")[0]
    loopback.given["x"] = b"1"
    for secret in ("", "guess"):
        assert answer(f"{host}/{secret}/runtime/run.wasm")[0] == 404
        assert answer(f"{host}/{secret}/given/x")[0] == 404
        assert answer(f"{host}/{secret}/taken/x", b"forged")[0] == 404
    assert loopback.taken == {}


def test_arrays_go_both_ways(loopback: Loopback) -> None:
    loopback.given["input_ids"] = bytes(range(8))
    assert answer(f"{loopback.url}/given/input_ids")[2] == bytes(range(8))
    assert answer(f"{loopback.url}/taken/logits", b"\1\2")[0] == 200
    assert loopback.taken == {"logits": b"\1\2"}


def test_a_page_that_asks_is_told_what_to_call_and_only_to_the_page_itself(loopback: Loopback) -> None:
    loopback.calls.put(b'["look", {}]')
    assert answer(f"{loopback.url.rpartition('/')[0]}/guess/ask/next")[0] == 404
    assert answer(f"{loopback.url}/ask/next")[2] == b'["look", {}]'
    assert answer(f"{loopback.url}/answer/next", b'{"value": 1}')[0] == 200
    assert loopback.answers.get_nowait() == b'{"value": 1}'


def test_a_page_that_asks_for_nothing_yet_is_told_to_ask_again(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_platform.backends.browser.server._PATIENCE_S", 0.01)
    assert answer(f"{loopback.url}/ask/next")[0] == 204


def test_browsers_are_found_by_name_and_by_preference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("accel_platform.backends.browser.launch._PLACES", dict.fromkeys(BROWSERS, ()))
    assert find_browser() is None
    for command in ("firefox", "microsoft-edge-stable", "google-chrome"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    # Firefox is taken only where it is asked for.
    assert find_browser() == Browser("chrome", tmp_path / "google-chrome")
    assert find_browser("edge") == Browser("edge", tmp_path / "microsoft-edge-stable")
    assert find_browser("firefox") == Browser("firefox", tmp_path / "firefox")
    assert find_browser("chromium") is None


def test_other_bytes_than_were_published_are_refused(tmp_path: Path) -> None:
    forged = tmp_path / "onnxruntime-web.tgz"
    forged.write_bytes(b"another archive")
    with pytest.raises(AccelError, match="nothing was installed"):
        package.check(forged)


def test_without_npm_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not package.is_installed()
    with pytest.raises(AccelError, match=r"install Node\.js"):
        package.install()
    assert list(tmp_path.iterdir()) == []


def adapter(**facts: Any) -> dict[str, Any]:
    unknown = dict.fromkeys(("vendor", "architecture", "device", "description", "driver", "backend", "type"))
    return {**unknown, "isFallbackAdapter": False, **facts}


def test_software_adapters_are_known_as_such() -> None:
    assert is_software(adapter(vendor="google", architecture="swiftshader"))
    assert is_software(adapter(vendor="mesa", description="llvmpipe (LLVM 15)", type="CPU"))
    assert is_software(adapter(isFallbackAdapter=True))
    assert not is_software(adapter(vendor="nvidia", architecture="hopper", type="discrete GPU"))


def test_an_adapter_is_called_by_its_most_telling_name() -> None:
    assert adapter_name(adapter(vendor="nvidia", architecture="ampere", description="NVIDIA A10")) == "NVIDIA A10"
    assert adapter_name(adapter(vendor="nvidia", architecture="ampere")) == "nvidia ampere"
    assert "does not say" in adapter_name(adapter())


HEAD = "2026-11-20 08:39:21.0 [V:onnxruntime:, session_state.cc:1385 VerifyEachNodeIsAssignedToAnEp] "
DIVIDED = [
    HEAD + "Node placements",
    HEAD + " Node(s) placed on [WebGpuExecutionProvider]. Number of nodes: 2",
    HEAD + "  MatMul (a)",
    HEAD + "  Add (b)",
    HEAD + " Node(s) placed on [CPUExecutionProvider]. Number of nodes: 3",
    HEAD + "  Shape (c)",
    HEAD + "  Shape (d)",
    HEAD + "  Concat (e)",
]


def test_a_divided_graph_is_counted() -> None:
    placed = count_placements(DIVIDED, "webgpu")
    assert placed is not None
    assert placed.accelerated == 2
    assert placed.elsewhere == {"Shape": 2, "Concat": 1}
    assert placed.accelerated_share == pytest.approx(0.4)


def test_a_whole_graph_is_counted_and_silence_is_unknown() -> None:
    whole = [HEAD + " All nodes placed on [CPUExecutionProvider]. Number of nodes: 87"]
    placed = count_placements(whole, "wasm")
    assert placed is not None
    assert (placed.accelerated, placed.elsewhere, placed.accelerated_share) == (87, {}, 1.0)
    missed = count_placements([*whole, HEAD + "  MatMul (a)"], "webgpu")
    assert missed is not None
    assert missed.accelerated == 0
    assert count_placements([], "wasm") is None
