"""Reading of large documents in chunks: lines, members of a list, or rows of tables.

A document that has no chunks is read whole, up to a limit. The bytes are read a second time, after hashing.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from migrations.sources.csv_text import Header, InvalidTable, build_table, find_header, find_table, split_cells
from migrations.sources.databases import is_parquet, plain_rows
from migrations.sources.documents import Content, Document, DocumentKind, parse
from migrations.sources.json_text import JsonNotFound, JsonValues, Note, find_json, other_lines

CHUNK_CHARACTERS = 1 << 19
CHUNK_CELLS = 200_000
MAX_WHOLE_BYTES = 128 << 20
"""A document that is one value (a JSON object, a database) or one line is read up to this size: its values take some
ten times as much memory."""

_OR_WINDOWS_1252 = "accel-or-windows-1252"
_SEPARATOR_CHARACTERS = " \t\r\n,"
_SEPARATORS = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()


class DocumentTooLarge(ValueError):
    """A document, or a part of it, can only be read at once and is too large for that."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} can only be read at once, and the limit is {MAX_WHOLE_BYTES >> 20} MiB: split it, or write it as "
            "JSON Lines, CSV or Parquet, which are read in pieces"
        )


@dataclass(frozen=True)
class Chunk:
    """Some rows of a document; `first` is the number of the first one in the whole."""

    document: Document
    first: int = 0


def iter_chunks(content: Content) -> Iterator[Chunk]:
    """Yield the document in chunks; a single chunk where it must be read whole.

    Raises DocumentTooLarge, and ValueError (UnicodeDecodeError, InvalidTable) where the bytes cannot be read.
    """
    if is_parquet(content.raw):
        yield from _parquet_chunks(content)
        return
    encoding = "utf-16" if content.raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        head = codecs.getincrementaldecoder(encoding)(_errors(encoding)).decode(content.raw)
    except UnicodeDecodeError:
        head = "\0"
    head = head[: head.rfind("\n") + 1] or head
    begins = head.lstrip()[:1]
    if "\0" in head or not begins:
        yield Chunk(_parse_whole(content))
    elif begins == "[" and not _is_json(head.lstrip().partition("\n")[0]):
        yield from _json_chunks(content, encoding, "json", partial(_whole_members, True))
    elif begins == "{" and not _is_json(head.lstrip().partition("\n")[0]):
        yield from _multiline_json_chunks(content, encoding)
    elif parse(Content(content.source_path, content.sha256, head.encode())).kind in ("json", "json_lines"):
        yield from _json_chunks(content, encoding, "json_lines", _whole_lines)
    elif (header := _header(head)) is not None:
        yield from _csv_chunks(content, encoding, header)
    else:
        yield Chunk(_parse_whole(content))


def _parse_whole(content: Content) -> Document:
    if content.large_bytes > MAX_WHOLE_BYTES:
        raise DocumentTooLarge(
            f"it can only be read at once, and of {content.large_bytes >> 20:,} MiB that is too much: the limit is "
            f"{MAX_WHOLE_BYTES >> 20} MiB: JSON Lines, CSV and Parquet are read in pieces"
        )
    with content.open() as file:
        return parse(Content(content.source_path, content.sha256, file.read()))


def _multiline_json_chunks(content: Content, encoding: str) -> Iterator[Chunk]:
    """Yield chunks of JSON documents in a row, each over several lines, or the one document."""
    with _text(content, encoding) as file:
        first, *others = itertools.islice(_whole_members(False, file), 2)
    if others:
        yield from _json_chunks(content, encoding, "json_lines", partial(_whole_members, False))
    else:
        yield Chunk(parse(Content(content.source_path, content.sha256, first.encode())))


def _json_chunks(
    content: Content, encoding: str, kind: Literal["json", "json_lines"], texts: Callable[[TextIO], Iterator[str]]
) -> Iterator[Chunk]:
    """Yield chunks of the values in each of the texts that the file is cut into."""
    first = 0
    with _text(content, encoding) as file:
        for text in texts(file):
            try:
                found = find_json(text)
            except JsonNotFound:
                found = JsonValues([], notes=(other_lines(text),))
            values = found.value if isinstance(found.value, list) else [found.value]
            yield Chunk(_document(content, text, kind, values, notes=found.notes), first)
            first += len(values)


def _whole_lines(file: TextIO) -> Iterator[str]:
    """Yield texts of whole lines; lines of other programs may stand between the JSON."""
    rest = ""
    while chunk := file.read(CHUNK_CHARACTERS):
        text = rest + chunk
        end = text.rfind("\n") + 1
        if end:
            yield text[:end]
        elif len(text) > MAX_WHOLE_BYTES:
            raise DocumentTooLarge("a line of it")
        rest = text[end:]
    if rest.strip():
        yield rest


def _whole_members(is_list: bool, file: TextIO) -> Iterator[str]:
    """Yield texts of whole members of one long list, or of whole documents in a row."""
    opening, closing = ("[", "]") if is_list else ("", "")
    rest: str | None = None
    # An incomplete member is decoded again with the next read, so the size of a read grows with the member.
    while chunk := file.read(max(CHUNK_CHARACTERS, len(rest or ""))):
        text = chunk.lstrip().removeprefix(opening) if rest is None else rest + chunk
        end = _end_of_members(text)
        if end:
            yield opening + text[:end].strip(_SEPARATOR_CHARACTERS) + closing
        elif len(text) > MAX_WHOLE_BYTES:
            raise DocumentTooLarge("one value of it")
        rest = text[end:]
    if rest and rest.strip(_SEPARATOR_CHARACTERS + "]"):
        yield rest


def _end_of_members(text: str) -> int:
    """Return the end of the last value that is certainly whole."""
    end = 0
    while True:
        start = _SEPARATORS.match(text, end).end()  # type: ignore[union-attr]  # it matches the empty text too
        try:
            _, after = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return end
        if after == len(text):
            return end  # a number may go on
        end = after


def _csv_chunks(content: Content, encoding: str, header: Header) -> Iterator[Chunk]:
    """Yield chunks of the rows of a table in text."""
    many = max(1, CHUNK_CELLS // len(header.columns))
    first = 0
    with _text(content, encoding) as file:
        lines = split_cells(file, header)
        next(lines)
        while some := list(itertools.islice(lines, many)):
            found = build_table(header, some, first=first + 1)
            text = "\n".join(map(header.delimiter.join, some))
            yield Chunk(_document(content, text, "csv", found.rows, found.columns, found.notes), first)
            first += len(some)


def _parquet_chunks(content: Content) -> Iterator[Chunk]:
    first = 0
    try:
        with content.open() as binary:
            file = pq.ParquetFile(binary)
            columns = tuple(map(str, file.schema_arrow.names))
            for batch in file.iter_batches(max(1, CHUNK_CELLS // max(1, len(columns)))):
                rows = plain_rows(batch.to_pylist())
                yield Chunk(_document(content, "", "rows", rows, columns), first)
                first += len(rows)
    except pa.ArrowException as error:
        raise ValueError(f"a Parquet file that cannot be read: {error}") from error


def _document(
    content: Content,
    text: str,
    kind: DocumentKind,
    rows: list[Any],
    columns: tuple[str, ...] = (),
    notes: tuple[Note, ...] = (),
) -> Document:
    """Return a chunk under the name and hash of the whole."""
    part = Content(content.source_path, content.sha256, text.encode(), large_bytes=content.large_bytes)
    return Document(part, kind, rows, columns, notes=notes)


def _text(content: Content, encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(content.open(), encoding, _errors(encoding), newline="")


def _errors(encoding: str) -> str:
    return _OR_WINDOWS_1252 if encoding == "utf-8-sig" else "strict"


def _decode_windows_1252(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that are not UTF-8, as in small files. Raises UnicodeDecodeError for those without a character."""
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252"), error.end


codecs.register_error(_OR_WINDOWS_1252, _decode_windows_1252)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _header(head: str) -> Header | None:
    """Return the header of the table at the beginning of a text; None without one."""
    try:
        return find_header(head) if find_table(head) is not None else None
    except InvalidTable:
        return None
