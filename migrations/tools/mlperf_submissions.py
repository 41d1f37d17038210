"""Single-stream runs of rounds of MLPerf inference, each joined with its system and weights, as a row of a table.

A round's repository holds a run's times, its system and its weights in three files. Runs of one sample at a time on one
whole device are taken, of models whose inputs all have one size. Usage:

    python -m migrations.tools.mlperf_submissions CHECKOUT... > results.jsonl
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from migrations.normalize.units import NS_PER_MS, count
from migrations.tools.mlperf import runtimes_in, scenario_of, summary_lines

_RUN = "performance/run_1/mlperf_log_summary.txt"
_SYSTEM = (
    "system_name", "framework", "accelerator_model_name", "accelerators_per_node", "number_of_nodes",
    "host_processor_model_name", "host_processors_per_node", "host_processor_core_count", "operating_system",
)  # fmt: skip
_WEIGHTS = ("weight_data_types", "retraining", "weight_transformations", "starting_weights_filename")
_MODEL = re.compile(r"resnet50|retinanet|mobilenet-.+|efficientnet-.+")
"""Models whose inputs all have one size, as trained; others of these names in the open division were pruned."""
_PADDED = "bert-99"
_REFERENCE = "-reference-"
"""In the name of a platform: the reference implementation, which pads each question to 384 tokens. Others do not."""
_SPECIAL = re.compile(
    r"MIG|MaxQ|max\d+|CTS|custom|-\d+[CQ]\b|virtuali[sz]ed|triton|exp\d|fan\.|deepsparse|^aws-|^gcp_.+-cpu|drive-|RTX_4000_Ada|"
    r"tflite_cpp|tflite_armnn_cpp|cpp_tflite",
    re.IGNORECASE,
)
"""Part of a device, one of limited or raised power, a server in between, a second try, and a runtime of pruned weights.

Processors of a cloud's instances are parts, and a car's A100 is not sold. An RTX 4000 Ada of round v5.1 took six times
as long as an RTX 2000E Ada.

Also a program whose builds with and without fast kernels have one name (1.9 and 17 ms for one model on one chip).
"""
_TIME = re.compile(r"(?:Mean|\d+\.\d+ percentile) latency \(ns\)")


def rows_of_round(checkout: Path) -> Iterator[dict[str, Any]]:
    """Yield a row per valid run of one sample at a time on one plain device, in the order of their paths."""
    for summary in sorted(checkout.glob(f"*/*/results/*/*/*/{_RUN}")):
        division, submitter, _, platform, model, scenario = summary.relative_to(checkout).parts[:6]
        padded = model == _PADDED and _REFERENCE in platform
        if scenario_of(scenario) != "singlestream" or not (padded or _MODEL.fullmatch(model)):
            continue
        descriptions = [_object(path) for path in checkout.glob(f"*/{submitter}/systems/{platform}.json")]
        path = checkout / division / submitter / "systems" / f"{platform}.json"
        if not path.exists() or len({_device(each) for each in descriptions}) > 1:
            continue
        system = _object(path)
        if not (_is_one_plain_device(platform, system) and _is_of_one_runtime(platform, system)):
            continue
        folder = checkout / division / submitter / "measurements" / platform / model / scenario
        weights = next((_object(path) for path in sorted(folder.glob(f"{platform}*.json"))), {})
        found = summary_lines(summary.read_text(encoding="utf-8").splitlines())
        clock_went_back = int(found["Min latency (ns)"]) < 0
        if found.get("Result is") != "VALID" or clock_went_back or not _are_as_trained(weights):
            continue
        yield {
            "Model": model,
            **({"sequence_length": 384} if padded else {}),
            "Scenario": found["Scenario"],
            "Division": division,
            "Organization": submitter,
            "Platform": platform,
            "Location": str(summary.relative_to(checkout).parent.parent.parent),
            "Result": int(found["90.00 percentile latency (ns)"]) / NS_PER_MS,
            "Units": "Latency (ms)",
            **{name: system[name] for name in _SYSTEM if system.get(name) not in (None, "")},
            **{name: weights[name] for name in _WEIGHTS if weights.get(name)},
            **{name: int(value) for name, value in found.items() if _TIME.fullmatch(name)},
        }


def _device(system: dict[str, Any]) -> tuple[Any, Any]:
    return system.get("accelerator_model_name"), system.get("host_processor_model_name")


def _is_one_plain_device(platform: str, system: dict[str, Any]) -> bool:
    """Return whether a system is one whole accelerator or one processor, with no limit on its power."""
    texts = (platform, system.get("accelerator_model_name"), system.get("system_name"))
    if any(_SPECIAL.search(str(text or "")) for text in texts):
        return False
    accelerators = count(system.get("accelerators_per_node"), at_least=0) or 0
    return accelerators == 1 or (accelerators == 0 and count(system.get("host_processors_per_node"), at_least=1) == 1)


def _is_of_one_runtime(platform: str, system: dict[str, Any]) -> bool:
    """Return whether framework and platform name the same runtime, or only one of them names one."""
    of_platform, of_framework = runtimes_in(platform), runtimes_in(system.get("framework"))
    return bool(of_platform & of_framework) or len(of_platform | of_framework) == 1


def _are_as_trained(weights: dict[str, Any]) -> bool:
    """Return whether weights are described, more than by the defaults of a form, and were not trained again."""
    retrained = str(weights.get("retraining") or "no").casefold()
    return retrained in ("no", "n") and weights.get("starting_weights_filename") not in (None, "", "none")


def _object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError(f"{path} holds no object.")
    return value


if __name__ == "__main__":
    rounds = {place: list(rows_of_round(Path(place))) for place in sys.argv[1:]}
    if not rounds or not all(rounds.values()):
        empty = [place for place, rows in rounds.items() if not rows]
        sys.exit(f"No such run in {', '.join(empty) or 'no folder'}: give checkouts of mlcommons/inference_results_v….")
    for row in itertools.chain.from_iterable(rounds.values()):
        print(json.dumps(row, ensure_ascii=False))
