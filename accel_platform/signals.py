"""How processes that share our terminal are started so that only we hear Ctrl-C. What they do is not known."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def block_sigint() -> Iterator[None]:
    """Processes that `multiprocessing` spawns within never hear SIGINT, not even while they import: it is for whoever
    started them to end them. Our own SIGINT is not lost but waits until the `with` block is left."""
    # Started by the first spawn otherwise, it would let SIGINT through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
