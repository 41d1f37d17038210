"""How every chart looks: colours, shapes, and the settings of a light page, a dark one, and one that may be either."""

from __future__ import annotations

from typing import Any, Literal

Theme = Literal["light", "dark", "page"]
"""`page`: letters and rules take the colour of the text around an inline SVG, and the ground is that of the page."""

PALETTE = ("#0077b2", "#e57300", "#42a663", "#cc66ff", "#a64819", "#0055ff", "#117352", "#3d9999")
"""Each has a contrast of 3 to white and to GROUND['dark'], and is told from the others without red or without green."""
GREY = "#808080"
SHAPES = {
    "measured": "circle",
    "imported": "square",
    "emulated": "triangle-up",
    "suspect": "cross",
    "simulated": "diamond",
    "scaled": "triangle-down",
    "predicted": "triangle-right",
}
"""Where a figure comes from is told by its shape, never by colour."""
GROUND = {"light": "#ffffff", "dark": "#14181d", "page": None}
_INK = {"light": "#1b2026", "dark": "#e6e9ee", "page": "currentColor"}
FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"
"""What charts are laid out with: letters of another width would not fit the place made for them."""


def config_of(theme: Theme) -> dict[str, Any]:
    """The Vega-Lite configuration of a theme."""
    ink = _INK[theme]
    text = {"labelColor": ink, "titleColor": ink, "labelFont": FONT, "titleFont": FONT}
    return {
        "background": GROUND[theme],
        "font": FONT,
        "padding": 12,
        "view": {"stroke": None},
        "axis": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "domainColor": GREY,
            "tickColor": GREY,
            "gridColor": GREY,
            "gridOpacity": 0.25,
            "titlePadding": 8,
        },
        "legend": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "labelLimit": 460,
            "symbolOpacity": 1,
            "symbolBaseFillColor": GREY,
            "symbolBaseStrokeColor": GREY,
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
