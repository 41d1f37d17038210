"""Recommendation of hardware for a model, and prediction of its latency, from measurements or a trained model.

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


def recommend(model: str | dict[str, Any], *, home: Path | str | None = None, **query: Any) -> Answer:
    """Rank the hardware for a model.

    Parameters
    ----------
    model
        A name, a transformers config or cost figures.
    home
        State directory; default $ACCEL_HOME or ./.accel.
    **query
        Other fields of `RecommendQuery`.

    Raises
    ------
    InvalidInput, NotFound, WarehouseEmpty
        Their messages say what to do.
    """
    from predictor.schemas.requests import RecommendQuery, validate_query

    return _advisor(home).recommend(validate_query(RecommendQuery, {"model": model, **query}))


def predict(
    model: str | dict[str, Any], hardware: str | dict[str, Any], *, home: Path | str | None = None, **query: Any
) -> PredictAnswer:
    """Return the figures of one model on one piece of hardware.

    `query` holds the other fields of `PredictQuery`. Raises NotFound, with what to measure, where no evidence supports
    a figure; otherwise the same as `recommend`.
    """
    from predictor.schemas.requests import PredictQuery, validate_query

    return _advisor(home).predict(validate_query(PredictQuery, {"model": model, "hardware": hardware, **query}))


def _advisor(home: Path | str | None) -> Advisor:
    """Return the advisor of a state directory; it is kept, and follows changes of evidence and predictor."""
    from accel_platform.settings import Settings
    from predictor.advisor.advisor import Advisor

    settings = Settings() if home is None else Settings(home=Path(home))
    return _ADVISORS.setdefault(str(settings.home.resolve()), Advisor(settings))
