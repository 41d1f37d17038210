"""Seals of the log's Parquet blobs: the blob's key and a SHA-256 over all of its bytes, in the file's footer.

A flipped bit, a truncated file, or another blob's content under this key breaks the seal. Parquet readers ignore it.
The hash is computed with 64 zeros in its own place. It covers the footer too, which page checksums would not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

_KEY = "accel.blob"
_HASH = "accel.sha256"
_UNHASHED = b"0" * 64
# A key and a value of the footer's metadata in Thrift's compact protocol: the type of a string, its length, its bytes.
_MARK = bytes([0x18, len(_HASH)]) + _HASH.encode() + bytes([0x18, len(_UNHASHED)])
_MAGIC = b"PAR1"

Bytes = bytes | memoryview


def metadata(key: str) -> dict[str, str]:
    """Return the footer entries that `fill_hash` completes; a writer adds them before it closes the file."""
    return {_KEY: key, _HASH: _UNHASHED.decode()}


def fill_hash(data: bytes) -> bytes:
    """Return the finished file with its hash in place."""
    start = _hash_at(data)
    assert start is not None, "the file was written without `metadata`"
    return b"".join((data[:start], _digest(data, start), data[start + len(_UNHASHED) :]))


def mismatch_reason(data: Bytes, key: str | None = None) -> str | None:
    """Return the reason why a sealed blob differs from the one written under `key`; None if it is intact.

    Without a key, only the content is checked against the blob's own seal.
    """
    start = _hash_at(data)
    assert start is not None, "ask `is_sealed` first"
    if bytes(data[start : start + len(_UNHASHED)]) != _digest(data, start):
        return "its content is not what was written"
    if key is not None and (written_as := _metadata_of(data).get(_KEY)) != key:
        return f"its content belongs to {written_as}"
    return None


def is_sealed(data: Bytes) -> bool:
    """Return whether the blob carries a hash; blobs of earlier versions of the platform do not."""
    return _hash_at(data) is not None


def has_blob_key(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Return whether a footer's metadata hold a blob key; without a hash beside it the seal is broken."""
    return _KEY.encode() in (metadata or {})


def sha256(data: Bytes) -> str:
    """Return the SHA-256 of all bytes as 64 hex digits, for blobs without a seal."""
    return hashlib.sha256(data).hexdigest()


def _hash_at(data: Bytes) -> int | None:
    """Return the offset of the hash, None if the footer holds none."""
    if len(data) < 12 or bytes(data[-4:]) != _MAGIC:
        return None
    [length] = struct.unpack("<I", data[-8:-4])
    begin = len(data) - 8 - length
    if begin < 4:
        return None
    found = bytes(data[begin:-8]).rfind(_MARK)
    return None if found < 0 else begin + found + len(_MARK)


def _digest(data: Bytes, start: int) -> bytes:
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(_UNHASHED)
    digest.update(view[start + len(_UNHASHED) :])
    return digest.hexdigest().encode()


def _metadata_of(data: Bytes) -> dict[str, str]:
    found = pq.read_metadata(pa.BufferReader(pa.py_buffer(data))).metadata or {}
    return {name.decode(): value.decode() for name, value in found.items()}
