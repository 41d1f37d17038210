"""Known documents inside an unknown one: results by name, or a list of them under a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from migrations.normalize.records import EmbeddedDocument, Part, child, members_of, refuse, value_at
from migrations.sources.documents import Document

_MAX_DEPTH = 3
_MAX_MEMBERS_TRIED = 64
"""Most members that are looked at; a document with none known among them counts as holding none."""
_MIN_MEMBERS = 2

Known = Callable[[Any], bool]


def contains_documents(document: Document, known: Known) -> bool:
    """Return whether a member, at most three levels down, is a known document."""
    members = islice(_members(document.value), _MAX_MEMBERS_TRIED)
    return any(_is_candidate(value) and known(value) for value in members)


def iter_documents(document: Document, known: Known) -> Iterator[Part]:
    """Yield each known document, and the content beside them that holds none."""
    beside: list[str] = []
    yield from _walk(document.value, "", known, beside, _MAX_DEPTH)
    if beside:
        reason = f"{len(beside)} members beside the documents are of no known shape: {', '.join(beside[:8])}"
        yield refuse("", "beside_documents", reason, {p: value_at(document.value, p) for p in beside})


def _walk(value: Any, pointer: str, known: Known, beside: list[str], depth: int) -> Iterator[Part]:
    for key, member in members_of(value):
        at = child(pointer, key)
        if _is_candidate(member) and known(member):
            yield EmbeddedDocument(at, member)
        elif isinstance(member, dict | list) and member and depth > 1:
            inner: list[str] = []
            found = list(_walk(member, at, known, inner, depth - 1))
            yield from found
            beside += inner if found else [at]
        else:
            beside.append(at)


def _members(value: Any, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """Yield objects and lists inside, breadth first."""
    members = islice(members_of(value), _MAX_MEMBERS_TRIED)
    inside = [member for _, member in members if isinstance(member, dict | list)]
    yield from inside
    for member in inside if depth > 1 else ():
        yield from _members(member, depth - 1)


def _is_candidate(value: Any) -> bool:
    """Return whether the value is an object, or list of objects, large enough to detect a format."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(member, dict) for member in value[:20])
    return isinstance(value, dict) and len(value) >= _MIN_MEMBERS
