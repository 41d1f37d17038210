"""Fit and evaluation of the processor predictor, on the figures that ship with the package.

`python -m predictor.processors.fit` writes the predictor that ships with the package. Run it when the packs, the
roofline or the rates of processors in the spec sheet change.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accel_platform.events import EventLog
from accel_platform.knowledge import adopt_campaigns
from accel_platform.knowledge.packs import adopt_packs
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import bring_up_to_date
from accel_platform.warehouse.reader import Reader
from predictor.calibration.conformal import Calibration, calibrate
from predictor.data.dataset import load_training_set
from predictor.data.roofline import has_known_rates
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline
from predictor.processors.predictor import SHIPPED, ProcessorPredictor, RuntimeLaw, save
from predictor.schemas.responses import INTERVAL_LEVEL

Array = npt.NDArray[np.float64]
_SEVERAL = 10
"""Fewest processors of a runtime that tell how far another one is off its published rates."""
_FOLDS = 8
"""Number of folds of model families, and the fewest families that a law is fitted to."""


def load_samples() -> list[Sample]:
    """Return the shipped figures of processors with published rates. It takes half a minute."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        log = EventLog.open(settings)
        adopt_packs(log)
        adopt_campaigns(log)
        bring_up_to_date(settings)
        measured = load_training_set(Reader(settings)).measured
    return [s for s in measured if s.kind == "cpu" and s.mode == "inference" and has_known_rates(s)]


def fit(samples: Sequence[Sample]) -> ProcessorPredictor:
    """Fit a law for each runtime.

    Runtimes measured on several processors come first, because the offsets of their processors from the published rates
    widen the intervals of runtimes measured on few.
    """
    by_runtime: dict[str, list[Sample]] = {}
    for sample in samples:
        by_runtime.setdefault(sample.backend, []).append(sample)
    several = {name: own for name, own in by_runtime.items() if len({s.device for s in own}) >= _SEVERAL}
    errors = {name: held_out_errors(own, lambda sample: sample.device) for name, own in several.items()}
    laws = {runtime: _fit_several(own, errors[runtime]) for runtime, own in several.items()}
    if several:
        offsets = np.concatenate([processor_offsets(own, errors[name]) for name, own in several.items()])
        few = {name: own for name, own in by_runtime.items() if name not in several}
        laws |= {name: _fit_few(own, offsets) for name, own in few.items() if len({s.family for s in own}) >= _FOLDS}
    return ProcessorPredictor(runtimes=dict(sorted(laws.items())))


def held_out_errors(samples: Sequence[Sample], group: Callable[[Sample], object]) -> Array:
    """Return each sample's natural log of measured over predicted latency, by a law fitted without its group."""
    logs, groups = log_latencies(samples), [group(sample) for sample in samples]
    errors = np.empty(len(samples))
    for held_out in dict.fromkeys(groups):
        here = np.array([each == held_out for each in groups])
        rest = [sample for sample, out in zip(samples, here, strict=True) if not out]
        law = AdditiveRoofline.fit(rest, logs[~here])
        errors[here] = logs[here] - law.predict_log([s for s, out in zip(samples, here, strict=True) if out])
    return errors


def both_held_out_errors(samples: Sequence[Sample]) -> Array:
    """Return each sample's log error by a law fitted without its processor and without its model."""
    logs, errors = log_latencies(samples), np.empty(len(samples))
    for i, sample in enumerate(samples):
        rest = [j for j, s in enumerate(samples) if s.device != sample.device and s.model != sample.model]
        law = AdditiveRoofline.fit([samples[j] for j in rest], logs[rest])
        errors[i] = logs[i] - law.predict_log([sample])[0]
    return errors


def family_errors(samples: Sequence[Sample]) -> Array:
    """Return each sample's log error by a law fitted without an eighth of the model families, its own among them."""
    families = sorted({sample.family for sample in samples})
    fold = {family: i % _FOLDS for i, family in enumerate(families)}
    return held_out_errors(samples, lambda sample: fold[sample.family])


def processor_offsets(samples: Sequence[Sample], errors: Array) -> Array:
    """Return the offset of each processor from a law of the others: the median log error of its samples."""
    devices = np.array([sample.device for sample in samples])
    return np.array([np.median(errors[devices == device]) for device in np.unique(devices)])


def log_latencies(samples: Sequence[Sample]) -> Array:
    """Return the natural logs of the latencies in ms."""
    return np.log([sample.latency_ms for sample in samples])


def _fit_several(samples: Sequence[Sample], errors: Array) -> RuntimeLaw:
    """Return the law of a runtime that several processors were measured with, calibrated on those left out.

    `errors` are the log errors by a law without the sample's processor.
    """
    devices = [sample.device for sample in samples]
    return _law(
        samples,
        models=tuple(sorted({sample.model for sample in samples})),
        known_model=calibrate(np.abs(errors), devices),
        new_model=calibrate(np.abs(both_held_out_errors(samples)), devices),
    )


def _fit_few(samples: Sequence[Sample], offsets: Array) -> RuntimeLaw:
    """Return the law of a runtime that one processor was measured with, or a few.

    The error on another processor is taken for the sum of two: the error on a family left out, and the difference of
    two processors' `offsets` from their rates, as measured with other runtimes.
    """
    errors = family_errors(samples)
    apart = (offsets[:, None] - offsets[None, :])[~np.eye(len(offsets), dtype=bool)]
    both = np.abs(np.add.outer(apart, errors)).ravel()
    level = INTERVAL_LEVEL * len(offsets) / (len(offsets) + 1)
    calibration = Calibration(
        half_width=float(np.quantile(both, INTERVAL_LEVEL)), level=level, groups=len(offsets), rows=len(samples)
    )
    return _law(samples, models=(), known_model=calibration, new_model=calibration)


def _law(
    samples: Sequence[Sample], *, models: tuple[str, ...], known_model: Calibration, new_model: Calibration
) -> RuntimeLaw:
    return RuntimeLaw(
        factors=AdditiveRoofline.fit(samples, log_latencies(samples)).factors,
        precisions=tuple(sorted({sample.precision for sample in samples})),
        processors=tuple(sorted({sample.device for sample in samples})),
        vendors=tuple(sorted({sample.vendor for sample in samples})),
        batch_sizes=tuple(sorted({sample.batch_size for sample in samples})),
        models=models,
        known_model=known_model,
        new_model=new_model,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the predictor, write it over the shipped one and print how far it errs."""
    argparse.ArgumentParser(prog="python -m predictor.processors.fit", description=__doc__).parse_args(arguments)
    print("Reading the shipped figures takes half a minute ...", file=sys.stderr)
    predictor = fit(load_samples())
    save(predictor, SHIPPED)
    for runtime, law in predictor.runtimes.items():
        known, new = (np.exp(each.half_width) for each in (law.known_model, law.new_model))
        print(
            f"{runtime}: {len(law.processors)} processors; limits x {known:.2f}, of a model nobody measured x {new:.2f}"
        )


if __name__ == "__main__":
    main()
