"""Child process that takes one JSON job and answers with JSON lines: its parent's and its own side.

The parent sleeps in `poll` until a message comes, because a busy wait would take a core from the measurement. A child
dies with its parent, and a killed child takes its own processes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NoReturn, Self

Message = dict[str, Any]
_TAIL_BYTES = 4000


class ChildTimeout(Exception):
    """No message came within the time allowed."""


class ChildCrashed(Exception):
    """The child ended without finishing its job; the text says how, with its last output."""


class Child:
    """One running `python -m <module>`, in a process group of its own; leaving the `with` block kills it."""

    def __init__(self, module: str, job: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            # -P, because a `random.py` in the user's folder would be imported in place of Python's.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        # A child that died before it read its job breaks the pipe; `messages` reports how it died.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(job).encode() + b"\n")
            self._stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """Yield the child's messages until it ends.

        Raises ChildTimeout if `timeout_s` pass without a message, ChildCrashed if it ends with an error.
        """
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN | select.POLLHUP)
        pending = b""
        while True:
            if not poller.poll(timeout_s * 1000):
                raise ChildTimeout(f"no answer within {timeout_s:g} s")
            data = os.read(self._stdout.fileno(), 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield json.loads(line)
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ChildTimeout(f"it did not end within {timeout_s:g} s") from error
        if code != 0:
            raise ChildCrashed(self._epitaph(code))

    def kill(self) -> None:
        """Kill the child and its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left and release everything; safe to call again."""
        self.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()
        self._log.close()

    def _epitaph(self, code: int) -> str:
        how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with {how}" + (f": {lines[-1]}" if lines else "")


def serve(handle: Callable[[Message, Callable[[Message], None]], None]) -> NoReturn:
    """Run the child's main: read the job, call `handle` with it and a function that sends messages, and exit."""
    # Reserve the pipe for messages and send stdout to the log, because libraries print to stdout.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def send(message: Message) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    handle(job, send)
    channel.close()
    # Exit without cleanup, because runtimes with threads of their own may hang or crash in it.
    os._exit(0)


def _die_with_parent() -> None:
    """Exit at the end of stdin: the parent holds its other end and never writes again, so it ends with the parent."""
    while os.read(0, 1):
        continue
    os._exit(1)


def child_environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a child: its threads, and neither network nor progress bars."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
    }
