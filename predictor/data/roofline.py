"""Roofline of a sample: the times of its products, moved numbers and weights at its device's published rates."""

from __future__ import annotations

import math
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from accel_platform.hardware.catalog import catalog
from accel_platform.hardware.device_spec import peak_ops_per_s
from predictor.data.number_widths import activation_bytes_per_number, weight_bytes
from predictor.data.operator_mix import published_mix

if TYPE_CHECKING:
    from predictor.data.samples import Sample

LAYER_OUTPUTS, ALL_OPERATORS = "layers", "operators"
"""Ways to count a model's activations: outputs of its layers, as timm, fvcore and this platform count them, or outputs
of all operators, where only these are known. The latter are two to three times more and hardly predict the former.
"""
_USUAL_MOVED, _USUAL_FUSED, _USUAL_OPERATORS = 4.5, 0.4, 300.0
"""Operator mix of models without a published one: medians of the published mixes.

They are the numbers moved between products per number in layer outputs (quartiles 2.9 and 5.5), the share of these that
fused operators move (quartiles 0.33 and 0.51), and the operators of a pass.
"""
_MOVES_PER_OUTPUT = 2.0
"""Numbers moved per number that operators write: each is written once and read once."""
_CACHE_SAVING = 0.75
"""Share of the time of moving a number that is saved if a GPU's cache holds it, as it is some four times as fast.

The cached share of an operator is the cache's size over the bytes that the operator moves, at most 1. Processors have
no such saving, because part of their caches is private to a core, and predictions for them are no better with it.
"""
HOST_MS_PER_OPERATOR = 0.0274
"""Time in ms in which PyTorch issues one operator to a GPU. A model whose operators are shorter waits for its host.

It is the median of 25 transformers models on an H100 with a Xeon host, each at its fastest batch size (22 to 36 µs for
21 of them), by `benchmarks/gpu_campaign.py`.
"""
SLOW_HOST = 2.4
"""Factor by which a slow host takes longer to issue an operator; assumed."""


def waits_for_host(sample: Sample) -> bool:
    """Return whether an eager pass on a GPU was so short that the time to issue its operators may have limited it."""
    if sample.kind != "gpu" or sample.backend != "pytorch" or sample.mode != "inference":
        return False
    mix = published_mix(sample.model, sample.size)
    operators = _USUAL_OPERATORS if mix is None else mix.operators
    return sample.latency_ms < SLOW_HOST * HOST_MS_PER_OPERATOR * operators


def has_known_rates(sample: Sample) -> bool:
    """Return whether the device's peak and bandwidth are known."""
    return not (math.isnan(sample.peak_flops) or math.isnan(sample.bandwidth))


def roofline_terms(sample: Sample) -> tuple[float, float, float, float]:
    """Return four terms of a sample: ms of products, ms of moving numbers, ms of reading weights, and launches.

    The products take the longer of computing and of moving their numbers, per group of operators. Numbers are moved at
    full bandwidth, or faster out of a GPU's cache. A launch is that of a pass of `_USUAL_OPERATORS` operators, or in
    generation that of one layer for one token.

    An unknown rate is replaced by the median over its kind of device in the spec sheet. The figures of such a device
    correct that; without figures it is not supported (`has_known_rates`).
    """
    work, peak, bandwidth = sample.work, sample.peak_flops, sample.bandwidth
    if math.isnan(peak) or math.isnan(bandwidth):
        median_peak, median_bandwidth = _median_rates(sample.kind, weight_bytes(sample.precision, sample.mode) <= 2)
        peak = median_peak * sample.devices if math.isnan(peak) else peak
        bandwidth = median_bandwidth * sample.devices if math.isnan(bandwidth) else bandwidth
    reading = 1e3 * work.weight_bytes / bandwidth
    if sample.mode == "generation":
        return 1e3 * work.flops / peak, 1e3 * work.activation_bytes / bandwidth, reading, work.steps
    mix = published_mix(sample.model, sample.size)
    if mix is None:
        moved = work.activation_bytes * (_USUAL_MOVED if sample.counted == LAYER_OUTPUTS else _MOVES_PER_OUTPUT)
        moved *= _USUAL_FUSED if sample.compiler else 1.0
        return 1e3 * work.flops / peak, 1e3 * moved / bandwidth, reading, work.steps
    cache = 0.0 if sample.kind != "gpu" or math.isnan(sample.cache_bytes) else sample.cache_bytes
    width = sample.batch_size * activation_bytes_per_number(sample.precision)
    computing = moving = 0.0
    for flops, numbers, each in zip(mix.flops, mix.numbers, mix.each, strict=True):
        cached = min(1.0, cache / (each * width))
        moving_s = numbers * width / bandwidth * (1 - _CACHE_SAVING * cached)
        if flops:
            computing += max(sample.batch_size * flops / peak, moving_s)
        else:
            moving += moving_s
    if sample.compiler:
        moving *= mix.fused_share
    return 1e3 * computing, 1e3 * moving, reading, work.steps * mix.operators / _USUAL_OPERATORS


@cache
def _median_rates(kind: str, half: bool) -> tuple[float, float]:
    """Return median FLOPs and bytes per second over the spec sheet's devices of this kind, else over all."""
    same_kind = [spec for spec in catalog() if spec.kind == kind]
    peaks: list[float] = []
    bandwidths: list[float] = []
    for devices in (same_kind, catalog()):
        peaks = peaks or [p for s in devices if (p := peak_ops_per_s(s, "float16" if half else "float32"))]
        bandwidths = bandwidths or [s.bandwidth_gb_s for s in devices if s.bandwidth_gb_s]
    return median(peaks), median(bandwidths) * 1e9
