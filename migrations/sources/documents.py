"""Documents from files: bytes, their hash, and the parsed value.

The kind of a document follows from its content alone. A document that cannot be parsed keeps its bytes and the reason.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from accel_platform.errors import NotFound
from accel_platform.table_io.values import count_of
from migrations.sources.csv_text import DELIMITERS, InvalidTable, find_embedded_table, find_table
from migrations.sources.databases import database_tables, is_duckdb, is_parquet, is_sqlite, parquet_rows
from migrations.sources.json_text import JsonNotFound, Note, find_json

_BASE64 = "base64:"
DocumentKind = Literal["json", "json_lines", "csv", "rows", "tables", "text", "unreadable"]

MAX_IN_MEMORY_BYTES = 8 << 20
"""Up to this size a file is read at once; a larger one in chunks (`chunked_reader.py`)."""
HEAD_BYTES = 1 << 20
"""Bytes of a larger file held in memory."""

_RATE = (
    r"(?:toks?|tokens?|t|items?|imgs?|images?|samples?|seqs?|sentences|frames|reqs?|requests?|inf|inferences|infer|ops)"
    r"(?: ?/ ?|[ _-]per[ _-])s(?:ec|econd)?"
)
"""A rate of work, unlike the `MB/s` and `it/s` of progress bars."""
_FIGURE_IN_TEXT = re.compile(
    rf"(latency|throughput|duration|fps|per second|{_RATE}|inference.time|_ms|ttft|tpot|qps)\W{{0,20}}\d"
    rf"|\d\s*(ms|fps|(?:[a-z]{{1,12}} )?{_RATE}|[nuµ]?s/(?:op|iter))\b|<td\b[^>]*>\s*\d+\.\d",
    re.IGNORECASE,
)
_FIGURE_COLUMN = re.compile(
    r"^[^\n]*[,;\t|][^,;\t|\n]*(?:latency|throughput|per_sec|fps|_ms\b|\(m?s\)|avg_ns|step_time|speedup)[^\n]*\n(?s:.*?)\d",
    re.IGNORECASE | re.MULTILINE,
)
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_JSON_BEGINS = re.compile(r'.{0,200}[{\[]|\s*(?:\S+|"[^\n]*")\s*\Z', re.DOTALL)
_JSON_LINE = re.compile(r"\n\s*[{\[]")
"""Without either there is no JSON to look for: it begins behind few stray characters, begins a line, or is one word."""
_SNIFFED_BYTES = 65_536
_MIN_ASCII_SHARE = 0.9
_MIN_NUL_SHARE = 0.9
_PRINTABLE = bytes((*range(32, 127), 9, 10, 13))
_UNDEFINED = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
"""Bytes that Windows-1252 has no character for."""


@dataclass(frozen=True)
class Origin:
    """Identity of a document. `sha256` is empty where the bytes could not be read."""

    source_path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Content:
    """Bytes of one file, or the reason why they could not be read, with their hash.

    `raw` is the whole content, or of a large one its beginning; `reopen` then gives the whole, from its first byte.
    """

    source_path: str
    sha256: str
    raw: bytes = field(repr=False)
    problem: str | None = None
    reopen: Callable[[], BinaryIO] | None = field(default=None, repr=False)
    large_bytes: int = 0

    @classmethod
    def of(cls, raw: bytes, source_path: str) -> Content:
        return cls(source_path, hashlib.sha256(raw).hexdigest(), raw)

    @property
    def origin(self) -> Origin:
        return Origin(self.source_path, self.sha256, self.large_bytes or len(self.raw))

    def open(self) -> BinaryIO:
        """Open the whole content as a file, at its first byte."""
        return self.reopen() if self.reopen is not None else io.BytesIO(self.raw)

    def text(self) -> str:
        """Return the content as text; other bytes as base64 behind a `base64:` mark, so that nothing is lost."""
        try:
            return _decode(self.raw)
        except UnicodeDecodeError:
            return _BASE64 + base64.b64encode(self.raw).decode("ascii")


def outer_paths(source_path: str) -> list[str]:
    """Return the paths of the archives and documents around one: `a.zip!b.json` and `a.zip` for `a.zip!b.json#/c`."""
    return [source_path[: mark.start()] for mark in re.finditer("[!#]", source_path)][::-1]


def bytes_of(text: str) -> list[bytes]:
    """Return the byte strings that `Content.text` may have turned into this text; the hash tells which."""
    found = [text.encode()]
    if text.startswith(_BASE64):
        with suppress(binascii.Error):  # a text that only begins like one
            found.append(base64.b64decode(text.removeprefix(_BASE64)))
    return found


@dataclass(frozen=True)
class Document:
    """A parsed file. `value` is the JSON, the list of objects (JSON Lines, or several JSON documents in a row), the
    rows by column name (CSV: all text; `rows` of a Parquet file: typed), the tables of a database, each a list of rows,
    or the lines (text). It is None for what could not be parsed, where `problem` says why.

    `notes` are the parts outside the value: lines that are no JSON, keys given twice, rows of another length.
    """

    content: Content
    kind: DocumentKind
    value: Any = None
    columns: tuple[str, ...] = ()
    problem: str | None = None
    notes: tuple[Note, ...] = ()

    @property
    def source_path(self) -> str:
        return self.content.source_path

    @cached_property
    def key_sets(self) -> Counter[frozenset[str]]:
        """Keys of the value or of its first thousand members, and how many objects have exactly these."""
        members = self.value if isinstance(self.value, list) else [self.value]
        rows = (row for row in members if isinstance(row, dict))
        return Counter(map(frozenset, itertools.islice(rows, 1000)))


def find_files(paths: Iterable[Path], exclude: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield every file under the paths, absolute, once, in a stable order, except under `exclude`.

    Folders that cannot be listed and links to folders elsewhere are among them, because they may hold results.
    Raises NotFound for a missing path.
    """
    excluded = tuple(Path(os.path.abspath(path)) for path in exclude)
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise NotFound(f"There is no file or directory {path}: check the path.")
        for found in sorted(_walk(path)) if path.is_dir() else [path]:
            absolute = Path(os.path.abspath(found))
            if absolute not in seen and not any(absolute.is_relative_to(place) for place in excluded):
                seen.add(absolute)
                yield absolute


def holds_figures(document: Document) -> bool:
    """Return whether a text mentions latencies or rates, or has a column for one, so it must not be skipped."""
    text = "\n".join(document.value)
    return _FIGURE_IN_TEXT.search(text) is not None or _FIGURE_COLUMN.search(text) is not None


def load(path: Path) -> Content:
    """Return the bytes of a file; one that cannot be opened has a `problem` and no hash.

    A name that is not UTF-8 is written with escapes.
    """
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    try:
        # Reading a pipe or a device would wait for ever.
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            os.scandir(path).close()
            target = path.resolve()
            return Content(name, "", b"", f"cannot be opened: a link to the folder {target}: import {target} itself")
        if not stat.S_ISREG(found.st_mode):
            return Content(name, "", b"", "cannot be opened: not a regular file")
        if found.st_size <= MAX_IN_MEMORY_BYTES:
            return Content.of(path.read_bytes(), name)
        with path.open("rb") as file:
            return large_content(lambda: path.open("rb"), file, name)
    except OSError as error:
        return Content(name, "", b"", f"cannot be opened: {error.strerror or error}")


def large_content(reopen: Callable[[], BinaryIO], file: BinaryIO, source_path: str) -> Content:
    """Return the content of a file too large for memory, hashed while reading. Raises OSError."""
    sha256 = hashlib.file_digest(cast("io.BufferedReader", file), "sha256").hexdigest()
    size = file.tell()
    file.seek(0)
    return Content(source_path, sha256, file.read(HEAD_BYTES), reopen=reopen, large_bytes=size)


def parse(content: Content) -> Document:
    """Parse the bytes into a document. Never raises for their content.

    A byte order mark, either line ending, and NaN and Infinity in JSON are tolerated; readers treat the latter as
    unknown.
    """
    problem = content.problem
    if content.large_bytes:
        problem = f"too large to be read at once: {content.large_bytes:,} bytes"
    if problem is None and content.raw.startswith(_LFS_POINTER):
        problem = "a pointer of Git LFS in place of the file: run `git lfs pull` where it lies, and import it again"
    if problem is None and (database := _database(content)) is not None:
        return database
    if problem is None:
        try:
            text = decode_text(content.raw)
        except UnicodeDecodeError as error:
            problem = f"not text: {error.reason} at byte {error.start}"
        else:
            problem = "not text: it holds NUL bytes" if "\0" in text else None if text.strip() else "empty"
    if problem is not None:
        return Document(content, "unreadable", problem=problem)
    return _json(content, text) or _table(content, text) or _table_within(content, text) or _text(content, text)


def _database(content: Content) -> Document | None:
    """Return a Parquet, DuckDB or SQLite file by its first bytes, else None."""
    raw = content.raw
    if not (is_parquet(raw) or is_duckdb(raw) or is_sqlite(raw)):
        return None
    try:
        if not is_parquet(raw):
            return Document(content, "tables", database_tables(raw))
        rows = parquet_rows(raw)
        return Document(content, "rows", rows, tuple(rows[0]) if rows else ())
    except ValueError as error:
        return Document(content, "unreadable", problem=str(error))


def _walk(directory: Path) -> Iterator[Path]:
    """Yield every file, and each folder that nobody may list or that is a link out of the directory."""
    closed: list[OSError] = []
    for folder, folders, names in os.walk(directory, onerror=closed.append):
        yield from (Path(folder, name) for name in names)
        links = (path for name in folders if (path := Path(folder, name)).is_symlink())
        # A link back into the directory leads to files that are read at their own place.
        yield from (path for path in links if not path.resolve().is_relative_to(directory.resolve()))
    yield from (Path(error.filename) for error in closed)


def _decode(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16")
    return raw.decode("utf-8-sig")


def _json(content: Content, text: str) -> Document | None:
    if _JSON_BEGINS.match(text) is None and _JSON_LINE.search(text) is None:
        return None
    try:
        found = find_json(text)
    except JsonNotFound as problem:
        return Document(content, "unreadable", problem=str(problem)) if problem.broken else None
    return Document(content, "json_lines" if found.several else "json", found.value, notes=found.notes)


def _table(content: Content, text: str) -> Document | None:
    try:
        found = find_table(text)
    except InvalidTable as problem:
        return Document(content, "unreadable", problem=str(problem))
    return None if found is None else Document(content, "csv", found.rows, found.columns, notes=found.notes)


def _table_within(content: Content, text: str) -> Document | None:
    found = find_embedded_table(text, DELIMITERS)
    table = _table(content, found[0]) if found else None
    if found is None or table is None or table.kind != "csv":
        return None
    lines = found[1].count("\n") + 1
    note = Note("other_lines", f"{count_of(lines, 'line')} around the table", found[1])
    return replace(table, notes=(*table.notes, note)) if found[1] else table


def _text(content: Content, text: str) -> Document:
    return Document(content, "text", text.splitlines())


def decode_text(raw: bytes) -> str:
    """Return the text with normalized line ends. Raises UnicodeDecodeError."""
    text = raw.decode(_encoding(raw) or "utf-8-sig")
    return text if "\n" in text else text.replace("\r", "\n")


def _encoding(raw: bytes) -> str | None:
    """Return the encoding to decode by; None where none fits.

    UTF-16 has a mark, or a NUL in every other byte, as Windows tools write it. Other bytes, nearly all ASCII, are
    Windows-1252: usually a name with an accent or a trade mark (`Xeon®`).
    """
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    begin = raw[:_SNIFFED_BYTES]
    if b"\0" in raw:
        return _encoding_with_nul(begin)
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        mostly_ascii = len(begin.translate(None, _PRINTABLE)) <= (1 - _MIN_ASCII_SHARE) * len(begin)
        return "cp1252" if mostly_ascii and not _UNDEFINED.intersection(raw) else None
    return "utf-8-sig"


def _encoding_with_nul(begin: bytes) -> str | None:
    half = len(begin) / 2
    if begin[1::2].count(0) >= _MIN_NUL_SHARE * half and begin[::2].count(0) == 0:
        return "utf-16-le"
    if begin[::2].count(0) >= _MIN_NUL_SHARE * half and begin[1::2].count(0) == 0:
        return "utf-16-be"
    return "utf-8-sig"
