"""Caches of answers: results of single candidates, and whole answers as JSON.

Another objective, limit or choice of hardware changes only the ranking, so results of single candidates are reused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from predictor.data.evidence import Target
from predictor.schemas.responses import Excluded, Figures

MAX_RESULTS = 20_000
"""A few KiB each."""


@dataclass(frozen=True)
class CandidateResult:
    """Figures of one candidate, or the reason for none; neither where its device has no name to report it under."""

    figures: Figures | None = None
    excluded: Excluded | None = None
    cautions: tuple[str, ...] = ()

    @cached_property
    def json(self) -> str:
        """JSON of the figures or of the exclusion, cached because answers of other rankings repeat it."""
        reported = self.figures or self.excluded
        assert reported is not None, "nothing of it is reported"
        return reported.model_dump_json()


class AnswerCache:
    """Results by query and target, emptied when there are more than MAX_RESULTS; safe to share between threads."""

    def __init__(self) -> None:
        self._results: dict[Hashable, dict[Target, CandidateResult]] = {}
        self._size = 0

    def get(self, query: Hashable) -> dict[Target, CandidateResult]:
        """Return the cached result of each target; the caller must not change the dictionary."""
        return self._results.get(query, {})

    def put(self, query: Hashable, results: dict[Target, CandidateResult]) -> None:
        if self._size > MAX_RESULTS:
            self._results, self._size = {}, 0
        cached = self._results.get(query, {})
        self._results[query] = {**cached, **results}
        self._size += len(results.keys() - cached.keys())


class LRUByteCache:
    """Least-recently-used cache of bytes, limited by total size; safe to share between threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            content = self._entries.get(key)
            if content is not None:
                self._entries.move_to_end(key)
            return content

    def put(self, key: str, content: bytes) -> None:
        """Store the content as the newest entry, and evict the oldest ones beyond the limit."""
        with self._lock:
            self._bytes += len(content) + len(key) - self._size_of(key)
            self._entries[key] = content
            self._entries.move_to_end(key)
            while self._bytes > self._max_bytes:
                oldest = next(iter(self._entries))
                self._bytes -= self._size_of(oldest)
                del self._entries[oldest]

    def _size_of(self, key: str) -> int:
        return len(key) + len(self._entries[key]) if key in self._entries else 0
