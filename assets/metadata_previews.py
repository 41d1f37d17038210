"""Previews of rows and charts as asset metadata in the Dagster UI."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from accel_platform.table_io.text import markdown, table_of
from accel_platform.warehouse.dictionary import Column

if TYPE_CHECKING:
    import altair as alt

NOTHING_TO_DRAW = "Nothing to draw yet."
SHOWN = 20
"""Rows of a preview: what fits a screen."""


def table(
    rows: Sequence[Mapping[str, Any]], *, empty: str = "No rows.", total: int | None = None
) -> dg.MarkdownMetadataValue:
    """Return the first rows as a Markdown table, with a line for the number of others.

    `total` is the number of all rows where `rows` holds only the first.
    """
    if not rows:
        return dg.MetadataValue.md(empty)
    body = "\n".join(markdown(table_of(rows[:SHOWN])))
    others = (len(rows) if total is None else total) - len(rows[:SHOWN])
    return dg.MetadataValue.md(body + (f"\n\nand {others:,} more" if others else ""))


def schema(columns: Iterable[Column]) -> dict[str, dg.TableSchema]:
    """Return the metadata by which Dagster lists the columns of a table, with their types and meanings."""
    shown = [dg.TableColumn(column.name, column.type, column.meaning) for column in columns]
    return {"dagster/column_schema": dg.TableSchema(shown)}


def among_first(rows: Iterable[Mapping[str, Any]], column: str, limit: int) -> list[dict[str, Any]]:
    """Return the rows whose value in the column is among the first `limit` different ones.

    Charts are bounded so, because each is stored twice in Dagster's database at every materialization.
    """
    first: set[Any] = set()
    kept = []
    for row in rows:
        if len(first) < limit:
            first.add(row[column])
        if row[column] in first:
            kept.append(dict(row))
    return kept


def chart(drawing: alt.Chart | alt.LayerChart) -> dg.MarkdownMetadataValue:
    """Return the chart as a PNG inside Markdown, without a browser or network (about a second); empty without
    values.
    """
    from accel_platform.reports.charts.render import convert

    if drawing.data == {"values": []}:
        return dg.MetadataValue.md(NOTHING_TO_DRAW)
    png = _shrink(convert("vegalite_to_png", drawing.to_json()))
    return dg.MetadataValue.md(f"![chart](data:image/png;base64,{base64.b64encode(png).decode()})")


def _shrink(png: bytes) -> bytes:
    """Return the picture with a palette, because vl_convert writes true colors nearly uncompressed.

    A tenth of the bytes is left, which Dagster stores twice and sends to each page that shows the asset.
    """
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    return small.getvalue()


def bars(rows: Sequence[Mapping[str, Any]], length: str, name: str, *, title: str) -> dg.MarkdownMetadataValue:
    """Return a bar for each row, the longest first."""
    import altair as alt

    return chart(
        alt.Chart({"values": list(rows)}, title=title)
        .mark_bar()
        .encode(x=alt.X(f"{length}:Q"), y=alt.Y(f"{name}:N", title=None).sort("-x"))
        .properties(width=480)
    )
