"""Loops of equal passes, such as the steps of a denoiser: a trace runs one pass and counts it for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PASSES: ContextVar[int | None] = ContextVar("passes", default=None)
"""Number of times that what runs now counts in a trace; None where nothing is traced."""


def repeat(times: int) -> Iterator[int]:
    """Yield the number of each pass from 0; in a trace the first alone, which counts `times` times."""
    outside = _PASSES.get()
    if outside is None:
        yield from range(times)
        return
    _PASSES.set(outside * times)
    yield 0
    _PASSES.set(outside)


def passes() -> int:
    """Return how often an operator counts that runs now."""
    return _PASSES.get() or 1


@contextmanager
def one_pass_each() -> Iterator[None]:
    """Let every loop of `repeat` run its first pass alone, as a trace needs it."""
    token = _PASSES.set(1)
    try:
        yield
    finally:
        _PASSES.reset(token)
