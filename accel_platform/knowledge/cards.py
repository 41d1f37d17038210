"""Cards of knowledge packs: where a pack's figures come from, on what terms, and what was left out.

A card is a TOML file. People write its first part; `accel knowledge build` writes the tables after it.
"""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accel_platform.errors import InvalidInput

CARD = "card.toml"
SCHEMA = 1
"""Version of this layout; a card with a higher one is refused."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

Text = Annotated[str, Field(min_length=1)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceFile(_Table):
    """One file of the source, which the pack was converted from."""

    path: Text
    """Path in the repository."""
    sha256: Hash | None = None
    """SHA-256 of the file that was converted; None before the first build."""


class ResultsTable(_Table):
    """The pack's `results.parquet`."""

    version: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    """Hash of the results, so that another content is another version."""
    rows: Annotated[int, Field(gt=0)]
    models: Annotated[int, Field(gt=0)]
    devices: tuple[str, ...]
    sha256: Hash


class KernelsTable(_Table):
    """The pack's `kernels.parquet`."""

    rows: Annotated[int, Field(gt=0)]
    devices: tuple[str, ...]
    sha256: Hash


class Card(_Table):
    """The card of one pack."""

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,60}$")]
    title: Text
    what: Text
    repository: Text
    """Repository on GitHub, as `owner/name`."""
    commit: Text
    license: Text
    """SPDX identifier of the license."""
    copyright: Text
    date: date
    """Date of the source's contents: that of its commit where it is known, else that of the copy."""
    conversion: Text
    left_out: tuple[str, ...] = ()
    """Parts of the source that the pack lacks, each with the reason."""
    batch_size: Annotated[int, Field(gt=0)] | None = None
    """Batch size of every inference whose file names none; `conversion` says how that is known."""
    device_names: dict[str, Text] = {}
    """Fuller names of devices that the files name in short; `conversion` says how they are known."""
    files: dict[str, SourceFile] = {}
    """Source files by their path in the folder that `accel knowledge build` reads."""
    results: ResultsTable | None = None
    kernels: KernelsTable | None = None

    @property
    def source(self) -> str:
        """The `source` of the pack's events; each version has its own."""
        assert self.results is not None
        return source_of(self.name, self.results.version)

    @property
    def recorded_at(self) -> datetime:
        """Midnight of the card's date, the time at which its events count as recorded."""
        return datetime.combine(self.date, time(), UTC)

    def as_dict(self) -> dict[str, Any]:
        """Return the card as JSON has it."""
        content = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return content if self.device_names else {k: v for k, v in content.items() if k != "device_names"}

    @property
    def rows(self) -> int:
        """Number of figures: results and kernel times."""
        return sum(table.rows for table in (self.results, self.kernels) if table)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(sorted({name for table in (self.results, self.kernels) if table for name in table.devices}))


SOURCE_PREFIX = "pack:"
"""Beginning of the `source` of every event that a pack holds."""


def source_of(name: str, version: str) -> str:
    """Return the `source` of the events of one version of a pack."""
    return f"{SOURCE_PREFIX}{name}@{version}"


def load_card(folder: Path) -> Card:
    """Read the card in a pack's folder. Raises InvalidInput with the reason."""
    path = folder / CARD
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"Cannot read the card {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The card {path} is no TOML: {error}.") from error
    schema = content.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise InvalidInput(f"The card {path} has layout {schema}, this program knows {SCHEMA}: upgrade accel-platform.")
    try:
        card = Card.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"The card {path} cannot be used, because of {where}: {first['msg']}.") from error
    if card.name != folder.resolve().name:
        raise InvalidInput(f"The card {path} is of the pack {card.name}, in a folder of another name: rename one.")
    return card


def card_text(card: Card) -> str:
    """Return the card as TOML; equal cards give equal text."""
    content = card.as_dict()
    tables = {key: content.pop(key) for key in ("results", "kernels", "files") if key in content}
    files = tables.pop("files", {})
    lines = [_line(key, value) for key, value in content.items()]
    for path, file in sorted(files.items()):
        lines += ["", f"[files.{_key(path)}]", *(_line(key, value) for key, value in file.items())]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    if key == "date":
        return f"{key} = {value}"
    if isinstance(value, dict):
        return f"{key} = {{ {', '.join(_line(*item) for item in sorted(value.items()))} }}"
    if isinstance(value, list) and value:
        return "\n".join([f"{key} = [", *(f"  {_value(item)}," for item in value), "]"])
    return f"{_key(key)} = {_value(value)}"


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else _value(text)


def _value(value: Any) -> str:
    """Return a text, number or empty list, which TOML writes as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
