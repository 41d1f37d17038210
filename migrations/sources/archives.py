"""Members of archives, one by one, as contents: zip, tar, and tar behind gzip, bzip2 or xz.

Nothing is written under a name from an archive. A member that cannot be read is a content with the problem and no hash.
The unpacked size is counted while reading, because headers may lie.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, Literal, cast

from migrations.sources.documents import MAX_IN_MEMORY_BYTES, Content, large_content

MAX_DEPTH = 3
"""Deepest nesting of archives that is opened."""
MAX_MEMBERS = 100_000
MAX_MEMBER_BYTES = 4 << 30
MAX_ARCHIVE_BYTES = 16 << 30
MAX_RATIO = 200
RATIO_CHECKED_FROM_BYTES = 64 << 20
"""Results compress ten times, rarely fifty times; more than MAX_RATIO beyond this size is an archive bomb."""
_CHUNK = 1 << 20

ArchiveKind = Literal["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]
_UNREADABLE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError,
               RuntimeError, ValueError)  # fmt: skip


class ArchiveBombError(ValueError):
    """The archive unfolds to more than results do."""


def archive_kind(content: Content) -> ArchiveKind | None:
    """Return the kind of archive by its first bytes, None for other content."""
    raw = content.raw
    if raw.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if _is_tar(raw):
        return "tar"
    for magic, unfold, kind in _COMPRESSIONS:
        if raw.startswith(magic):
            try:
                with unfold(io.BytesIO(raw)) as file:
                    return kind if _is_tar(file.read(512)) else None
            except _UNREADABLE:
                return None
    return None


def members(content: Content, kind: ArchiveKind) -> Iterator[Content]:
    """Yield the members in order; use each before the next is requested.

    Raises ArchiveBombError beyond the limits, ValueError where the archive is damaged.
    """
    budget = _Budget(content.origin.size_bytes)
    try:
        with content.open() as file:
            found = _zip_members(file, budget) if kind == "zip" else _tar_members(file, kind, budget)
            for name, member in found:
                budget.count_member()
                source_path = f"{content.source_path}!{_printable(name)}"
                if isinstance(member, str):
                    yield Content(source_path, "", b"", member)
                else:
                    yield from _content(member, source_path)
    except ArchiveBombError:
        raise
    except _UNREADABLE as error:
        raise ValueError(f"a broken {kind} archive: {error or type(error).__name__}") from error


class _Budget:
    """Bytes and members that one archive may still unpack to."""

    def __init__(self, folded_bytes: int) -> None:
        self._folded = folded_bytes
        self._unfolded = 0
        self._members = 0

    def count_member(self) -> None:
        """Count one member. Raises ArchiveBombError."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ArchiveBombError(f"it has more than {MAX_MEMBERS:,} members")

    def spend(self, count: int) -> None:
        """Count bytes. Raises ArchiveBombError."""
        self._unfolded += count
        if self._unfolded > MAX_ARCHIVE_BYTES:
            raise ArchiveBombError(f"it unfolds to more than {MAX_ARCHIVE_BYTES >> 30} GiB")
        if self._unfolded > RATIO_CHECKED_FROM_BYTES and self._unfolded > MAX_RATIO * self._folded:
            raise ArchiveBombError(f"it unfolds to more than {MAX_RATIO} times its size")


class _CountingReader(io.RawIOBase):
    """A stream whose bytes are counted as they are read."""

    def __init__(self, file: BinaryIO, budget: _Budget) -> None:
        self._file = file
        self._budget = budget

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._budget.spend(len(data))
        return data


def _zip_members(file: BinaryIO, budget: _Budget) -> Iterator[tuple[str, BinaryIO | str]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if info.flag_bits & 1:
                yield info.filename, "cannot be opened: encrypted"
                continue
            try:
                with archive.open(info) as member:
                    yield info.filename, cast("BinaryIO", _CountingReader(cast("BinaryIO", member), budget))
            except _UNREADABLE as error:
                if isinstance(error, ArchiveBombError):
                    raise
                yield info.filename, f"cannot be opened: {error}"


def _tar_members(file: BinaryIO, kind: ArchiveKind, budget: _Budget) -> Iterator[tuple[str, BinaryIO | str]]:
    unfold = next((unfold for _, unfold, folded in _COMPRESSIONS if folded == kind), None)
    counted = cast("BinaryIO", _CountingReader(unfold(file), budget)) if unfold else file
    # As a stream: going back would unfold everything again.
    with tarfile.open(fileobj=counted, mode="r|") as archive:
        for info in archive:
            if info.isdir():
                continue
            if not info.isreg():
                yield info.name, f"cannot be opened: a link to {info.linkname}" if info.linkname else "no regular file"
                continue
            member = archive.extractfile(info)
            assert member is not None
            yield info.name, cast("BinaryIO", member)


def _content(member: BinaryIO, source_path: str) -> Iterator[Content]:
    """Yield one member, in memory or, where large, in an unnamed temporary file."""
    try:
        raw = member.read(MAX_IN_MEMORY_BYTES + 1)
        if len(raw) <= MAX_IN_MEMORY_BYTES:
            yield Content.of(raw, source_path)
            return
        with tempfile.TemporaryFile() as copy:
            copy.write(raw)
            while chunk := member.read(_CHUNK):
                if copy.tell() > MAX_MEMBER_BYTES:
                    yield Content(
                        source_path, "", b"", f"cannot be opened: it unfolds to more than {MAX_MEMBER_BYTES >> 30} GiB"
                    )
                    return
                copy.write(chunk)
            copy.flush()
            copy.seek(0)
            yield large_content(partial(_reopen, copy.fileno()), cast("BinaryIO", copy), source_path)
    except ArchiveBombError:
        raise
    except _UNREADABLE as error:
        yield Content(source_path, "", b"", f"cannot be opened: {error or type(error).__name__}")


def _reopen(descriptor: int) -> BinaryIO:
    file = os.fdopen(os.dup(descriptor), "rb")
    file.seek(0)
    return file


def _is_tar(raw: bytes) -> bool:
    return raw[257:262] == b"ustar"


def _printable(name: str) -> str:
    """Return a member's name as text for the ledger, without line breaks and lone surrogates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


_COMPRESSIONS: tuple[tuple[bytes, Callable[[BinaryIO], BinaryIO], ArchiveKind], ...] = (
    (b"\x1f\x8b", cast("Callable[[BinaryIO], BinaryIO]", gzip.open), "tar.gz"),
    (b"BZh", cast("Callable[[BinaryIO], BinaryIO]", bz2.open), "tar.bz2"),
    (b"\xfd7zXZ\x00", cast("Callable[[BinaryIO], BinaryIO]", lzma.open), "tar.xz"),
)
