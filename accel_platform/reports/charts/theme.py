"""Colors, shapes and Vega-Lite settings of the light, dark and inline themes."""

from __future__ import annotations

from typing import Any, Literal

Theme = Literal["light", "dark", "page"]
"""Themes. `page` takes the text color and background of the surrounding HTML page."""

PALETTE = ("#0077b2", "#e57300", "#42a663", "#cc66ff", "#a64819", "#0055ff", "#117352", "#3d9999")
"""Series colors. Each has a contrast of 3 to white and to GROUND['dark'], and is safe for color-blind readers."""
GRAY = "#808080"
SHAPES = {
    "measured": "circle",
    "imported": "square",
    "emulated": "triangle-up",
    "suspect": "cross",
    "simulated": "diamond",
    "scaled": "triangle-down",
    "predicted": "triangle-right",
}
"""Shape per provenance, because color alone must not carry it."""
BACKGROUND = {"light": "#ffffff", "dark": "#14181d", "page": None}
_INK = {"light": "#1b2026", "dark": "#e6e9ee", "page": "currentColor"}
FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"
"""Font used for layout, because another width would not fit the computed space."""


def theme_config(theme: Theme) -> dict[str, Any]:
    """Return the Vega-Lite configuration of a theme."""
    ink = _INK[theme]
    text = {"labelColor": ink, "titleColor": ink, "labelFont": FONT, "titleFont": FONT}
    return {
        "background": BACKGROUND[theme],
        "font": FONT,
        "padding": 12,
        "view": {"stroke": None},
        "axis": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "domainColor": GRAY,
            "tickColor": GRAY,
            "gridColor": GRAY,
            "gridOpacity": 0.25,
            "titlePadding": 8,
        },
        "legend": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "labelLimit": 460,
            "symbolOpacity": 1,
            "symbolBaseFillColor": GRAY,
            "symbolBaseStrokeColor": GRAY,
        },
        "header": {**text, "labelFontSize": 12, "labelFontWeight": "bold", "labelLimit": 420, "labelPadding": 6},
        "title": {
            "color": ink,
            "subtitleColor": ink,
            "font": FONT,
            "subtitleFont": FONT,
            "fontSize": 15,
            "subtitleFontSize": 11,
            "subtitlePadding": 6,
            "subtitleLineHeight": 15,
            "anchor": "start",
            "offset": 14,
        },
        "text": {"color": ink, "font": FONT, "fontSize": 11},
        "range": {"category": list(PALETTE)},
    }
