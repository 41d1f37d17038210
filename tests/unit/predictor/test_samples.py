"""Samples: work, device specs, equality, and the training set; unknown values stay unknown."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_platform.events import Event, EventLog
from accel_platform.events.types import DeviceObserved
from accel_platform.hardware import cpu
from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.kv_cache import Decoder
from predictor.data.dataset import load_training_set
from predictor.data.evidence import Target, load_evidence, observed_devices
from predictor.data.number_widths import weight_bytes
from predictor.data.roofline import ALL_OPERATORS, LAYER_OUTPUTS, has_known_rates
from predictor.data.samples import (
    FIXED_SIZE,
    IMAGES,
    MAX_SPEED_LIMIT_RATIO,
    TOKENS,
    Sample,
    Setup,
    Workload,
    device_spec_for,
    make_sample,
    speed_limit_ratio,
)
from predictor.data.traced_models import ItemCost
from predictor.models.analytical import roofline_terms_ms
from predictor.models.latency_model import FittedEnsembles
from predictor.training import sample_io
from predictor_world import CPU, CPU_ID, MODELS, Model, append, described, devices, latency_of, result, verified, world

COST = ItemCost(parameters=1e8, layers=12, flops=2e10, activation_bytes=3e8)
L4 = find_spec("NVIDIA L4")


def _try_sample(**more: Any) -> Sample | str:
    fields: dict[str, Any] = {
        "model": "bert-base", "family": "bert", "cost": COST, "mode": "inference", "batch_size": 4, "size": 128,
        "precision": "float32", "device": L4, "hardware": "cuda", "backend": "pytorch",
    }  # fmt: skip
    setup = ("device", "devices", "hardware", "backend")
    given = fields | more
    work = {name: value for name, value in given.items() if name not in setup}
    return make_sample(Workload(**work), Setup(**{name: given[name] for name in setup if name in given}))


def _sample(**more: Any) -> Sample:
    sample = _try_sample(**more)
    assert isinstance(sample, Sample), sample
    return sample


def test_one_process_of_pytorch_uses_one_die_of_a_card() -> None:
    card = {"device": find_spec("MI250"), "hardware": "rocm"}
    one, engine, four = _sample(**card), _sample(**card, backend="vllm"), _sample(**card, devices=4)
    assert (one.device, one.devices) == (engine.device, engine.devices) == ("AMD Instinct MI250", 1)
    for name in ("peak_flops", "bandwidth", "memory_mib", "cache_bytes"):
        assert getattr(one, name) == getattr(engine, name) / 2, name
        assert getattr(four, name) == getattr(engine, name) * 4, name
    assert _sample(backend="pytorch-compile", **card).bandwidth == one.bandwidth


def test_work_and_activations_grow_with_the_batch_and_weights_do_not() -> None:
    one, four = _sample(batch_size=1).work, _sample(batch_size=4).work
    assert four.flops == 4 * one.flops == 8e10
    assert four.activation_bytes == 4 * one.activation_bytes == 1.2e9
    assert four.weight_bytes == one.weight_bytes == 4e8


def test_half_precision_moves_half_and_computes_on_the_matrix_units() -> None:
    full, half = _sample(), _sample(precision="float16")
    assert half.work.weight_bytes == full.work.weight_bytes / 2
    assert half.work.activation_bytes == full.work.activation_bytes / 2
    assert (half.peak_flops, full.peak_flops) == (121e12, pytest.approx(30.3e12))
    assert full.memory_mib == 24 * 1024


def test_activations_are_counted_by_layers_where_that_is_known() -> None:
    traced, stated = replace(COST, layer_output_bytes=1e8), replace(COST, activation_bytes=None, layer_output_bytes=1e8)
    assert _sample(cost=traced) == _sample(cost=stated)
    assert (_sample(cost=traced).counted, _sample().counted) == (LAYER_OUTPUTS, ALL_OPERATORS)
    assert _sample(cost=traced).work.activation_bytes == _sample().work.activation_bytes / 3


def test_an_image_is_as_large_as_its_cost_says() -> None:
    seen = _sample(cost=replace(COST, image_size=224), size=None)
    assert (seen.size, seen.reads, _sample().reads, _sample(size=None).reads) == (224, IMAGES, TOKENS, FIXED_SIZE)


def test_int8_shrinks_weights_and_not_activations() -> None:
    full, small = _sample(), _sample(precision="int8")
    assert small.work.weight_bytes == full.work.weight_bytes / 4
    assert small.work.activation_bytes == full.work.activation_bytes


@pytest.mark.parametrize(
    ("name", "mode", "width"),
    [
        ("float32", "inference", 4),
        ("bfloat16", "inference", 2),
        ("tf32", "inference", 4),
        ("fp8", "generation", 1),
        ("q4", "generation", 0.5),
        ("amp", "inference", 2),
        ("unstated", "inference", 4),
        ("unstated", "generation", 2),
    ],
)
def test_bytes_of_a_weight(name: str, mode: str, width: float) -> None:
    assert weight_bytes(name, mode) == width


def test_hardware_of_a_users_own_is_taken_as_written_and_unknown_rates_stay_unknown() -> None:
    ours = DeviceSpec("my card", None, "gpu", 10.0, 80.0, 500.0, 12.0, None, None, source="mine")
    sample = _sample(device=ours, devices=2, precision="bfloat16")
    assert (sample.device, sample.peak_flops, sample.bandwidth, sample.memory_mib) == (
        "my card",
        160e12,
        1e12,
        24 * 1024,
    )
    assert has_known_rates(sample)
    silent = _sample(device=replace(ours, bandwidth_gb_s=None))
    assert math.isnan(silent.bandwidth)
    assert not has_known_rates(silent)
    # The analytical model takes the median of its kind in place of an unknown rate.
    assert 0 < roofline_terms_ms([silent])[0, 1] < math.inf


def test_an_impossible_sample_says_why() -> None:
    assert "cost of the model" in str(_try_sample(cost=None))
    assert "activations" in str(_try_sample(cost=replace(COST, activation_bytes=None)))
    assert "decoder" in str(_try_sample(mode="generation", output_tokens=8))
    assert "tokens" in str(_try_sample(mode="generation", model="meta-llama/Llama-2-7b-hf"))


def test_a_decoder_reads_weights_and_cache_once_per_token() -> None:
    decoder = Decoder(124e6, 124e6, layers=12, kept_per_token=2 * 12 * 768)
    work = _sample(
        mode="generation", decoder=decoder, size=100, output_tokens=10, batch_size=1, precision="float16"
    ).work
    assert work.weight_bytes == 124e6 * 2 * 10
    assert work.steps == 120
    # The cache holds 100 to 110 tokens, 105 on average, in 16 bits.
    assert work.activation_bytes == 2 * 12 * 768 * 2 * 105 * 10
    assert work.held_bytes == 2 * 12 * 768 * 2 * 110


def test_towers_and_inactive_experts_take_memory_and_are_not_read() -> None:
    decoder = Decoder(10e9, 3e9, layers=32, kept_per_token=1024, unread_parameters=1e9)
    generation = {"mode": "generation", "decoder": decoder, "size": 100, "output_tokens": 1, "precision": "float16"}
    one, many = (_sample(batch_size=n, **generation).work for n in (1, 10_000))
    assert one.weight_bytes == pytest.approx(3e9 * 2)
    assert many.weight_bytes == pytest.approx(9e9 * 2)
    assert one.parameters == 10e9


def test_an_impossible_figure_is_found_by_published_rates() -> None:
    decoder = Decoder(7e9, 7e9, layers=32, kept_per_token=2 * 32 * 8 * 128)
    wrote = _sample(mode="generation", decoder=decoder, size=2048, output_tokens=2048, batch_size=1, precision=None)
    # 14 GB read 2,048 times at 300 GB/s take 96 s.
    assert speed_limit_ratio(wrote, 96e3) == pytest.approx(1, rel=0.01)
    assert speed_limit_ratio(wrote, 48.0) > MAX_SPEED_LIMIT_RATIO
    ours = DeviceSpec("my card", None, "gpu", None, None, None, 12.0, None, None, source="mine")
    as_gpu, as_cpu = (
        speed_limit_ratio(_sample(device=DeviceSpec("mine", None, kind, 1.0, None, 1e9, None, None, None, "mine")), 1.0)
        for kind in ("gpu", "cpu")
    )
    assert as_gpu == pytest.approx(2.1 * as_cpu), "a processor runs faster than its base clock"
    assert speed_limit_ratio(_sample(device=ours), 1e-6) == 0


def test_a_processors_peak_comes_from_what_its_host_observed(tmp_path: Path) -> None:
    seen = DeviceObserved(
        hardware="cpu", backend="pytorch", available=True, device_id=CPU_ID, name=CPU, cores=8, clock_max_mhz=3000.0
    )
    target = Target("cpu", "pytorch", CPU_ID, CPU)

    def spec(home: Path, device: DeviceObserved) -> DeviceSpec:
        reader = Reader(world(home, [device, result(MODELS[0], "cpu", 1, provenance="imported")]))
        return device_spec_for(target, {d.target: d for d in observed_devices(reader) if d.vector_bits or d.cores})

    wide = spec(tmp_path / "a", seen.model_copy(update={"vector_bits": 512}))
    assert wide.peak_fp32_tflops == pytest.approx(8 * 3e9 * 16 * 4 / 1e12)
    assert spec(tmp_path / "b", seen).peak_fp32_tflops is None


def test_what_was_measured_on_a_processor_stays_when_the_host_gets_another(tmp_path: Path) -> None:
    settings = world(tmp_path)
    before = load_training_set(Reader(settings))
    assert {sample.memory_mib for sample in before.measured} == {32_768.0}
    other = {"device_id": "cpu-other", "name": "Other CPU", "cores": 4, "memory_mib": 16_384.0}
    append(settings, [device.model_copy(update=other) for device in devices() if device.available])
    reader = Reader(settings)
    assert {device.target.device_id for device in observed_devices(reader) if device.available} == {"cpu-other"}
    assert load_training_set(reader) == before


def test_an_undescribed_device_has_its_kind_and_nothing_else() -> None:
    nobody = device_spec_for(Target("rocm", "pytorch", "card-7", "Some card"), {})
    assert (nobody.name, nobody.kind, nobody.peak_fp32_tflops, nobody.memory_gib) == ("card-7", "gpu", None, None)
    published = device_spec_for(Target("cuda", "pytorch", "cuda-0", "NVIDIA L4"), {})
    assert published is L4


def test_equal_samples_are_one_key_whatever_object_stands_for_unknown() -> None:
    """A NaN is unequal to itself, and two of them hash differently; Python 3.13 compares dataclasses field by field."""

    def make_unknown() -> Sample:
        unknown = {name: float("nan") for name in ("size", "bandwidth", "version", "latency_ms", "memory_peak_mib")}
        return replace(_sample(), **unknown)

    assert make_unknown() == make_unknown()
    assert {make_unknown(): 1} == {make_unknown(): 1}
    assert len({make_unknown() for _ in range(3)}) == 1
    assert make_unknown() != replace(make_unknown(), version=204.0)
    assert make_unknown() != "no case"
    measured = replace(make_unknown(), latency_ms=5.0)
    assert measured != make_unknown()
    assert measured.configuration() == make_unknown().configuration()


def test_samples_of_an_artifact_equal_the_stored_ones() -> None:
    sample = replace(_sample(), latency_ms=5.0, size=math.nan)
    stored = sample_io.write_samples([sample, sample], (), FittedEnsembles(None, {}, np.empty(0), np.empty(0)))
    loaded, _, _ = sample_io.read_samples(stored)
    assert loaded == [sample, sample]
    assert len({*loaded, sample}) == 1


def test_only_usable_figures_are_learned_from(tmp_path: Path) -> None:
    nameless = Model("legacy-thing", "unknown", "text", 1, 1.0)
    bert = MODELS[0]
    failed: dict[str, Any] = {"status": "failed", "latency_mean_ms": None, "memory_peak_mib": None}
    settings = world(
        tmp_path,
        [
            described(bert),
            result(bert, "cpu", 1, provenance="imported"),
            result(bert, "cpu", 1, provenance="imported", seed=1, scale=3.0),
            result(bert, "cpu", 1, provenance="imported", seed=2, scale=9.0),
            result(bert, "cpu", 2, provenance="simulated"),
            result(bert, "cpu", 3, provenance="suspect"),
            result(bert, "cpu", 4, provenance="emulated"),
            result(bert, "cpu", 5, provenance="imported", sequence_length=None),
            result(bert, "cpu", 6, provenance="imported", mode="training"),
            result(bert, "cpu", 7, provenance="imported", sequence_length=100_000),
            result(nameless, "cpu", 1, provenance="imported"),
            result(bert, "cpu", 9, provenance="imported", device_id=None, device_name=None),
            result(bert, "cpu", 8, provenance="imported", latency_mean_ms=None, memory_peak_mib=9.0),
            result(bert, "cpu", 64, provenance="imported", failure_class="killed", reason="SIGKILL", **failed),
            # Tried again in vain, it is the same cell, counted once as one that ran is.
            result(bert, "cpu", 64, provenance="imported", failure_class="killed", reason="SIGKILL", **failed),
            result(bert, "cpu", 64, provenance="imported", failure_class="out_of_memory", reason="full", **failed),
            # It ran another time, whatever this failure says of its memory.
            result(bert, "cpu", 1, provenance="imported", reason="noise", **(failed | {"memory_peak_mib": 9.0})),
        ],
    )
    training_set = load_training_set(Reader(settings))
    assert [(sample.mode, sample.batch_size) for sample in training_set.measured] == [("inference", 1), ("training", 6)]
    # Several runs of one configuration are one sample: their median.
    assert training_set.measured[0].latency_ms == pytest.approx(3 * 58, rel=0.1)
    assert [(sample.batch_size, kind) for sample, kind in training_set.failed] == [(64, "out_of_memory")]
    assert training_set.skipped == {
        "cost of the model, or the length it was asked for at, unknown": 2,
        "device not named": 1,
        "sequence length beyond what the model reads": 1,
    }


def test_a_model_whose_file_states_its_cost_keeps_the_family_of_its_results(tmp_path: Path) -> None:
    """Queries name the same families, so `swinv2` is no unseen family beside `swin`."""
    swin = Model("swinv2-tiny", "swin", "vision", 28_000_000, 4.5)
    stated = {"model": "swinv2_tiny", "parameters_millions": 28, "gmacs": 6, "macts": 28, "image_size": 224}
    published = result(swin, "cpu", 1, provenance="imported", sequence_length=None, original=stated)
    otherwise = {**stated, "model": "swin-v2-tiny-float", "gmacs": None}
    of_another_file = result(swin, "cpu", 2, provenance="imported", sequence_length=None, original=otherwise)
    of_another_size = of_another_file.model_copy(update={"original": {**otherwise, "image_size": 160}})
    settings = world(tmp_path, [published, of_another_file, of_another_size])
    first, second = load_training_set(Reader(settings)).measured
    assert {(sample.model, sample.family) for sample in (first, second)} == {("swinv2_tiny", "swin")}
    assert first.work.flops / first.batch_size == second.work.flops / second.batch_size, "found by the model's id"


def test_passes_that_waited_for_their_host_teach_nothing_of_the_gpu(tmp_path: Path) -> None:
    """bert-base has some 300 operators for all that is known here, which a host issues in 8 ms, a slow one in 20."""
    bert = MODELS[0]
    measured = [
        payload
        for batch, ms in ((1, 7.0), (2, 15.0), (64, 40.0))
        for payload in (
            result(bert, "cuda", batch, device="NVIDIA L4", scale=ms / latency_of(bert, "cuda", batch)),
            verified(bert, "cuda", batch),
        )
    ]
    # Published figures are of batches that fill the device; a processor is its own host.
    published = result(bert, "cuda", 8, device="NVIDIA T4", provenance="imported", scale=0.5)
    own = [result(bert, "cpu", 1, scale=0.1), verified(bert, "cpu", 1)]
    training_set = load_training_set(Reader(world(tmp_path, [described(bert), *measured, published, *own])))
    assert {(s.hardware, s.batch_size) for s in training_set.measured} == {("cuda", 64), ("cuda", 8), ("cpu", 1)}
    assert training_set.skipped == {"so short that the host set its time": 2}


@pytest.mark.parametrize(
    ("features", "bits"),
    [
        ("avx2 avx512f fma", 512),
        ("avx avx2 fma", 256),
        ("avx avx2", None),
        ("asimd", 128),
        ("asimd sve", None),
        ("", None),
    ],
)
def test_vector_width_from_the_instruction_sets(
    monkeypatch: pytest.MonkeyPatch, features: str, bits: int | None
) -> None:
    monkeypatch.setattr(cpu, "cpu_facts", lambda: {"name": "x", "features": features})
    assert cpu.vector_bits() == bits


def test_a_packs_figure_that_somebody_imported_too_counts_once(tmp_path: Path) -> None:
    bert = MODELS[0]
    published = result(bert, "cpu", 1, provenance="imported")
    settings = world(tmp_path, [described(bert), published])
    EventLog.open(settings).append([Event.of(published, source="pack:published@1")])
    EventLog.open(settings).append([Event.of(result(bert, "cpu", 2, provenance="imported"), source="test")])
    refresh(settings)
    assert Reader(settings).rows("SELECT count(*) AS n FROM usable_results") == [{"n": 3}]
    [one, two] = sorted(load_training_set(Reader(settings)).measured, key=lambda sample: sample.batch_size)
    # Published once is published: it says nothing of the devices of the log's own users.
    assert (one.batch_size, one.own, two.batch_size, two.own) == (1, False, 2, True)
    runs = {cell.batch_size: summary.runs for cell, summary in load_evidence(Reader(settings)).summaries.items()}
    assert runs == {1: 1, 2: 1}
