"""A small world for the predictor's tests: events on a log, projected for real. The figures are made up by a formula,
because these tests are about the software; nothing of it is ever shipped as a measurement."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_platform.events import Event, EventLog
from accel_platform.events.types import DeviceObserved, ModelDescribed, Payload, ResultRecorded, VerificationRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh

CPU = "Test CPU 8-core"
CPU_ID = "cpu-test-8-core"
BACKENDS = {"cpu": "pytorch", "openvino": "openvino", "onnxruntime": "onnxruntime", "cuda": "pytorch"}
SPEED = {"cpu": 1.0, "openvino": 2.2, "onnxruntime": 1.5, "cuda": 40.0}


@dataclass(frozen=True)
class Model:
    """A model of the catalogue with the cost its ModelDescribed event states."""

    model_id: str
    family: str
    modality: str
    parameters: int
    gflops: float
    sequence_length: int | None = None


MODELS = (
    Model("bert-base", "bert", "text", 109_000_000, 22.4, 128),
    Model("vit-base", "vit", "vision", 86_000_000, 35.1),
    Model("t5-small", "t5", "text", 60_000_000, 11.2, 128),
    Model("whisper-base", "whisper", "audio", 72_000_000, 89.0),
    Model("gpt2", "gpt", "text", 124_000_000, 22.1, 128),
    Model("resnet-50", "resnet", "vision", 25_000_000, 8.2),
    Model("swin-tiny", "swin", "vision", 28_000_000, 9.0),
    Model("wav2vec2-base", "wav2vec2", "audio", 94_000_000, 70.0),
    Model("clip-vit-base-patch32", "clip", "multimodal", 151_000_000, 14.8, 77),
    Model("convnext-tiny", "convnext", "vision", 28_600_000, 8.9),
)


def latency_of(model: Model, hardware: str, batch_size: int) -> float:
    """Milliseconds of one batch in this world: a fixed overhead and work at a constant rate."""
    return 2.0 + model.gflops * batch_size / (0.4 * SPEED[hardware])


def result(
    model: Model,
    hardware: str,
    batch_size: int,
    *,
    device: str = CPU,
    seed: int = 0,
    samples: int = 30,
    scale: float = 1.0,
    provenance: str = "measured",
    precision: str | None = "float32",
    **more: Any,
) -> ResultRecorded:
    """A successful result: samples where measured, only a mean where imported."""
    spread = random.Random(f"{model.model_id} {hardware} {batch_size} {seed}")
    centre = latency_of(model, hardware, batch_size) * scale
    times = [centre * math.exp(spread.gauss(0, 0.03)) for _ in range(samples)]
    figures: dict[str, Any] = (
        {"samples_ns": tuple(int(t * 1e6) for t in times), "fingerprint": f"{device}-{hardware}"}
        if provenance == "measured"
        else {"latency_mean_ms": sum(times) / len(times)}
    )
    return ResultRecorded(
        **{
            "model_id": model.model_id,
            "model_family": model.family,
            "hardware": hardware,
            "backend": BACKENDS[hardware],
            "status": "ok",
            "provenance": provenance,
            "precision": precision,
            "batch_size": batch_size,
            "sequence_length": model.sequence_length,
            "device_id": CPU_ID if hardware != "cuda" else "cuda-0",
            "device_name": device,
            "memory_peak_mib": 300 + model.parameters / 250_000 + 5 * batch_size,
            **figures,
            **more,
        }
    )


def verified(model: Model, hardware: str, batch_size: int, *, passed: bool = True) -> VerificationRecorded:
    return VerificationRecorded(
        model_id=model.model_id,
        hardware=hardware,
        backend=BACKENDS[hardware],
        device_id=CPU_ID if hardware != "cuda" else "cuda-0",
        precision="float32",
        batch_size=batch_size,
        sequence_length=model.sequence_length,
        passed=passed,
        reference="pytorch cpu float32",
        tolerance=0.01,
        constant_output=False,
    )


def described(model: Model) -> ModelDescribed:
    return ModelDescribed(
        model_id=model.model_id,
        architecture=model.family,
        family=model.family,
        modality=model.modality,
        parameters=model.parameters,
        layers=12,
        flops_per_item=int(model.gflops * 1e9),
        activation_bytes_per_item=int(model.gflops * 1e7),
        layer_output_bytes_per_item=int(model.gflops * 4e6),
        image_size=224 if model.modality == "vision" else None,
    )


def devices() -> list[DeviceObserved]:
    """A host with a CPU under three runtimes and no GPU."""
    found = [
        DeviceObserved(
            hardware=hardware,
            backend=BACKENDS[hardware],
            available=True,
            device_id=CPU_ID,
            name=CPU,
            cores=8,
            clock_max_mhz=3000.0,
            memory_mib=32_768.0,
        )
        for hardware in ("cpu", "openvino", "onnxruntime")
    ]
    return [*found, DeviceObserved(hardware="cuda", backend="pytorch", available=False, reason="no NVIDIA driver")]


def measured_grid(
    models: Iterable[Model] = MODELS, hardware: Iterable[str] = ("cpu", "openvino", "onnxruntime")
) -> list[Payload]:
    """Every model on every hardware at batch sizes 1 and 4, verified."""
    payloads: list[Payload] = []
    for model in models:
        payloads.append(described(model))
        for name in hardware:
            for batch_size in (1, 4):
                payloads += [result(model, name, batch_size), verified(model, name, batch_size)]
    return payloads


def append(settings: Settings, payloads: Iterable[Payload], *, publish: bool = True) -> list[Event]:
    """Put the payloads on the log as one run of one host and, unless told otherwise, publish the projection."""
    events = [Event.of(p, source="test", host_id="host-1", run_id="run-1") for p in payloads]
    EventLog.open(settings).append(events)
    if publish:
        refresh(settings)
    return events


_built: dict[str, Path] = {}
"""A copy of each home that `world` built in this process, by its settings and payloads."""
_copies = tempfile.TemporaryDirectory(prefix="worlds-")


def world(home: Path, payloads: Iterable[Payload] | None = None) -> Settings:
    """A published warehouse with the devices and the measured grid (or the payloads given).

    An equal one that was built before is copied, because building takes a quarter of a second.
    """
    settings = Settings(home=home)
    content = [*devices(), *(measured_grid() if payloads is None else payloads)]
    if settings.log_uri is not None or (home / "log").exists():
        append(settings, content)
        return settings
    key = "\n".join(
        [settings.model_dump_json(exclude={"home"}), *(f"{type(p).__name__} {p.model_dump_json()}" for p in content)]
    )
    if key in _built:
        shutil.copytree(_built[key], home, dirs_exist_ok=True)
        return settings
    append(settings, content)
    copy = Path(_copies.name) / str(len(_built))
    for part in ("log", "warehouse"):
        shutil.copytree(home / part, copy / part)
    _built[key] = copy
    return settings
