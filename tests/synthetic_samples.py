"""Synthetic samples that follow the analytical model exactly, for tests of the predictor."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from accel_platform.hardware.catalog import find_spec
from predictor.data.samples import Sample, WorkloadCost
from predictor.models.analytical import AdditiveRoofline

FACTORS = (math.log(1.3), math.log(4.0), math.log(2.0), math.log(0.1), math.log(0.5))
FAMILIES = ("resnet", "vit", "convnext", "swin", "vgg", "regnetx", "mixer", "densenet", "efficientnet", "xcit")
GPUS = ("RTX 3090", "RTX 4090")


def synthetic_sample(
    model: str, device: str, *, gmacs: float, macts: float, batch: int = 64, slower: float = 1.0
) -> Sample:
    """Return a sample of `family_number` whose latency is the analytical model's times `slower`."""
    spec = find_spec(device)
    assert spec is not None
    assert spec.bandwidth_gb_s is not None
    peak = spec.peak_fp16_tensor_tflops or spec.peak_fp32_tflops
    assert peak is not None
    width = 2 if spec.kind == "gpu" else 4
    work = WorkloadCost(
        20e6, 2e9 * gmacs * batch, macts * 1e6 * width * batch, 20e6 * width, 1.0, macts * 1e6 * width * batch
    )
    sample = Sample(
        model=model,
        family=model.partition("_")[0],
        mode="inference",
        batch_size=batch,
        size=224.0,
        work=work,
        hardware="cuda" if spec.kind == "gpu" else "cpu",
        kind=spec.kind,
        device=spec.name,
        devices=1,
        peak_flops=peak * 1e12,
        bandwidth=spec.bandwidth_gb_s * 1e9,
        memory_mib=math.nan if spec.memory_gib is None else 1024 * spec.memory_gib,
        backend="pytorch",
        precision="amp",
        layout="nchw",
        compiler="",
        version=204.0,
        vendor=spec.vendor or "",
        latency_ms=1.0,
    )
    return replace(sample, latency_ms=slower * math.exp(AdditiveRoofline(FACTORS).predict_log([sample])[0]))


def synthetic_samples(devices: tuple[str, ...] = GPUS, *, per_family: int = 6, slower: float = 1.0) -> list[Sample]:
    rng = random.Random(7)
    samples = []
    for family in FAMILIES:
        for number in range(per_family):
            cost = {"gmacs": math.exp(rng.uniform(-1, 3)), "macts": math.exp(rng.uniform(0, 4))}
            samples += [synthetic_sample(f"{family}_{number}", device, **cost, slower=slower) for device in devices]
    return samples
