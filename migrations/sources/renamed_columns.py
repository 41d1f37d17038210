"""Tables with the names of their columns replaced, as `accel migrate --map` asks."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping

from accel_platform.errors import InvalidInput
from migrations.sources.csv_text import DELIMITERS
from migrations.sources.documents import Content


def with_columns_renamed(content: Content, names: Mapping[str, str]) -> Content:
    """Return a CSV or JSON file with other names of columns or keys. Raises InvalidInput for a name that it lacks.

    It is another content to the ledger, so a table that was imported under its own names is read again.
    """
    with content.open() as file:
        text = Content.of(file.read(), content.source_path).text()
    renamed = _json_renamed if text.lstrip()[:1] in ("{", "[") else _csv_renamed
    return Content.of(renamed(text, content.source_path, names).encode(), content.source_path)


def _json_renamed(text: str, source_path: str, names: Mapping[str, str]) -> str:
    """Return the text with other keys; what stands between the documents stays as it is."""
    for theirs, ours in names.items():
        text, times = re.subn(rf"(?<!\\){re.escape(json.dumps(theirs))}(?=\s*:)", json.dumps(ours), text)
        if not times:
            raise InvalidInput(f"{source_path} has no key {theirs!r} to rename.")
    return text


def _csv_renamed(text: str, source_path: str, names: Mapping[str, str]) -> str:
    header, newline, rows = text.partition("\n")
    delimiter = max(DELIMITERS, key=header.count)
    columns = next(csv.reader([header.rstrip("\r")], delimiter=delimiter), [])
    missing = [name for name in names if name not in columns]
    if missing or delimiter not in header:
        raise InvalidInput(
            f"{source_path} has no column {missing[0] if missing else next(iter(names))!r} to rename: its first"
            f" line is {header.strip()[:200]!r}. --map is for CSV and JSON files."
        )
    renamed = io.StringIO()
    csv.writer(renamed, delimiter=delimiter, lineterminator="").writerow(names.get(name, name) for name in columns)
    return renamed.getvalue() + newline + rows
