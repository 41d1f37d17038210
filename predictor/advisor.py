"""The advisor in service: follows the pointers of warehouse and predictor, and answers. What it answers is not here.

Both are read whole when their pointer moves and shared by all threads until it moves again; a question sees one of each
from beginning to end.
"""

from __future__ import annotations

import threading

from accel_platform.settings import Settings
from accel_platform.warehouse.query import Reader
from predictor import artifact
from predictor.answers import Answer, PredictAnswer, PredictQuery, RecommendQuery
from predictor.artifact import ArtifactRefused
from predictor.evidence import Evidence, load_evidence
from predictor.judge import Predictor
from predictor.recommend import Knowledge, predict, recommend


class Advisor:
    """Answers from the newest published snapshot and predictor; safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self.reader = Reader(settings)
        self._settings = settings
        self._lock = threading.Lock()
        self._evidence: Evidence | None = None
        self._loaded: tuple[str | None, Predictor | None, str] | None = None

    def knowledge(self) -> Knowledge:
        """What is known now. Raises WarehouseEmpty before the first projection.

        A refused predictor is no reason not to answer from measurements: its reason goes into the answers instead.
        """
        snapshot_id = self.reader.snapshot_id
        predictor_id = artifact.current_id(self._settings)
        with self._lock:
            if self._evidence is None or self._evidence.snapshot_id != snapshot_id:
                self._evidence = load_evidence(self.reader)
            if self._loaded is None or self._loaded[0] != predictor_id:
                self._loaded = (predictor_id, *self._load(predictor_id))
            _, predictor, problem = self._loaded
            return Knowledge(self._evidence, predictor, problem)

    def recommend(self, query: RecommendQuery) -> Answer:
        return recommend(self.knowledge(), query)

    def predict(self, query: PredictQuery) -> PredictAnswer:
        return predict(self.knowledge(), query)

    def _load(self, predictor_id: str | None) -> tuple[Predictor | None, str]:
        if predictor_id is None:
            return None, "no predictor was trained yet (`accel train`)"
        try:
            return artifact.load(self._settings, predictor_id), ""
        except ArtifactRefused as error:
            return None, f"the predictor was refused: {error}"
