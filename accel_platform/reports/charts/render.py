"""Rendering of charts as JSON, SVG, PNG or a self-contained HTML page."""

from __future__ import annotations

import html
import json
import re
import threading
from pathlib import Path
from typing import Any, Literal, get_args

import altair as alt

from accel_platform.errors import InvalidInput
from accel_platform.reports.charts.theme import BACKGROUND, Theme, theme_config
from accel_platform.table_io.files import save_bytes

Kind = Literal["json", "svg", "png", "html"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Chart = alt.TopLevelMixin
_CONVERTING = threading.Lock()
_MARK = re.compile(r'(<(?:path|line|text)\b[^>]* aria-label="([^"]*)"[^>]*?)(?:/>|>([^<]*)</(path|line|text)>)')

_ID = re.compile(r'(\bid="|url\(#)([^")]+)')
_LINE = re.compile(r"(<(?:text|tspan)\b[^>]*)>([^<]*)")
_FONT = re.compile(r'font-(family|size|weight)="([^"]+?)(?:px)?"')


def specification(chart: Chart, theme: Theme = "light") -> dict[str, Any]:
    """Return the Vega-Lite specification with a theme.

    It is not validated against the schema, because that takes longer than all else, and tests validate every chart.
    """
    spec: dict[str, Any] = chart.to_dict(validate=False)
    return {**spec, "config": theme_config(theme)}


def convert(function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of vl_convert, one call at a time.

    Two at once may wait for each other for ever, and keep Python from running.
    """
    import vl_convert

    with _CONVERTING:
        return getattr(vl_convert, function)(*arguments, **options)


def render(chart: Chart, kind: Kind, theme: Theme = "light") -> bytes:
    """Render the chart in one of KINDS."""
    spec = specification(chart, theme)
    if kind == "json":
        return json.dumps(spec, ensure_ascii=False, indent=1).encode()
    if kind == "png":
        png: bytes = convert("vegalite_to_png", spec, scale=2)
        return png
    if kind == "svg":
        return svg(chart, theme).encode()
    return page(chart, theme).encode()


def svg(chart: Chart, theme: Theme = "page", *, name: str = "chart") -> str:
    """Return the chart as SVG whose marks have tooltips without a script, and whose texts fit in any font.

    `name` keeps its ids apart from those of other charts on one page.
    """
    drawn = _ID.sub(rf"\1{name}-\2", convert("vegalite_to_svg", specification(chart, theme)))
    return _MARK.sub(_with_title, _with_widths(drawn))


def page(chart: Chart, theme: Theme = "light", *, heading: str = "", below: str = "") -> str:
    """Return a self-contained HTML page with an interactive chart. `below` is trusted HTML."""
    spec = specification(chart, theme)
    name = html.escape(heading or _heading(spec))
    ground = BACKGROUND[theme] or BACKGROUND["light"]
    scheme = "dark" if theme == "dark" else "light"
    above = f"<h1>{html.escape(heading)}</h1>" if heading else ""
    # Escape < and >, because they could end the script element.
    text = json.dumps(spec, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="{scheme}">'
        f"<style>body{{margin:1rem;background:{ground};font:14px system-ui,sans-serif}}</style>"
        f"<script>{_bundle()}</script></head><body>{above}"
        f'<div id="chart"></div>{below}'
        f'<script>vegaEmbed("#chart", {text}, {{actions: false, renderer: "svg"}})</script></body></html>\n'
    )


def kind_of(path: Path) -> Kind:
    """Return the format named by a file's suffix. Raises InvalidInput for an unknown one."""
    for kind in KINDS:
        if path.suffix.lower() == f".{kind}":
            return kind
    raise InvalidInput(f"A chart is written as {', '.join(f'.{kind}' for kind in KINDS)}, not as {path.name!r}.")


def write(chart: Chart, path: Path, theme: Theme = "light", *, heading: str = "") -> None:
    """Write the chart in the format of the path's suffix. `heading` is for HTML. Raises InvalidInput."""
    kind = kind_of(path)
    content = page(chart, theme, heading=heading).encode() if kind == "html" else render(chart, kind, theme)
    save_bytes(path, content)


def _bundle() -> str:
    text: str = convert("javascript_bundle")
    return text


def _heading(spec: dict[str, Any]) -> str:
    title = spec.get("title")
    return str(title.get("text", "") if isinstance(title, dict) else title or "Chart")


def _with_widths(drawn: str) -> str:
    """Give each text the width it was laid out with, because a viewer's font may be wider and would be clipped."""
    lines: list[dict[str, str]] = []
    font: dict[str, str] = {}
    for tag, content in _LINE.findall(drawn):
        font = dict(_FONT.findall(tag)) if tag.startswith("<text") else font
        lines.append({**font, "text": html.unescape(content)})
    widths = iter(_measure(lines))

    def fit(line: re.Match[str]) -> str:
        length = f' textLength="{next(widths):.1f}" lengthAdjust="spacingAndGlyphs"'
        return f"{line[1]}{length if line[2] else ''}>{line[2]}"

    return _LINE.sub(fit, drawn)


def _measure(lines: list[dict[str, str]]) -> list[float]:
    """Return the width of each text in pixels, by the font metrics that charts are laid out with."""
    fonts = {"text": "text", "font": "family", "fontSize": "size", "fontWeight": "weight"}
    width = "datum.bounds.x2 - datum.bounds.x1"
    spec = {
        "$schema": "https://vega.github.io/schema/vega/v6.json",
        "data": [{"name": "lines", "values": lines}],
        "marks": [
            {
                "type": "text",
                "name": "drawn",
                "from": {"data": "lines"},
                "encode": {"enter": {name: {"field": field} for name, field in fonts.items()}},
            },
            {"type": "symbol", "from": {"data": "drawn"}, "encode": {"update": {"x": {"signal": width}}}},
        ],
    }
    [root] = convert("vega_to_scenegraph", spec)["scenegraph"]["items"]
    return [symbol["x"] for symbol in root["items"][1]["items"]]


def _with_title(found: re.Match[str]) -> str:
    element, label, text, tag = found.groups()
    if not label:
        return found[0]
    name = tag or element[1:].split(" ", 1)[0]
    return f"{element}><title>{label}</title>{text or ''}</{name}>"
