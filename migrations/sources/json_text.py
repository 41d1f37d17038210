"""JSON as tools really write it: lines, several documents in a row, other programs' lines between, a key given twice.

Nothing is thrown away: text that is no JSON comes back as notes beside the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CONTAINER = re.compile(r"[{\[]")
_BLANK_IN_LINE = re.compile(r"[^\S\n]*")
_LIST_OF_OBJECTS = re.compile(r"\[\s*\{")
_BLANK = re.compile(r"\s*")
_LOG_MARK = re.compile(r"\s*\[[^][{}\"\n]*\][ \t]*[^][{}\s,]")
"""`[INFO] text`, `[Step 1/11] text`: a line of a log and no list."""
_PREFIX = 200
"""Most stray characters before a document that are skipped."""


class JsonNotFound(ValueError):
    """The text holds no JSON document. `broken` where it begins like one."""

    def __init__(self, problem: str, *, broken: bool) -> None:
        super().__init__(problem)
        self.broken = broken


@dataclass(frozen=True)
class Note:
    """Something a document holds beside its value, kept as evidence."""

    rule: str
    reason: str
    content: str


@dataclass(frozen=True)
class JsonValues:
    """The JSON of a text: the one value, or the objects of several documents in their order."""

    value: Any
    several: bool = False
    notes: tuple[Note, ...] = ()


def find_json(text: str) -> JsonValues:
    """Find all JSON in a text, tolerating NaN and Infinity. Raises NoJson.

    Of a repeated key the last value counts and all are noted; lists among several documents are joined. Truncated
    objects are never read in part, but whole members of a truncated list are.
    """
    reader = _Reader()
    try:
        return JsonValues(_storable(reader.whole(text), text), notes=reader.duplicates())
    except RecursionError:
        raise JsonNotFound("JSON nested too deeply to parse", broken=True) from None
    except ValueError as error:
        problem = f"invalid JSON: {error}"
    reader.scan(text)
    if not reader.values:
        reader.behind_stray_characters(text)
    if not reader.values:
        raise JsonNotFound(problem, broken=text.lstrip()[:1] in ("{", "[") and _LOG_MARK.match(text) is None)
    notes = (*reader.duplicates(), *reader.other_lines())
    if len(reader.values) == 1:
        return JsonValues(_storable(reader.values[0], text), notes=notes)
    joined = [member for value in reader.values for member in (value if isinstance(value, list) else [value])]
    return JsonValues(_storable(joined, text), several=True, notes=notes)


@dataclass
class _Reader:
    """One pass over one text. `others` are the lines that are no JSON, with their numbers."""

    values: list[Any] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    _twice: list[dict[str, list[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Not a method of this reader: the two would hold each other, and all that was read, beyond its use.
        self._decoder = json.JSONDecoder(object_pairs_hook=_object_hook(self._twice))

    def whole(self, text: str) -> Any:
        """Return the value of the whole text; of JSON that a script encoded twice, the inner one. Raises ValueError."""
        value = self._decoder.decode(text)
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            with suppress(ValueError):  # a text that only begins like JSON
                return self._decoder.decode(value)
        return value

    def scan(self, text: str) -> None:
        """Collect the objects, and lists of objects, that begin a line; everything else as other lines."""
        self._twice.clear()
        position, end = 0, len(text)
        while (position := self._skip(text, position)) < end:
            after = self._document(text, position) or self._first_member(text, position)
            if after is not None:
                position = after
                continue
            line_end = text.find("\n", position)
            line = text[position : line_end if line_end >= 0 else end].strip()
            if line.startswith("{") and not line.rstrip(",").endswith("}"):
                # An object broken off, over several lines perhaps: what follows may be parts of it.
                self.others.append(text[position:].rstrip())
                return
            self.others.append(line)
            position = line_end + 1 if line_end >= 0 else end

    def behind_stray_characters(self, text: str) -> None:
        """Read one document behind stray characters on its own line, up to the end of the text."""
        start = _CONTAINER.search(text[:_PREFIX])
        after = self._document(text, start.start()) if start is not None and start.start() > 0 else None
        if start is None or after is None:
            return
        if text[after:].strip():
            self.values.clear()
        else:
            self.others = [text[: start.start()].strip()]

    def duplicates(self) -> tuple[Note, ...]:
        return tuple(
            Note("duplicate_key", "a key given twice in one object: the last value counts", _dump(pairs))
            for pairs in self._twice
        )

    def other_lines(self) -> tuple[Note, ...]:
        return (other_lines("\n".join(self.others)),) if self.others else ()

    def _document(self, text: str, position: int) -> int | None:
        """Take the document that begins here; where it ends, None if there is none."""
        if text[position] not in "{[":
            return None
        known = len(self._twice)
        try:
            value, after = self._decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            value, after = None, position
        blank = _BLANK_IN_LINE.match(text, after)
        follows = text[blank.end() : blank.end() + 1] if blank else ""
        objects = isinstance(value, dict) or (
            isinstance(value, list) and value and all(isinstance(member, dict) for member in value)
        )
        if objects and follows in ("", "\n", "{", "[", ",", "]"):
            self.values.append(value)
            return after
        del self._twice[known:]
        return None

    def _first_member(self, text: str, position: int) -> int | None:
        """Take the first object of a list that breaks off before its end; None if there is none."""
        inside = _LIST_OF_OBJECTS.match(text, position)
        return self._document(text, inside.end() - 1) if inside else None

    @staticmethod
    def _skip(text: str, position: int) -> int:
        """Return the position past blanks, commas and the bracket between members of a truncated list."""
        blank = _BLANK.match(text, position)
        position = blank.end() if blank else position
        while position < len(text) and text[position] in ",]":
            blank = _BLANK.match(text, position + 1)
            position = blank.end() if blank else position + 1
        return position


def _object_hook(given_twice: list[dict[str, list[Any]]]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return a function that makes an object of its pairs, and adds the keys given twice to a list."""

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = [key for key in found if keys.count(key) > 1]
            given_twice.append({key: [value for name, value in pairs if name == key] for key in twice})
        return found

    return make


def other_lines(text: str) -> Note:
    """Return lines that are no JSON as a note."""
    lines = text.strip("\n").count("\n") + 1
    return Note("other_lines", f"{lines} {'line that is' if lines == 1 else 'lines that are'} no JSON", text)


def _dump(value: Any) -> str:
    return json.dumps(_without_surrogates(value), ensure_ascii=False)


def _storable(value: Any, text: str) -> Any:
    """Return the value with lone surrogates, which UTF-8 cannot hold, written as escapes."""
    return _without_surrogates(value) if _SURROGATE.search(text) else value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_without_surrogates(member) for member in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(member) for key, member in value.items()}
    return value
