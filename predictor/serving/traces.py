"""Traces of requests: when they came, and how many tokens they had in and out."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from accel_platform.errors import InvalidInput
from predictor.schemas.serving import MAX_TRACED


@dataclass(frozen=True)
class _Columns:
    """Columns of one kind of trace."""

    arrival: str
    input_tokens: str
    output_tokens: str
    seconds: Callable[[Any], float]


_KINDS = (
    _Columns("arrival_s", "input_tokens", "output_tokens", float),
    # Azure's public traces of 2023 and 2024.
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", lambda text: datetime.fromisoformat(text).timestamp()),
    # Mooncake's, which NVIDIA's AIPerf and Dynamo read too.
    _Columns("timestamp", "input_length", "output_length", lambda milliseconds: float(milliseconds) / 1e3),
)


def read_trace(path: Path) -> list[dict[str, float]]:
    """Return the first MAX_TRACED requests of a CSV or JSON Lines file as `arrival_s`, `input_tokens`,
    `output_tokens`; `arrival_s` counts from the first one, and is absent where the file has no times.

    Raises InvalidInput that names the line.
    """
    rows = _rows(path)
    if not rows:
        raise InvalidInput(f"{path} holds no request.")
    columns = next((kind for kind in _KINDS if {kind.input_tokens, kind.output_tokens} <= rows[0].keys()), None)
    if columns is None:
        known = "; ".join(", ".join((kind.arrival, kind.input_tokens, kind.output_tokens)) for kind in _KINDS)
        raise InvalidInput(f"{path} has the columns {', '.join(rows[0])}. A trace has one of: {known}.")
    timed = columns.arrival in rows[0]
    found = []
    for line, row in enumerate(rows, start=1):
        try:
            request = {
                "input_tokens": int(row[columns.input_tokens]),
                "output_tokens": int(row[columns.output_tokens]),
            }
            arrival = {"arrival_s": columns.seconds(row[columns.arrival])} if timed else {}
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{path}: request {line} cannot be read: {error}.") from error
        found.append({**arrival, **request})
    if timed:
        begin = min(request["arrival_s"] for request in found)
        found = [{**request, "arrival_s": request["arrival_s"] - begin} for request in found]
    return found


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    lines = text.splitlines()
    if not lines or not lines[0].lstrip().startswith("{"):
        return list(csv.DictReader(lines[: MAX_TRACED + 1]))
    try:
        rows = [json.loads(line) for line in lines[:MAX_TRACED] if line.strip()]
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON Lines: {error}.") from error
    if not all(isinstance(row, dict) for row in rows):
        raise InvalidInput(f"{path}: each line must be a JSON object.")
    return rows
