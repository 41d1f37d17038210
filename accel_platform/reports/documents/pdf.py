"""Reports as PDF: typeset by Typst from the report as JSON and its charts as SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accel_platform.errors import InvalidInput
from accel_platform.reports.charts.render import svg
from accel_platform.reports.documents.model import Findings, Part, Picture, ReportDocument, Text
from accel_platform.table_io.text import table_of
from accel_platform.table_io.values import display_text, json_text


def write_pdf(document: ReportDocument) -> bytes:
    """Return the report as a tagged PDF on A4 pages. Raises InvalidInput where Typst is not installed."""
    try:
        import typst
    except ImportError as error:
        raise InvalidInput("typst, which writes PDF, is not installed: pip install 'accel-platform[pdf]'.") from error
    with TemporaryDirectory(prefix="accel-report-") as folder:
        root = Path(folder)
        content = {
            "title": document.title,
            "facts": [[name, display_text(value)] for name, value in document.facts.items()],
            "sections": [
                {"heading": section.heading, "parts": [_part(part, root) for part in section.parts]}
                for section in document.sections
            ],
        }
        (root / "report.json").write_text(json_text(content))
        (root / "report.typ").write_bytes(files("accel_platform.reports.documents").joinpath("report.typ").read_bytes())
        pdf = typst.compile(root / "report.typ", root=root, format="pdf", ignore_system_fonts=True)
    assert isinstance(pdf, bytes), "several files come of images only"
    return pdf


def _part(part: Part, root: Path) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"kind": "text", "words": display_text(part.words)}
    if isinstance(part, Findings):
        return {"kind": "findings", "items": [[display_text(item.words), item.evidence] for item in part.items]}
    if isinstance(part, Picture):
        if part.chart is None:
            return {"kind": "text", "words": f"No chart of {part.name}: {display_text(part.reason)}"}
        (root / f"{part.name}.svg").write_text(svg(part.chart, "light", name=part.name))
        return {"kind": "picture", "file": f"{part.name}.svg", "name": part.name}
    rows, remarks = part.shown()
    table = table_of(rows)
    texts = [[display_text(row.get(name)) for name in table.columns] for row in rows]
    return {
        "kind": "table",
        "title": part.title,
        "empty": None if part.rows else part.empty,
        "columns": [display_text(name) for name in table.columns],
        "weights": _weights(table.columns, texts),
        "numeric": table.numeric,
        "rows": texts,
        "remarks": remarks,
    }


def _weights(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[float]:
    """Return each column's share of the width: its longest word, or the root of its longest text if that is more."""
    texts = [[name, *(row[i] for row in rows)] for i, name in enumerate(columns)]
    return [max(*map(_longest_word, column), max(map(len, column)) ** 0.75) + 1 for column in texts]


def _longest_word(text: str) -> int:
    return max(map(len, re.split(r"[\s_/:-]", text)))
