"""API keys: made once, kept as hashes, checked, ended; and the commands for it."""

from __future__ import annotations

import json
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from accel_platform import api_keys as keys_module
from accel_platform.api_keys import KeyFileDamaged, KeyStore, Scope
from accel_platform.cli import app
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.settings import Settings


def test_a_key_is_shown_once_and_kept_as_a_hash(settings: Settings) -> None:
    keys = KeyStore(settings)
    key, secret = keys.create("ci", Scope.write)
    kept = settings.home / "keys.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert secret not in kept.read_text()
    assert secret.removeprefix("accel_") not in kept.read_text()
    assert len(secret) >= 6 + 43, "256 bits"
    assert keys.check(secret) == key
    assert KeyStore(settings).check(secret) == key
    assert keys.create("other", Scope.read)[1] != secret


def test_what_is_no_key_is_none(settings: Settings) -> None:
    keys = KeyStore(settings)
    assert keys.check("accel_x") is None
    key, secret = keys.create("ci", Scope.read)
    for wrong in ("", secret[:-1], secret + "x", secret.upper(), key.sha256, key.key_id, "\udcff", "é" * 50):
        assert keys.check(wrong) is None


@given(st.text())
def test_no_text_is_a_key_by_chance(text: str) -> None:
    keys = KeyStore(Settings(home=Path("/nonexistent")))
    keys.all = lambda: (  # type: ignore[method-assign]
        keys_module.ApiKey("1", "a", Scope.read, keys_module._digest("accel_right"), datetime.now(UTC)),
    )
    assert (keys.check(text) is not None) == (text == "accel_right")


def test_revoked_and_expired_keys_work_no_more(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    serving, other = KeyStore(settings), KeyStore(settings)
    _, first = serving.create("first", Scope.read)
    _, second = serving.create("second", Scope.read, days=2)
    assert serving.check(first)
    ended = other.revoke("first")
    assert serving.check(first) is None, "seen at once by who has them open"
    assert serving.check(second)
    with pytest.raises(NotFound, match="accel keys list"):
        other.revoke("first")
    later = datetime.now(UTC) + timedelta(days=2, seconds=1)
    assert not serving.all()[1].is_active(later)
    assert serving.all()[0].key_id == ended.key_id, "kept, for who had access once"
    other.create("first", Scope.write)


def test_names_are_given_once_at_a_time_and_are_harmless(settings: Settings) -> None:
    keys = KeyStore(settings)
    keys.create("ci", Scope.read)
    with pytest.raises(InvalidInput, match="already"):
        keys.create("ci", Scope.write)
    for name in ("", "a b", "<script>", "x" * 65, "a\nb", "-x"):
        with pytest.raises(InvalidInput, match="no name"):
            keys.create(name, Scope.read)


def test_keys_made_at_once_are_all_kept(settings: Settings) -> None:
    threads = [threading.Thread(target=lambda n=n: KeyStore(settings).create(f"key-{n}", Scope.read)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in KeyStore(settings).all()} == {f"key-{n}" for n in range(8)}


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"name": "x"}]', '[{"scope": "root"}]', "{}", '"a"'])
def test_a_damaged_file_lets_nobody_in(settings: Settings, content: str) -> None:
    settings.home.mkdir()
    (settings.home / "keys.json").write_text(content)
    with pytest.raises(KeyFileDamaged, match="nobody is let in"):
        KeyStore(settings).check("accel_x")


def test_writing_includes_reading() -> None:
    assert [[a.includes(b) for b in Scope] for a in Scope] == [[True, False], [True, True]]


def test_a_key_of_the_scope_admin_still_writes(settings: Settings) -> None:
    _, secret = KeyStore(settings).create("old", Scope.write)
    kept = settings.home / "keys.json"
    kept.write_text(kept.read_text().replace('"write"', '"admin"'))
    key = KeyStore(settings).check(secret)
    assert key is not None
    assert key.scope is Scope.write


@pytest.mark.slow
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    runner = CliRunner()
    made = runner.invoke(app, ["keys", "create", "ci", "--scope", "write", "--days", "30", "--json"])
    secret = json.loads(made.stdout)["key"]
    key = KeyStore(Settings(home=tmp_path)).check(secret)
    assert key is not None
    assert key.expires_at is not None
    assert (key.scope, (key.expires_at - key.created_at).days) == (Scope.write, 30)
    plain = runner.invoke(app, ["keys", "create", "people"])
    assert plain.stdout.startswith("accel_"), "only the key on stdout, for pipes"
    assert len(plain.stdout.split()) == 1
    assert "not shown again" in plain.stderr
    listed = runner.invoke(app, ["keys", "list"])
    assert secret not in listed.stdout
    assert "people" in listed.stdout
    runner.invoke(app, ["keys", "revoke", key.key_id])
    states = json.loads(runner.invoke(app, ["keys", "list", "--json"]).stdout)
    assert [(k["name"], k["state"]) for k in states] == [("ci", "revoked"), ("people", "works")]
    assert not any("sha256" in k or "key" in k for k in states)
