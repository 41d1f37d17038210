"""The advisor in service: follows the pointers of warehouse and predictor, and answers. What it answers is not here.

Knowledge is read whole when a pointer has moved, beside what is in service, and takes its place in one assignment; a
question sees one snapshot and one predictor from beginning to end. Answers are kept with the knowledge they came from.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from accel_platform.errors import AccelError, WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor.model_estimates import warm_up
from predictor.advisor.recommend import predict, predict_many, recommend
from predictor.advisor.serving_state import ServingState
from predictor.calibration.predictor import Predictor
from predictor.data.evidence import load_evidence
from predictor.data.fast_path import SlowPathRequired, fast_path_only
from predictor.schemas.requests import BatchQuery, PredictQuery, RecommendQuery
from predictor.schemas.responses import Answer, BatchAnswer, PredictAnswer
from predictor.training import artifact
from predictor.training.artifact import ArtifactRejected

LOOK_EVERY_S = 0.2
"""How long a pointer may have moved before a following advisor notices."""
_REST = 4
"""Times as long as reading took nothing is read again."""
KEPT_BYTES = 64 << 20
_log = logging.getLogger("accel.advisor")


class Advisor:
    """Answers from the newest published snapshot and predictor; safe to share between threads.

    `swapped` is called whenever something new came into service.
    """

    def __init__(self, settings: Settings, swapped: Callable[[], None] | None = None) -> None:
        self.reader = Reader(settings)
        self._settings = settings
        self._loading = threading.Lock()
        self._serving: _Serving | None = None
        self._swapped = swapped or (lambda: None)
        self._followed = False

    def knowledge(self) -> ServingState:
        """What is known now, read first where a pointer has moved; but while something follows, what is in service:
        then nobody waits for the next. Raises WarehouseEmpty before the first projection.

        A refused predictor is no reason not to answer from measurements: its reason goes into the answers instead.
        """
        serving = self._serving if self._followed else None
        return (serving or self._newest()).knowledge

    def recommend(self, query: RecommendQuery) -> Answer:
        return recommend(self.knowledge(), query)

    def predict(self, query: PredictQuery) -> PredictAnswer:
        return predict(self.knowledge(), query)

    def predict_many(self, query: BatchQuery) -> BatchAnswer:
        return predict_many(self.knowledge(), query.queries)

    def kept(self, query: RecommendQuery) -> bytes | None:
        """The JSON of the answer, if this was asked before of what is in service; never waits for anything."""
        return None if self._serving is None else self._serving.answers.get(_key(query))

    def answer(self, query: RecommendQuery) -> bytes:
        """The JSON of `recommend(query)` from what is in service, which only `follow` and `knowledge` renew."""
        serving = self._serving or self._newest()
        content = recommend(serving.knowledge, query).model_dump_json().encode()
        serving.answers.keep(_key(query), content)
        return content

    def answer_at_once(self, query: RecommendQuery) -> bytes | None:
        """The same, unless it takes more than a moment: None then, and where nothing was read yet."""
        if self._serving is None:
            return None
        try:
            with fast_path_only():
                return self.answer(query)
        except SlowPathRequired:
            return None

    def make_ready(self) -> None:
        """Put what is published into service, with all that its first questions would wait for. Raises as `knowledge`
        does."""
        self._newest(ready=True)

    def follow(self, stop: threading.Event) -> None:
        """Put what is published into service until `stop` is set. Where it cannot be read, what is there stays.

        Reading takes from those who ask: where something new comes all the time, it is read a fifth of the time.
        """
        problem, pause_s, self._followed = "", LOOK_EVERY_S, True
        while not stop.wait(pause_s):
            began = time.monotonic()
            try:
                self.make_ready()
                problem = ""
            except WarehouseEmpty:
                continue  # nothing was there to stay, and every question says so
            except Exception as error:  # noqa: BLE001  # whatever it is, what serves goes on serving and following
                if str(error) != problem:
                    problem = str(error)
                    _log.error("still answering from the snapshot before: %s", problem, exc_info=_bug(error))
            pause_s = max(LOOK_EVERY_S, _REST * (time.monotonic() - began))
        self._followed = False

    def _newest(self, *, ready: bool = False) -> _Serving:
        """With `ready`, it comes into service with all that its first questions would wait for."""
        with self._loading:
            snapshot_id = self.reader.snapshot_id
            predictor_id = artifact.current_id(self._settings)
            serving = self._serving
            same_evidence = serving is not None and serving.knowledge.evidence.snapshot_id == snapshot_id
            same_predictor = serving is not None and serving.predictor_id == predictor_id
            if serving is not None and same_evidence and same_predictor:
                if ready:
                    serving.make_ready()
                return serving
            evidence = serving.knowledge.evidence if serving and same_evidence else load_evidence(self.reader)
            if serving and same_predictor:
                predictor, problem = serving.knowledge.predictor, serving.knowledge.no_predictor
            else:
                predictor, problem = self._load(predictor_id)
            found = _Serving(ServingState(evidence, predictor, problem), predictor_id)
            if ready:
                found.make_ready()
            self._serving = found
            self._swapped()
            return found

    def _load(self, predictor_id: str | None) -> tuple[Predictor | None, str]:
        if predictor_id is None:
            return None, "no predictor was trained yet (`accel train`)"
        try:
            return artifact.load(self._settings, predictor_id), ""
        except ArtifactRejected as error:
            return None, f"the predictor was refused: {error}"


def _bug(error: Exception) -> Exception | None:
    """Of an error that nobody foresaw the log needs all."""
    return None if isinstance(error, AccelError) else error


class _Serving:
    """Knowledge in service, and what was answered from it."""

    def __init__(self, knowledge: ServingState, predictor_id: str | None) -> None:
        self.knowledge = knowledge
        self.predictor_id = predictor_id
        """What the pointer named, also where it was refused."""
        self.answers = LRUByteCache(KEPT_BYTES)
        self._ready = False

    def make_ready(self) -> None:
        if not self._ready:
            warm_up(self.knowledge)
            self._ready = True


class LRUByteCache:
    """The answers used last, up to so many bytes; safe to share between threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            found = self._answers.get(key)
            if found is not None:
                self._answers.move_to_end(key)
            return found

    def keep(self, key: str, content: bytes) -> None:
        """Keep it as the newest; the oldest go where it gets too much."""
        with self._lock:
            self._bytes += len(content) + len(key) - self._size(key)
            self._answers[key] = content
            self._answers.move_to_end(key)
            while self._bytes > self._most:
                oldest = next(iter(self._answers))
                self._bytes -= self._size(oldest)
                del self._answers[oldest]

    def _size(self, key: str) -> int:
        return len(key) + len(self._answers[key]) if key in self._answers else 0


def _key(query: RecommendQuery) -> str:
    """Equal for queries that ask the same: every field in its order, defaults filled in."""
    return query.model_dump_json()
