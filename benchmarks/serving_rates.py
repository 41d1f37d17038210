"""Answers for request rates against a server that others loaded: typical times, percentiles, what it kept up with.

vLLM with Llama 3.1 8B in bfloat16 on an H100 80 GB, one request after another at a constant rate, 200 tokens in and 62
out. Nothing of it was learned from: it comes from the reports of inference-perf's demonstration at KubeCon NA 2025
(github.com/kubernetes-sigs/inference-perf, commit 7de5ef2, Apache-2.0).
"""

from __future__ import annotations

import argparse
import math
import statistics

from figures import tell
from predictor.advisor.serving.ranking import recommend_serving
from predictor.schemas.requests import validate_query
from predictor.schemas.serving import ServingOption, ServingQuery

# Way of running; requests/s; first token ms: median and p99; whole request ms: median and p99.
MEASURED = (
    ("128 at once", 1.03, 31.0, 39.7, 480, 489),
    ("128 at once", 31.42, 29.3, 43.6, 544, 631),
    ("128 at once", 61.79, 33.5, 57.0, 668, 852),
    ("128 at once", 92.22, 44.5, 181.8, 1004, 1381),
    ("192 at once", 1.00, 32.9, 42.5, 482, 493),
    ("192 at once", 37.99, 30.6, 45.7, 561, 625),
    ("192 at once", 74.94, 37.2, 60.3, 763, 955),
    ("192 at once", 111.92, 105.5, 397.5, 1727, 2056),
    ("prefix cache", 1.02, 29.3, 41.0, 479, 490),
    ("prefix cache", 43.27, 26.9, 34.7, 523, 546),
    ("prefix cache", 85.52, 28.7, 37.1, 577, 626),
    ("prefix cache", 127.76, 32.1, 42.0, 665, 742),
    ("prefix cache", 169.99, 54.8, 454.8, 768, 1180),
)
TOKENS_IN, TOKENS_OUT = 202, 62
SHARED = 128 / TOKENS_IN
"""Share of a prompt that the others of its group begin with as well."""
_REQUESTS = 1500


def answer(way: str, rate: float) -> ServingOption | None:
    """Return the deployment as it is answered for; None where it cannot keep up."""
    trace = [{"arrival_s": i / rate, "input_tokens": TOKENS_IN, "output_tokens": TOKENS_OUT} for i in range(_REQUESTS)]
    question = {
        "mode": "serving", "model": "llama-3.1-8b", "engine": "vllm", "hardware": ["H100"], "trace": trace,
        "goals": {"max_devices": 1}, "prefix_cached_share": SHARED if way == "prefix cache" else 0.0,
    }  # fmt: skip
    options = recommend_serving(validate_query(ServingQuery, question), (), None).options
    return options[0] if options else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    ratios: dict[str, list[float]] = {"first token": [], "whole request": [], "first token p99": [], "whole p99": []}
    inside, refused, figures = [], [], []
    for way, rate, first_ms, first_p99_ms, whole_ms, whole_p99_ms in MEASURED:
        found = answer(way, rate)
        if found is None:
            refused.append(f"{way} at {rate:g}/s")
            continue
        pairs = {
            "first token": (found.first_token_ms.p50, first_ms),
            "whole request": (found.end_to_end_ms.p50, whole_ms),
            "first token p99": (found.slow.first_token_ms.p50, first_p99_ms),
            "whole p99": (found.slow.end_to_end_ms.p50, whole_p99_ms),
        }
        for name, (predicted, measured) in pairs.items():
            ratios[name].append(predicted / measured)
        interval = found.end_to_end_ms
        inside.append((interval.low or 0.0) <= whole_ms <= (interval.high or math.inf))
        figures.append(
            {"what": f"{way}, {rate:g} requests/s: whole request", "reach": "-",
             "got": f"{found.end_to_end_ms.p50:.0f} ms",
             "detail": f"measured {whole_ms} ms; first token {found.first_token_ms.p50:.0f} against {first_ms} ms"}
        )  # fmt: skip
    for name, found_ratios in ratios.items():
        off = statistics.median(abs(ratio - 1) for ratio in found_ratios)
        spread = f"predicted over measured {min(found_ratios):.2f} to {max(found_ratios):.2f}"
        figures.append({"what": f"{name}, median error", "reach": "-", "got": f"{off:.0%}", "detail": spread})
    figures.append(
        {"what": "whole request inside its 80 % limits", "reach": ">= 80 %",
         "got": f"{sum(inside)} of {len(inside)}", "detail": f"refused, though kept up with: {', '.join(refused)}"}
    )  # fmt: skip
    tell(figures, for_machines=parser.parse_args().json)


if __name__ == "__main__":
    main()
