"""SIGINT handling for child processes that share the terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def block_sigint() -> Iterator[None]:
    """Block SIGINT in processes that `multiprocessing` spawns within the block, even during their imports.

    The caller has to end them. Its own SIGINT is delayed until the block is left.
    """
    # Start the tracker first, because the first spawn would start it and unblock SIGINT.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
