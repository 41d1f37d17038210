"""Predictor of latencies on processors of the spec sheet: an additive roofline for each runtime, with its limits.

It ships fitted (`fitted.json`); `fit` makes that file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.data.roofline import has_known_rates
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline, roofline_terms_ms
from predictor.schemas.responses import Interval

SHIPPED = Path(__file__).with_name("fitted.json")
TERMS = ("products", "moving numbers between operators", "reading weights", "starting operators")
"""Words for the terms of the roofline."""


class ProcessorPrediction(NamedTuple):
    """Latency of a batch on a processor, and where the time goes."""

    latency_ms: Interval
    """Interval of level None where no processor of the vendor was fitted to, because its errors there are unknown."""
    shares: tuple[float, ...]
    """Share of each of `TERMS`."""
    processors: int
    """Number of processors that the runtime's factors were fitted to."""
    vendor_measured: bool
    """True if one of these processors is of the same vendor."""
    batch_measured: bool
    """True if the factors were fitted to batches of this size."""


class RuntimeLaw(BaseModel):
    """Additive roofline of one runtime on processors, with its calibrated errors as absolute logs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    factors: tuple[float, ...]
    """Factors of `AdditiveRoofline`."""
    precisions: tuple[str, ...]
    processors: tuple[str, ...]
    """Names in the spec sheet of the processors that the law was fitted to."""
    vendors: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    models: tuple[str, ...]
    """Models that were measured; empty for a runtime of few processors."""
    known_model: Calibration
    """Errors on a processor that was left out, for models measured on other processors."""
    new_model: Calibration
    """Errors on a processor and a model that were both left out."""

    def unsupported_reason(self, sample: Sample) -> str | None:
        """Return why the law does not cover a sample; None if it does."""
        if sample.precision not in self.precisions:
            measured = " and ".join(self.precisions)
            return f"{sample.backend} on processors was learned from in {measured} only, not in {sample.precision}"
        return None

    def predict(self, sample: Sample) -> ProcessorPrediction:
        """Return the latency of a sample that the law covers."""
        roofline = AdditiveRoofline(self.factors)
        [log_ms] = roofline.predict_log([sample]).tolist()
        terms = roofline_terms_ms([sample])[0] * np.exp(np.array(self.factors[:4]))
        calibration = self.known_model if sample.model in self.models else self.new_model
        vendor_measured = sample.vendor in self.vendors
        width = math.exp(calibration.half_width)
        latency = math.exp(log_ms)
        return ProcessorPrediction(
            Interval(
                p50=latency,
                low=latency / width,
                high=latency * width,
                level=calibration.level if vendor_measured else None,
            ),
            tuple((terms / terms.sum()).tolist()),
            len(self.processors),
            vendor_measured,
            sample.batch_size in self.batch_sizes,
        )


class ProcessorPredictor(BaseModel):
    """Laws of the runtimes that were measured on processors with published rates."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    runtimes: Mapping[str, RuntimeLaw]

    def unsupported_reason(self, sample: Sample) -> str | None:
        """Return why no law covers a sample; None if one does."""
        law = self.runtimes.get(sample.backend)
        if sample.kind != "cpu" or law is None:
            known = " and ".join(sorted(self.runtimes))
            return f"processors are predicted by their rates with {known} only"
        if sample.mode != "inference":
            return f"processors are predicted by their rates in inference only, not in {sample.mode}"
        if not has_known_rates(sample):
            return f"the peak or the bandwidth of {sample.device} is not published"
        return law.unsupported_reason(sample)

    def predict(self, sample: Sample) -> ProcessorPrediction:
        """Return the latency of a sample that `unsupported_reason` supports."""
        return self.runtimes[sample.backend].predict(sample)


@cache
def shipped_predictor() -> ProcessorPredictor:
    """Load the predictor that ships with the package. Raises SlowPathRequired on the fast path."""
    require_slow_path()
    return ProcessorPredictor.model_validate_json(SHIPPED.read_text(encoding="utf-8"))


def save(predictor: ProcessorPredictor, path: Path) -> None:
    """Write a predictor as JSON; equal predictors give equal bytes."""
    path.write_text(json.dumps(predictor.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
