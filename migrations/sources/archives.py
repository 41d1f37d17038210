"""Members of archives, one by one, as contents: zip, tar, and a tar or any other file behind gzip, bzip2 or xz.

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
from pathlib import PurePosixPath
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

_OFFICE_MEMBERS = {"[Content_Types].xml", "META-INF/manifest.xml"}
"""Members that every document of Microsoft's or of OpenDocument has."""

ArchiveKind = Literal["zip", "tar", "tar.gz", "tar.bz2", "tar.xz", "gz", "bz2", "xz"]
_UNREADABLE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError,
               RuntimeError, ValueError)  # fmt: skip


class ArchiveBombError(ValueError):
    """The archive unfolds to more than results do."""


class OfficeDocumentError(ValueError):
    """The zip is a spreadsheet or another document, whose members are none of their own."""


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
                    return cast("ArchiveKind", f"tar.{kind}") if _is_tar(file.read(512)) else kind
            except _UNREADABLE:
                return kind
    return None


def members(content: Content, kind: ArchiveKind) -> Iterator[Content]:
    """Yield the members in order; use each before the next is requested.

    Raises ArchiveBombError beyond the limits, OfficeDocumentError for a spreadsheet, ValueError where the archive is
    damaged.
    """
    budget = _Budget(content.origin.size_bytes)
    try:
        with content.open() as file:
            found = _found(file, content.source_path, kind, budget)
            for name, member in found:
                budget.count_member()
                source_path = f"{content.source_path}!{_printable(name)}"
                if isinstance(member, str):
                    yield Content(source_path, "", b"", member)
                else:
                    yield from _content(member, source_path)
    except (ArchiveBombError, OfficeDocumentError):
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
        if not _OFFICE_MEMBERS.isdisjoint(archive.namelist()):
            raise OfficeDocumentError(
                "a spreadsheet or other office document: save each sheet as CSV, and import those"
            )
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


def _found(
    file: BinaryIO, source_path: str, kind: ArchiveKind, budget: _Budget
) -> Iterator[tuple[str, BinaryIO | str]]:
    """Yield names and members; the member of a compressed file is called as the file without its ending."""
    if kind == "zip":
        yield from _zip_members(file, budget)
        return
    folding = kind.removeprefix("tar.")
    unfold = next((unfold for _, unfold, folded in _COMPRESSIONS if folded == folding), None)
    counted = cast("BinaryIO", _CountingReader(unfold(file), budget)) if unfold else file
    if kind.startswith("tar"):
        yield from _tar_members(counted)
    else:
        yield PurePosixPath(source_path.replace("!", "/")).name.removesuffix(f".{kind}"), counted


def _tar_members(file: BinaryIO) -> Iterator[tuple[str, BinaryIO | str]]:
    # As a stream: going back would unfold everything again.
    with tarfile.open(fileobj=file, mode="r|") as archive:
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


_COMPRESSIONS: tuple[tuple[bytes, Callable[[BinaryIO], BinaryIO], Literal["gz", "bz2", "xz"]], ...] = (
    (b"\x1f\x8b\x08", cast("Callable[[BinaryIO], BinaryIO]", gzip.open), "gz"),
    (b"BZh", cast("Callable[[BinaryIO], BinaryIO]", bz2.open), "bz2"),
    (b"\xfd7zXZ\x00", cast("Callable[[BinaryIO], BinaryIO]", lzma.open), "xz"),
)
