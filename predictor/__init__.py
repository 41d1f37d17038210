"""Which hardware for this model? Answers from evidence first, from a learned model second, always saying which.

from predictor import predict, recommend

best = recommend("bert-base", batch_size=4, hardware=["cpu", "NVIDIA H100 NVL"]).recommendations[0]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.responses import Answer, PredictAnswer

__all__ = ["predict", "recommend"]

_ADVISORS: dict[str, Advisor] = {}


def recommend(model: str | dict[str, Any], *, home: Path | str | None = None, **question: Any) -> Answer:
    """Where should this model run? `question` holds the other fields of `RecommendQuery`.

    `model` is a name, a transformers config or cost figures; `home` the state directory (default: $ACCEL_HOME or
    ./.accel). Raises InvalidInput, NotFound or WarehouseEmpty, which say what to do.
    """
    from predictor.schemas.requests import RecommendQuery, validate_query

    return _advisor(home).recommend(validate_query(RecommendQuery, {"model": model, **question}))


def predict(
    model: str | dict[str, Any], hardware: str | dict[str, Any], *, home: Path | str | None = None, **question: Any
) -> PredictAnswer:
    """The figures of one model on one piece of hardware; `question` holds the other fields of `PredictQuery`.

    Raises NotFound, with what to measure, where nothing supports any; otherwise as `recommend`.
    """
    from predictor.schemas.requests import PredictQuery, validate_query

    return _advisor(home).predict(validate_query(PredictQuery, {"model": model, "hardware": hardware, **question}))


def _advisor(home: Path | str | None) -> Advisor:
    """One per state directory: it reads evidence and predictor once and follows them."""
    from accel_platform.settings import Settings
    from predictor.advisor.advisor import Advisor

    settings = Settings() if home is None else Settings(home=Path(home))
    return _ADVISORS.setdefault(str(settings.home.resolve()), Advisor(settings))
