"""Names of the formats of a table, and the formats of file names, without the libraries that write them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from accel_platform.errors import InvalidInput

Kind = Literal["table", "markdown", "html", "json", "csv", "parquet", "xlsx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BINARY: tuple[Kind, ...] = ("parquet", "xlsx")
"""Binary formats."""
_ENDINGS: dict[str, Kind] = {
    ".txt": "table",
    ".md": "markdown",
    ".htm": "html",
    **{f".{kind}": kind for kind in KINDS[2:]},
}


def kind_of(path: Path) -> Kind:
    """Return the format named by a file's suffix. Raises InvalidInput."""
    kind = _ENDINGS.get(path.suffix.casefold())
    if kind is None:
        raise InvalidInput(f"Cannot tell the format of {path}: end its name in {', '.join(_ENDINGS)} or add --format.")
    return kind
