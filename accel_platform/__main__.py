"""Process entry point of the `accel` command: errors, interrupts and exit codes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from accel_platform.errors import INTERRUPTED, AccelError, InvalidInput, package_missing, storage_unavailable

_COLLECT_AFTER = 100_000
"""New objects after which Python looks for cycles. Its own choice (700 in Python 3.11) takes a quarter of the processor
time of an `accel recommend`, for tables of objects that all stay."""


def main() -> None:
    """Run the command line.

    An expected error is printed as `accel: problem and action` on stderr with exit code 1, or 2 for bad input. An
    interrupt gives its exit code alone.
    """
    interrupted = False
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    # transformers warns of its own defaults, such as SigLIP's token ids that its vocabulary lacks.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    # A command that was started with interrupts ignored (`nohup`, `&` in a script) keeps ignoring them.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from accel_platform.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if expected := _user_error(error):
            from accel_platform.cli.output import print_error

            print_error(expected)
            sys.exit(2 if isinstance(expected, InvalidInput) else 1)
        # A library that is interrupted during its import may raise ImportError instead.
        if interrupted:
            sys.exit(INTERRUPTED)
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _user_error(error: Exception) -> AccelError | None:
    """Return the error for the user that an exception is or stands for; None for a defect of the platform."""
    if isinstance(error, AccelError):
        return error
    return storage_unavailable(error) if isinstance(error, OSError) else package_missing(error)


if __name__ == "__main__":
    main()
