"""Rendering of reports as text, Markdown, HTML, PDF, JSON, CSV, Parquet or XLSX."""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from accel_platform.reports.charts.render import specification, svg
from accel_platform.reports.documents.model import Findings, Part, Picture, ReportDocument, ReportTable, Section, Text
from accel_platform.table_io import files, kinds, sheet, text
from accel_platform.table_io.values import display_text, json_text
from accel_platform.table_io.width import fit_table, wrap_text

Kind = Literal["table", "markdown", "html", "pdf", "json", "csv", "parquet", "xlsx"]
_STYLE = """
nav ul { columns: 2; } .facts { margin: 1rem 0; }
.facts dt { font-weight: 600; float: left; clear: left; width: 11rem; }
.facts dd { margin-left: 11.5rem; overflow-wrap: anywhere; } .rest, .none { font-size: .9em; }
figure { margin: 1.5rem 0; overflow-x: auto; }
figure svg { max-width: max(100%, 60rem); height: auto; color: inherit; } code { overflow-wrap: anywhere; }
.findings li { margin: .5rem 0; font-size: 1.1em; } .evidence { display: block; font-size: .8em; opacity: .8; }
th, td { padding: .3rem .5rem; font-size: .9em; } figure svg { overflow: visible; }
:focus-visible { outline: 2px solid; outline-offset: 2px; }
@media (max-width: 50rem) { nav ul { columns: 1; } }
@media print { nav { display: none; } body { margin: 0; max-width: none; font-size: 11px; } h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; } .table { overflow: visible; } }
"""
_NOT_A_NAME = re.compile(r"[^a-z0-9]+")


def render(document: ReportDocument, kind: Kind, *, width: int | None = None) -> bytes:
    """Render the report: readable formats show the first rows of each table, data formats all.

    `csv` and `parquet` are a ZIP with one file per table. `width` is that of a terminal's lines, in characters; None
    leaves them as long as they are. Raises InvalidInput for a PDF where its writer is not installed.
    """
    if kind == "pdf":
        from accel_platform.reports.documents.pdf import write_pdf

        return write_pdf(document)
    if kind == "json":
        return f"{json_text(as_json(document))}\n".encode()
    if kind == "xlsx":
        stream = io.BytesIO()
        sheet.write_several(
            [(table.title, files.flatten(files.read_batches(table.rows))) for table in tables(document)],
            stream,
            title=document.title,
        )
        return stream.getvalue()
    if kind in ("csv", "parquet"):
        return _zipped(document, kind)
    lines = terminal(document, width) if kind == "table" else {"markdown": markdown, "html": page}[kind](document)
    return "".join(f"{line}\n" for line in lines).encode()


def tables(document: ReportDocument) -> list[ReportTable]:
    """Return every table of a report, in order."""
    return [part for section in document.sections for part in section.parts if isinstance(part, ReportTable)]


def as_json(document: ReportDocument) -> dict[str, Any]:
    """Return the whole report as JSON, with charts as Vega-Lite specifications."""
    return {
        "title": document.title,
        "facts": document.facts,
        "sections": [
            {"heading": section.heading, "parts": [_part_as_json(part) for part in section.parts]}
            for section in document.sections
        ],
    }


def terminal(document: ReportDocument, width: int | None = None) -> Iterator[str]:
    """Return the report as terminal text. Charts are shown as the commands that draw them."""
    yield from (document.title, "=" * len(document.title), "")
    names = max(map(len, document.facts))
    for name, value in document.facts.items():
        yield from wrap_text(f"{name.ljust(names)}  {display_text(value)}", width)
    for section in document.sections:
        yield from ("", section.heading, "-" * len(section.heading))
        for part in section.parts:
            yield ""
            for line in _terminal_lines(part, width):
                yield from wrap_text(line, width)


def _terminal_lines(part: Part, width: int | None) -> Iterator[str]:
    if isinstance(part, Text):
        yield display_text(part.words)
    elif isinstance(part, Findings):
        for item in part.items:
            yield f"- {display_text(item.words)}"
            yield f"  ({item.evidence})"
    elif isinstance(part, Picture):
        yield f"Chart: {part.command}" if part.chart else f"No chart: {part.reason}"
    else:
        yield part.title
        rows, remarks = fit_table(part.first, width) if part.rows and width is not None else (part.first, ())
        yield from text.terminal(text.table_of(rows)) if rows else (part.empty,)
        yield from remarks
        yield from [part.rest] if part.rest else []


def markdown(document: ReportDocument) -> Iterator[str]:
    """Return the report as GitHub Markdown. Charts are named only."""
    yield from (f"# {text.escape_markdown(document.title)}", "")
    yield from (f"- {name}: {text.escape_markdown(value)}" for name, value in document.facts.items())
    for section in document.sections:
        yield from ("", f"## {text.escape_markdown(section.heading)}")
        for part in section.parts:
            yield ""
            if isinstance(part, Text):
                yield text.escape_markdown(part.words)
            elif isinstance(part, Findings):
                yield from (f"- {text.escape_markdown(f'{item.words} ({item.evidence})')}" for item in part.items)
            elif isinstance(part, Picture):
                sentence = f"Chart: `{part.command}`" if part.chart else f"No chart: {part.reason}"
                yield sentence if part.chart else text.escape_markdown(sentence)
            else:
                yield from (f"### {text.escape_markdown(part.title)}", "")
                yield from text.markdown(text.table_of(part.first)) if part.rows else (part.empty,)
                yield from ["", part.rest] if part.rest else []


def page(document: ReportDocument) -> Iterator[str]:
    """Return a self-contained HTML page: contents, tables and SVG charts in the page's colors."""
    yield from text.html_page(document.title, _body(document), head=f"<style>{_STYLE}</style>")


def _body(document: ReportDocument) -> Iterator[str]:
    """Return the first section, which a reader in a hurry wants, then facts and contents, then the other sections."""
    first, *others = [
        (f"{number}-{_name(section.heading)}", section) for number, section in enumerate(document.sections, 1)
    ]
    yield from _html_section(*first)
    yield '<dl class="facts">'
    for name, value in document.facts.items():
        yield f"<dt>{html.escape(name)}</dt><dd>{html.escape(display_text(value))}</dd>"
    yield '</dl><nav aria-label="Contents"><h2>Contents</h2><ul>'
    yield from (f'<li><a href="#{name}">{html.escape(section.heading)}</a></li>' for name, section in others)
    yield "</ul></nav>"
    for name, section in others:
        yield from _html_section(name, section)


def _html_section(name: str, section: Section) -> Iterator[str]:
    yield f'<section aria-labelledby="{name}"><h2 id="{name}">{html.escape(section.heading)}</h2>'
    for part in section.parts:
        yield from _html(part)
    yield "</section>"


def _html(part: Part) -> Iterable[str]:
    if isinstance(part, Text):
        return [f"<p>{_as_html(part.words)}</p>"]
    if isinstance(part, Findings):
        proved = ((_as_html(item.words), html.escape(item.evidence)) for item in part.items)
        items = (
            f'<li>{words}<span class="evidence"><code>{shown}</code> shows it</span></li>' for words, shown in proved
        )
        return ['<ul class="findings">', *items, "</ul>"]
    if isinstance(part, Picture):
        if part.chart is None:
            return [f'<p class="none">No chart of {html.escape(part.name)}: {_as_html(part.reason or "")}</p>']
        drawn = svg(part.chart, name=part.name)
        # Focusable, because keyboard users must be able to scroll a wide chart.
        return [f'<figure tabindex="0" aria-label="chart: {html.escape(part.name)}">{drawn}</figure>']
    if not part.rows:
        return [f"<h3>{html.escape(part.title)}</h3><p>{_as_html(part.empty)}</p>"]
    rows, remarks = part.shown()
    below = [f'<p class="rest">{_as_html(remark)}</p>' for remark in remarks]
    return [*text.html_table(text.table_of(rows), part.title), *below]


def _as_html(words: str) -> str:
    """Escape text, and mark back-quoted parts as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(display_text(words)))


def _part_as_json(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"text": part.words}
    if isinstance(part, Findings):
        return {"findings": [{"finding": item.words, "evidence": item.evidence} for item in part.items]}
    if isinstance(part, Picture):
        spec = None if part.chart is None else specification(part.chart)
        return {"chart": part.name, "specification": spec, "reason": part.reason}
    return {"table": part.title, "rows": list(part.rows), "total": len(part.rows), "all_by": part.command}


def _zipped(document: ReportDocument, kind: kinds.Kind) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, table in enumerate(tables(document), 1):
            content = io.BytesIO()
            files.write(table.rows, content, kind)
            archive.writestr(f"{number:02}-{_name(table.title)}.{kind}", content.getvalue())
    return stream.getvalue()


def _name(heading: str) -> str:
    return _NOT_A_NAME.sub("-", heading.casefold()).strip("-")[:60] or "table"
