"""Work that has no place between two requests: it asks before it begins, and may be begun again where there is time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FAST_PATH_ONLY: ContextVar[bool] = ContextVar("hurried", default=False)


class SlowPathRequired(Exception):
    """What was asked needs more than a moment, and nobody said that there is more."""


@contextmanager
def fast_path_only() -> Iterator[None]:
    """Within, nothing is begun that takes long: TakesLong is raised instead."""
    token = _FAST_PATH_ONLY.set(True)
    try:
        yield
    finally:
        _FAST_PATH_ONLY.reset(token)


def require_slow_path() -> None:
    """Say so before work of milliseconds or more that is not needed for every answer. Raises TakesLong in a hurry."""
    if _FAST_PATH_ONLY.get():
        raise SlowPathRequired
