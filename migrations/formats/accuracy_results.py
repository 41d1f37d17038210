"""Scores of models on tasks, as the LM Evaluation Harness writes them: how often they are right, and no time."""

from __future__ import annotations

from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document

NOT_RESULTS = "a model's scores on tasks, without any time"

_BESIDE = {"versions", "n-shot", "configs", "config", "higher_is_better", "n-samples"}
_SCORES = ("acc", "exact_match", "f1", "bleu", "rouge", "perplexity", "word_perplexity", "mc1", "mc2", "pass@1", "em")


def detect(document: Document) -> float:
    """Return high confidence where each task's scores stand beside versions or numbers of shots."""
    value = object_of(document.value)
    tasks = object_of(value.get("results"))
    if not tasks or len(value.keys() & _BESIDE) < 2:
        return 0.0
    scored = [str(key).partition(",")[0] for entry in tasks.values() for key in object_of(entry)]
    return 0.9 if any(key in _SCORES for key in scored) else 0.0
