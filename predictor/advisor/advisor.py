"""The advisor in service: it follows new snapshots and predictors, and answers queries as JSON.

A new state is loaded whole beside the one in service, and replaces it in one assignment. So every query sees one
snapshot and one predictor from beginning to end. Answers are cached with the state they came from.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from accel_platform.errors import AccelError, WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor.answer_cache import LRUByteCache
from predictor.advisor.model_estimates import warm_up
from predictor.advisor.queries import predict, predict_many, recommend, recommend_json
from predictor.advisor.serving.ranking import recommend_serving
from predictor.advisor.serving_state import ServingState
from predictor.calibration.predictor import Predictor
from predictor.data.evidence import load_evidence
from predictor.data.fast_path import SlowPathRequired, fast_path_only
from predictor.schemas.requests import BatchQuery, PredictQuery, RecommendQuery
from predictor.schemas.responses import Answer, BatchAnswer, PredictAnswer
from predictor.schemas.serving import ServingAnswer, ServingQuery
from predictor.serving.disaggregated import shipped_model
from predictor.serving.measured_loads import MeasuredLoad, measured_loads_in
from predictor.serving.predictor import shipped_predictor
from predictor.training import artifact, sharing
from predictor.training.artifact import ArtifactRejected

POLL_INTERVAL_S = 0.2
"""Pause between two looks at the pointers."""
PROMOTIONS_INTERVAL_S = 60.0
"""Pause between two looks at the promotions of other machines."""
_PAUSE_FACTOR = 4
"""Wait 4 times the last load time before reloading, because loading slows the answers down."""
CACHE_BYTES = 64 << 20
_log = logging.getLogger("accel.advisor")


class Advisor:
    """Answers from the newest published snapshot and predictor; safe to share between threads.

    `swapped` is called whenever a new state comes into service.
    """

    def __init__(self, settings: Settings, swapped: Callable[[], None] | None = None) -> None:
        self.reader = Reader(settings)
        self._settings = settings
        self._loading = threading.Lock()
        self._serving: _Serving | None = None
        self._loading_loads = threading.Lock()
        self._loads: tuple[str, list[MeasuredLoad]] | None = None
        self._swapped = swapped or (lambda: None)
        self._following = False

    def state(self) -> ServingState:
        """Return the newest state, loaded first where a pointer has moved; while `follow` runs, the one in service.

        A rejected predictor is no error: answers come from measurements, and contain the reason. Raises WarehouseEmpty
        before the first snapshot is published.
        """
        serving = self._serving if self._following else None
        return (serving or self._load_newest()).state

    def recommend(self, query: RecommendQuery) -> Answer:
        return recommend(self.state(), query)

    def predict(self, query: PredictQuery) -> PredictAnswer:
        return predict(self.state(), query)

    def predict_many(self, query: BatchQuery) -> BatchAnswer:
        return predict_many(self.state(), query.queries)

    def recommend_serving(self, query: ServingQuery) -> ServingAnswer:
        """Rank deployments for a load; without tables, from what comes with the package alone."""
        with self._loading_loads:  # because the first queries would each load the same for seconds
            shipped_predictor()
            shipped_model()
            try:
                snapshot_id, measured = self._measured_loads()
            except WarehouseEmpty:
                snapshot_id, measured = None, []
        return recommend_serving(query, measured, snapshot_id)

    def _measured_loads(self) -> tuple[str | None, list[MeasuredLoad]]:
        """Return the newest snapshot's id and loads, without the rest of the evidence, which takes three times as
        long. Raises WarehouseEmpty before the first snapshot is published."""
        if self._loads is None or self._loads[0] != self.reader.snapshot_id:
            reader = self.reader.pinned()
            self._loads = reader.snapshot_id, measured_loads_in(reader)
        return self._loads

    def answer(self, query: RecommendQuery) -> bytes:
        """Return the JSON of `recommend(query)` from the state in service; only `follow` and `state` renew that."""
        serving = self._serving or self._load_newest()
        key = query.model_dump_json()  # equal for equal queries: every field in its order, with its default
        content = serving.answers.get(key)
        if content is None:
            content = recommend_json(serving.state, query)
            serving.answers.put(key, content)
        return content

    def try_answer(self, query: RecommendQuery) -> bytes | None:
        """Return the answer where it needs no slow path; None where it does, and before the first load."""
        if self._serving is None:
            return None
        try:
            with fast_path_only():
                return self.answer(query)
        except SlowPathRequired:
            return None

    def warm_up(self) -> None:
        """Put the newest state into service, with all that its first queries would wait for. Raises as `state` does.

        The first state answers meanwhile, because nothing else would.
        """
        self._load_newest(warm=self._serving is not None).warm_up()

    def follow(self, stop: threading.Event) -> None:
        """Put new states into service until `stop` is set; where one cannot be loaded, the present one stays."""
        problem, pause_s, self._following = "", POLL_INTERVAL_S, True
        followed_s = -math.inf
        while not stop.wait(pause_s):
            if time.monotonic() - followed_s > PROMOTIONS_INTERVAL_S:
                followed_s = time.monotonic()
                self.follow_promotions()
            began = time.monotonic()
            try:
                self.warm_up()
                problem = ""
            except WarehouseEmpty:
                continue  # because there is no state to keep, and every query gets this error
            except Exception as error:  # noqa: BLE001  # because the present state goes on serving whatever the error
                if str(error) != problem:
                    problem = str(error)
                    # The log gets the traceback of an unforeseen error only.
                    traceback = None if isinstance(error, AccelError) else error
                    _log.error("still answering from the snapshot before: %s", problem, exc_info=traceback)
            pause_s = max(POLL_INTERVAL_S, _PAUSE_FACTOR * (time.monotonic() - began))
        self._following = False

    def _load_newest(self, *, warm: bool = False) -> _Serving:
        """Load the newest state unless it is in service already; `warm` warms it up first."""
        with self._loading:
            snapshot_id = self.reader.snapshot_id
            serving = self._serving
            same_evidence = serving is not None and serving.state.evidence.snapshot_id == snapshot_id
            predictor_id = artifact.current_id(self._settings)
            if predictor_id is None and not self._following:
                self.follow_promotions()
                predictor_id = artifact.current_id(self._settings)
            same_predictor = serving is not None and serving.predictor_id == predictor_id
            if serving is not None and same_evidence and same_predictor:
                return serving
            evidence = serving.state.evidence if serving and same_evidence else load_evidence(self.reader)
            if serving and same_predictor:
                predictor, problem = serving.state.predictor, serving.state.no_predictor
            else:
                predictor, problem = self._load_predictor(predictor_id)
            loaded = _Serving(ServingState(evidence, predictor, problem), predictor_id)
            if warm:
                loaded.warm_up()
            self._serving = loaded
            self._swapped()
            return loaded

    def follow_promotions(self) -> None:
        """Put into service what another machine of a shared log promoted; if it cannot serve, the present one stays."""
        try:
            if adopted := sharing.follow_promotions(self._settings):
                _log.info("%s serves: another machine promoted it", adopted)
        except (AccelError, OSError) as error:
            _log.warning("the predictor that other machines use does not serve here: %s", error)

    def _load_predictor(self, predictor_id: str | None) -> tuple[Predictor | None, str]:
        if predictor_id is None:
            return None, "no predictor was trained yet (`accel train`)"
        try:
            return artifact.load(self._settings, predictor_id), ""
        except ArtifactRejected as error:
            return None, f"the predictor was refused: {error}"


class _Serving:
    """The state in service, and the answers from it."""

    def __init__(self, state: ServingState, predictor_id: str | None) -> None:
        self.state = state
        self.predictor_id = predictor_id
        """Id that the pointer named, even if that predictor was rejected."""
        self.answers = LRUByteCache(CACHE_BYTES)
        self._warming = threading.Lock()
        self._warm = False

    def warm_up(self) -> None:
        with self._warming:
            if not self._warm:
                warm_up(self.state)
                self._warm = True
