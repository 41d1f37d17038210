"""Seconds of retraining on a warehouse of many configurations, stage by stage, and of loading the predictor.

The figures to learn from are invented by a physical law with noise, and all of different configurations. `--shipped`
times `accel train` on all that ships instead: the first time, and again after one more figure of the users.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from accel_platform.events import Event, EventLog
from accel_platform.events.types import ModelDescribed, Payload, ResultRecorded
from accel_platform.hardware.catalog import find_spec
from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.knowledge.packs import add_pack, shipped_folder, shipped_results
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from predictor.training import artifact
from predictor.training.train import train

REFERENCE = Path(__file__).parent.parent / "accel_platform" / "knowledge" / "reference"
DEVICES = ("RTX 3090", "RTX 4090", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA H100 SXM")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256)
FAMILIES = 40


def world(rows: int) -> list[Payload]:
    """Return models with a cost, and the time of a batch of each on every device."""
    chance = np.random.default_rng(0)
    quirks = {(family, device): math.exp(chance.normal(0, 0.25)) for family in range(FAMILIES) for device in DEVICES}
    payloads: list[Payload] = []
    for number in range(math.ceil(rows / len(DEVICES) / len(BATCHES))):
        family = f"family{number % FAMILIES}"
        gflops, written = math.exp(chance.uniform(-1, 5)), math.exp(chance.uniform(15, 20))
        parameters = int(math.exp(chance.uniform(14, 20)))
        payloads.append(
            ModelDescribed(
                model_id=f"{family}-{number}",
                architecture=family,
                family=family,
                modality="vision",
                parameters=parameters,
                layers=12,
                flops_per_item=int(gflops * 1e9),
                activation_bytes_per_item=int(written),
            )
        )
        for device in DEVICES:
            spec = find_spec(device)
            assert spec is not None
            assert spec.peak_fp32_tflops is not None
            assert spec.bandwidth_gb_s is not None
            for batch in BATCHES:
                computing = 2e-9 * gflops * 1e9 * batch / spec.peak_fp32_tflops
                moving = 3e-6 * (written * batch + 4 * parameters) / spec.bandwidth_gb_s
                quirk = quirks[number % FAMILIES, device] * math.exp(chance.normal(0, 0.03))
                payloads.append(
                    ResultRecorded(
                        model_id=f"{family}-{number}",
                        model_family=family,
                        hardware="cuda",
                        backend="pytorch",
                        status="ok",
                        provenance="imported",
                        precision="float32",
                        batch_size=batch,
                        device_id=spec.name,
                        device_name=spec.name,
                        latency_mean_ms=(0.5 + computing + moving) * quirk,
                        memory_peak_mib=600 + 4 * parameters / 2**20 + written * batch / 2**20 / 8,
                    )
                )
    return payloads


def shipped() -> dict[str, object]:
    """Return the seconds of `accel train` on every pack and the reference results, and with one figure more."""
    with tempfile.TemporaryDirectory(prefix="accel-retrain-") as place:
        settings = Settings(home=Path(place), log_uri=None)
        log = EventLog.open(settings)
        for name in shipped_results():
            add_pack(log, shipped_folder(name))
        for path in sorted(REFERENCE.glob("*.parquet")):
            log.adopt(path)
        refresh(settings)
        full_s = _train_by_command(settings)
        own = next(
            event.payload
            for event in log.read(types={"ResultRecorded"})
            if isinstance(event.payload, ResultRecorded)
            and event.payload.provenance == "measured"
            and event.payload.mode == "inference"
            and not event.source.startswith(SOURCE_PREFIX)
        )
        # Made up, in a home that is thrown away.
        assert own.batch_size is not None
        added = own.model_copy(update={"batch_size": 3 * own.batch_size, "provenance": "imported"})
        log.append([Event.of(added, source="import", host_id="benchmark", run_id="benchmark")])
        refresh(settings)
        again_s = _train_by_command(settings)
        rows = artifact.load_manifest(settings, str(artifact.current_id(settings))).rows
    return {"rows": rows, "cores": len(os.sched_getaffinity(0)), "full_s": full_s, "one_figure_more_s": again_s}


def _train_by_command(settings: Settings) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "accel_platform", "train", "--home", str(settings.home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - started, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--shipped", action="store_true", help="on all that ships with the package")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.shipped:
        _tell(shipped(), for_machines=asked.json)
        return
    with tempfile.TemporaryDirectory(prefix="accel-retrain-") as place:
        settings = Settings(home=Path(place), log_uri=None)
        log = EventLog.open(settings)
        events = [Event.of(payload, source="bench") for payload in world(asked.rows)]
        # A tenth of it serves already, so that what is timed also compares the two.
        for part in (events[: len(events) // 10], events[len(events) // 10 :]):
            log.append(part)
            refresh(settings)
            if artifact.current_id(settings) is None:
                train(settings, log)
        stages: list[tuple[str, float]] = []
        started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        report = train(settings, log, progress=lambda words: stages.append((words, time.perf_counter() - started)))
        took = time.perf_counter() - started
        spent = resource.getrusage(resource.RUSAGE_SELF)
        loading = time.perf_counter()
        predictor = artifact.load(settings, report.predictor_id)
        loaded = time.perf_counter() - loading
        asked_about = predictor.modes["inference"].latency_model.samples[:: report.rows // 12][:12]
        times = []
        for _ in range(50):
            asking = time.perf_counter()
            predictor.predict(asked_about)
            times.append(time.perf_counter() - asking)
        size = sum(path.stat().st_size for path in (settings.models_dir / report.predictor_id).iterdir())
        figures = {
            "rows": report.rows,
            "cores": len(os.sched_getaffinity(0)),
            "retrain_s": round(took, 1),
            "cpu_s": round(spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime, 1),
            "load_s": round(loaded, 2),
            "judge_12_ms": round(1e3 * statistics.median(times), 2),
            "artefact_mib": round(size / 2**20, 1),
            "median_ape_family": report.metrics["latency"]["inference"]["family"]["median_ape"],
        }
    if not asked.json:
        for words, at in stages:
            print(f"{at:7.1f} s  {words}")
    _tell(figures, for_machines=asked.json)


def _tell(figures: dict[str, object], *, for_machines: bool) -> None:
    print(json.dumps(figures) if for_machines else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
