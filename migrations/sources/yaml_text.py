"""YAML of reports: plain values only, so that no short text unfolds to an endless one."""

from __future__ import annotations

from typing import Any

import yaml

from accel_platform.errors import one_line

_DEEP = 200
"""Levels of nesting; real reports have ten."""


def plain_yaml(text: str) -> Any:
    """Return the document. Raises ValueError for other text, for aliases, and for nesting that no report has."""
    try:
        if problem := _not_plain(text):
            raise ValueError(problem)
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(one_line(error)) from error


def _not_plain(text: str) -> str | None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            return "it has aliases, which no report has"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEP:
            return f"it is more than {_DEEP} levels deep"
    return None
