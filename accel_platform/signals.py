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
    # Started by the first spawn otherwise, it would let SIGINT through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
