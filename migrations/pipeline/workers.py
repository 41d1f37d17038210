"""Parallel reading of files by worker processes. Steps come back file by file, in the order of the files.

A worker that dies costs the file it was reading, which is quarantined with the reason; another takes its place. Where
none can start, the import ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import cast

from accel_platform.errors import AccelError
from accel_platform.signals import block_sigint
from migrations.pipeline.document_reader import DocumentBuilder, quarantine
from migrations.pipeline.ledger import key_of
from migrations.pipeline.unpack import DocumentEnd, DocumentRows, DocumentStart, Step, closing_steps, iter_steps
from migrations.sources.documents import Content, Origin, load

MAX_ROWS_AHEAD = 200_000
"""Rows buffered for later files; their workers wait beyond that."""
_ROWS_PER_MESSAGE = 2_000
_FIRST_NUMBER_AFTER_CRASH = 1 << 35

_Message = list[Step] | None
"""Steps of a file; None at its end."""


class Workers:
    """Processes reading the files of one import. Leaving the context ends them."""

    def __init__(self, files: Sequence[Path], known: frozenset[str], jobs: int) -> None:
        self._files = files
        self._known = known
        self._context = multiprocessing.get_context("spawn")
        self._next = 0
        self._found: dict[int, deque[Step | None]] = {}
        self._open: dict[int, list[Origin]] = {}
        self._ahead = 0
        self._ready: set[Connection] = set()
        self._whole: set[int] = set()
        self._workers: dict[Connection, tuple[multiprocessing.process.BaseProcess, int | None]] = {}
        for _ in range(min(jobs, len(files))):
            self._start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe, (process, _) in self._workers.items():
            pipe.close()
            process.terminate()
        for process, _ in self._workers.values():
            process.join()

    def steps(self, number: int) -> Iterator[Step]:
        """Yield the steps of one file; files must be requested in their order."""
        found = self._found[number] = self._found.pop(number, deque())
        self._ahead -= sum(map(_size, found))
        while True:
            while not found:
                self._receive(number)
            step = found.popleft()
            if step is None:
                del self._found[number], self._open[number]
                return
            yield step

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_run_worker, args=(theirs, self._known), daemon=True)
        with block_sigint():  # the parent receives the signal and ends the workers
            process.start()
        theirs.close()
        self._workers[ours] = (process, None)
        self._assign(ours)

    def _assign(self, pipe: Connection) -> None:
        """Give a worker the next file; None where there is no other."""
        process, _ = self._workers[pipe]
        number = self._next if self._next < len(self._files) else None
        self._workers[pipe] = (process, number)
        if number is not None:
            self._next += 1
            self._found.setdefault(number, deque())
            self._open[number] = []
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # it has died, which reading from it will tell
                pipe.send(self._files[number])

    def _receive(self, now: int) -> None:
        """Take the messages that the workers have sent, those of the file that is reported next first."""
        busy = {pipe: number for pipe, (_, number) in self._workers.items() if number is not None}
        polled = [pipe for pipe, number in busy.items() if number == now or self._ahead < MAX_ROWS_AHEAD]
        for ready in wait(polled):
            pipe = cast("Connection", ready)
            try:
                message: _Message = pipe.recv()
            except (EOFError, ConnectionResetError):
                self._replace_dead(pipe, busy[pipe], now)
                continue
            self._ready.add(pipe)
            self._buffer(busy[pipe], message, now)
            if message is None:
                self._assign(pipe)

    def _buffer(self, number: int, message: _Message, now: int) -> None:
        for step in message or ():
            if isinstance(step, DocumentStart):
                self._open[number].append(step.origin)
            elif isinstance(step, DocumentEnd):
                self._open[number].pop()
                if not self._open[number]:
                    self._whole.add(number)
        self._found[number].extend(message if message is not None else [None])
        if number != now:
            self._ahead += sum(map(_size, message or ()))

    def _replace_dead(self, pipe: Connection, number: int, now: int) -> None:
        """Close the documents that a dead worker left open, and start another worker."""
        process, _ = self._workers.pop(pipe)
        pipe.close()
        process.join()
        code = process.exitcode or 0
        if pipe not in self._ready:
            raise AccelError(f"The processes that read cannot start (exit code {code}): import with one job.")
        if number not in self._whole:
            self._buffer(number, self._closing_steps_of(number, code), now)
        self._buffer(number, None, now)
        self._start()

    def _closing_steps_of(self, number: int, code: int) -> list[Step]:
        """Return the steps that close the open documents of a file, or the file if none had started."""
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        reason = f"the process that read it ended {cause}: it may need more memory than there is"
        content = load(self._files[number])
        steps: list[Step] = []
        if not self._open[number]:
            steps.append(DocumentStart(content.origin))
            opened = [content.origin]
        else:
            opened = list(self._open[number])
        for origin in reversed(opened):
            whole = content if origin == content.origin else Content(origin.source_path, origin.sha256, b"")
            # Events that it sent before stay, under lower numbers.
            builder = DocumentBuilder(origin, numbered=_FIRST_NUMBER_AFTER_CRASH)
            steps += closing_steps(quarantine(whole, "process_died", reason, builder))
        return steps


def _run_worker(pipe: Connection, known: frozenset[str]) -> None:
    """Receive paths and send steps until the parent is gone."""
    is_known: Callable[[Origin], bool] = lambda origin: key_of(origin) in known  # noqa: E731
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send([])  # from here on it is the file's fault
        while True:
            steps: list[Step] = []
            size = 0
            for step in iter_steps(load(pipe.recv()), is_known):
                steps.append(step)
                size += 1 + _size(step)
                if size >= _ROWS_PER_MESSAGE:
                    pipe.send(steps)
                    steps, size = [], 0
            pipe.send(steps)
            pipe.send(None)


def _size(step: Step | None) -> int:
    return len(step.rows) if isinstance(step, DocumentRows) else 0
