"""Guard that keeps slow work off the fast path, for callers that must not block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FAST_PATH_ONLY: ContextVar[bool] = ContextVar("fast_path_only", default=False)


class SlowPathRequired(Exception):
    """The fast path needs slow work; run it again outside `fast_path_only`."""


@contextmanager
def fast_path_only() -> Iterator[None]:
    """Forbid slow work within the context: SlowPathRequired is raised instead."""
    token = _FAST_PATH_ONLY.set(True)
    try:
        yield
    finally:
        _FAST_PATH_ONLY.reset(token)


def require_slow_path() -> None:
    """Allow work of milliseconds or more. Raises SlowPathRequired on the fast path."""
    if _FAST_PATH_ONLY.get():
        raise SlowPathRequired
