"""Tables with the names of their columns replaced, as `accel migrate --map` asks."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from accel_platform.errors import InvalidInput
from migrations.sources.csv_text import DELIMITERS
from migrations.sources.documents import Content


def with_columns_renamed(content: Content, names: Mapping[str, str]) -> Content:
    """Return a CSV file with other column names. Raises InvalidInput for a name that it lacks, or another kind of file.

    It is another content to the ledger, so a table that was imported under its own names is read again.
    """
    with content.open() as file:
        text = Content.of(file.read(), content.source_path).text()
    header, newline, rows = text.partition("\n")
    delimiter = max(DELIMITERS, key=header.count)
    columns = next(csv.reader([header.rstrip("\r")], delimiter=delimiter), [])
    missing = [name for name in names if name not in columns]
    if missing or delimiter not in header:
        raise InvalidInput(
            f"{content.source_path} has no column {missing[0] if missing else next(iter(names))!r} to rename: its first"
            f" line is {header.strip()[:200]!r}. --map is for CSV files."
        )
    renamed = io.StringIO()
    csv.writer(renamed, delimiter=delimiter, lineterminator="").writerow(names.get(name, name) for name in columns)
    return Content.of((renamed.getvalue() + newline + rows).encode(), content.source_path)
