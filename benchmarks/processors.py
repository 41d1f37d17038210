"""Errors of the processor predictor on processors, models and families that were left out of the shipped figures.

With OpenVINO each processor is left out, then each processor and model together. PyTorch was measured on one processor,
so there an eighth of the model families is left out at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np

from predictor.data.samples import Sample
from predictor.processors.fit import both_held_out_errors, family_errors, held_out_errors, load_samples
from predictor.processors.predictor import shipped_predictor


def _figures(runtime: str, left_out: str, samples: Sequence[Sample], errors: np.ndarray) -> dict[str, object]:
    sizes = np.exp(np.abs(errors))
    return {
        "runtime": runtime,
        "left out": left_out,
        "processors": len({sample.device for sample in samples}),
        "models": len({sample.model for sample in samples}),
        "figures": len(samples),
        **{name: f"x {np.quantile(sizes, share):.2f}" for name, share in (("median", 0.5), ("p80", 0.8), ("p90", 0.9))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    print("reading the shipped figures, half a minute", file=sys.stderr)
    samples = load_samples()
    found = []
    for runtime, law in shipped_predictor().runtimes.items():
        own = [sample for sample in samples if sample.backend == runtime]
        if law.models:
            errors = held_out_errors(own, lambda sample: sample.device)
            found.append(_figures(runtime, "a processor", own, errors))
            found.append(_figures(runtime, "a processor and a model", own, both_held_out_errors(own)))
        else:
            found.append(_figures(runtime, "families", own, family_errors(own)))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(*found[0], sep="  ")
    for figures in found:
        print(*figures.values(), sep="  ")


if __name__ == "__main__":
    main()
