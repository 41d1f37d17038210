"""API keys of the service: creation, listing, revocation and checks.

A key is 256 random bits, so a plain SHA-256 is enough. Slow password hashes protect words that people choose, and would
cost every request milliseconds. The file keeps revoked keys too, as a record of past access.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import AccelError, InvalidInput, NotFound, storage_unavailable
from accel_platform.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Scope(enum.StrEnum):
    """The rights of a key; writing includes reading."""

    read = "read"
    write = "write"

    def includes(self, other: Scope) -> bool:
        return other in (Scope.read, self)


@dataclass(frozen=True)
class ApiKey:
    """One stored key: everything but the secret."""

    key_id: str
    name: str
    scope: Scope
    sha256: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_active(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyFileDamaged(AccelError):
    """The key file cannot be read, so all access is denied."""

    kind = "keys-damaged"
    title = "The keys cannot be read"


class KeyStore:
    """The keys of one installation. Changes by another process are seen at the next access."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.home / "keys.json"
        self._file_version: tuple[int, int, int] | None = None
        self._keys: tuple[ApiKey, ...] = ()

    def all(self) -> tuple[ApiKey, ...]:
        """Return every key, the oldest first, revoked ones included. Raises KeyFileDamaged."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            unavailable = storage_unavailable(error, f"The file of keys {self._path}")
            raise KeyFileDamaged(
                str(unavailable or f"The keys at {self._path} cannot be read: {error.strerror}.")
            ) from error
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._file_version:
            self._keys, self._file_version = _load_keys(self._path), version
        return self._keys

    def check(self, presented: str) -> ApiKey | None:
        """Return the active key with this secret, None without one. Compares with every key, in constant time."""
        digest = _digest(presented)
        found = None
        for key in self.all():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found if found is not None and found.is_active(datetime.now(UTC)) else None

    def create(self, name: str, scope: Scope, *, days: int | None = None) -> tuple[ApiKey, str]:
        """Create a key that ends after `days` (None: never); return it and, this once, its secret.

        Raises InvalidInput for an unusable name, or the name of an active key.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name: use up to 64 letters, digits, '.', '_', '@' or '-'.")
        now = datetime.now(UTC)
        secret = f"accel_{secrets.token_urlsafe(32)}"
        made = ApiKey(
            key_id=secrets.token_hex(4),
            name=name,
            scope=scope,
            sha256=_digest(secret),
            created_at=now,
            expires_at=None if days is None else now + timedelta(days=days),
        )
        with self._edit() as keys:
            if any(key.name == name and key.is_active(now) for key in keys):
                raise InvalidInput(f"There is a key {name!r} already: revoke it first, or choose another name.")
            keys.append(made)
        return made, secret

    def revoke(self, which: str) -> ApiKey:
        """Revoke the key of this id, or the active one of this name, at once. Raises NotFound."""
        now = datetime.now(UTC)
        with self._edit() as keys:
            for index, key in enumerate(keys):
                if key.revoked_at is None and which in (key.key_id, key.name):
                    keys[index] = replace(key, revoked_at=now)
                    return keys[index]
        raise NotFound(f"No key in use is called {which!r}: `accel keys list` lists them.")

    @contextmanager
    def _edit(self) -> Iterator[list[ApiKey]]:
        """Yield the keys to change and write them back at the end; one process at a time."""
        try:
            make_directory(self._path.parent)
            with open(self._path.with_name(".keys.lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                keys = list(self.all())
                yield keys
                write_durably(
                    self._path, json.dumps([asdict(k) for k in keys], indent=1, default=_json_default), mode=0o600
                )
        except OSError as error:
            unavailable = storage_unavailable(error, f"The file of keys {self._path}")
            raise unavailable or AccelError(f"The keys at {self._path} cannot be written: {error.strerror}.") from error


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _load_keys(path: Path) -> tuple[ApiKey, ...]:
    try:
        return tuple(map(_parse_key, _parse_entries(path.read_bytes())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise KeyFileDamaged(
            f"The keys at {path} cannot be read ({type(error).__name__}), so nobody is let in: restore the file, or "
            "remove it and make new keys (`accel keys create`)."
        ) from error


def _parse_entries(content: bytes) -> list[dict[str, str]]:
    entries = json.loads(content)
    if not isinstance(entries, list):
        raise TypeError("no list of keys")
    return entries


def _parse_key(entry: dict[str, str]) -> ApiKey:
    times = {
        name: datetime.fromisoformat(entry[name]) if entry[name] is not None else None
        for name in ("created_at", "expires_at", "revoked_at")
    }
    created, expires, revoked = times.values()
    if created is None or len(entry["sha256"]) != 64:
        raise ValueError("no key")
    # Keys of November 2026 may have the scope admin, which allowed no more than write.
    scope = Scope.write if entry["scope"] == "admin" else Scope(entry["scope"])
    return ApiKey(entry["key_id"], entry["name"], scope, entry["sha256"], created, expires, revoked)
