"""Measures real models on this machine and writes the figures in the legacy file formats, as `legacy/` ships them.

Run from the repository root with nothing else running: `python samples/measure_legacy_samples.py samples/legacy`.
Random weights, float32, two threads; every model and runtime has a process of its own. Cells too slow for fifteen
samples are left out, not estimated. One file repeats an old lie with real figures: CPU runs under other names. The
invented and broken samples are not made here: see `legacy/README.md`.
"""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

import onnxruntime
import openvino
import torch
import transformers

from accel_platform.reports import comparison_csv
from accel_platform.workloads.build import build_model
from accel_platform.workloads.inputs import make_inputs
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

Json = dict[str, Any]
Pass = Callable[[], Any]
THREADS = 2
WARMUP, SAMPLES_MIN, SAMPLES_MAX = 3, 15, 30
TARGET_S, SLOWEST_PASS_S, SLOWEST_FIRST_PASS_S = 0.7, 0.3, 1.0
BATCHES = (1, 2, 4, 8)
TOLERANCE = 1e-3
"""A runtime whose outputs differ from PyTorch's by more than this, relative to their size, is not written down."""

A1_TEXT = ("prajjwal1/bert-mini", "distilbert-base-uncased", "google/electra-small-discriminator", "roberta-base")
A1_GENERATION = ("distilgpt2", "google/t5-efficient-tiny")
A1_VISION = ("microsoft/resnet-50", "facebook/deit-tiny-patch16-224", "facebook/convnext-tiny-224")
C2 = ("openai/clip-vit-base-patch32", "facebook/wav2vec2-base", "openai/whisper-tiny", "gpt2")
DOCUMENTED = (
    ("t5-small", "cpu"),
    ("facebook/opt-125m", "cpu"),
    ("facebook/bart-base", "cpu"),
    ("prajjwal1/bert-small", "openvino"),
    ("distilgpt2", "onnxruntime"),
)
CSV_594 = (
    ("prajjwal1/bert-medium", "pytorch"),
    ("albert-base-v2", "pytorch"),
    ("microsoft/swin-tiny-patch4-window7-224", "pytorch"),
    ("microsoft/resnet-18", "pytorch"),
    ("WinKawaks/vit-small-patch16-224", "pytorch"),
    ("sentence-transformers/all-MiniLM-L6-v2", "openvino"),
    ("microsoft/resnet-18", "openvino"),
    ("prajjwal1/bert-mini", "onnxruntime"),
    ("facebook/deit-tiny-patch16-224", "onnxruntime"),
)
RELABELLED = "prajjwal1/bert-small"
FAILING = ("prajjwal1/bert-tiny", "prajjwal1/bert-mini", "roberta-base")


@dataclass(frozen=True)
class Cell:
    """One measured cell. Times are of one whole batch, in seconds."""

    batch: int
    length: int | None
    shape: tuple[int, ...]
    latencies_s: list[float]
    total_s: float
    resident_mib: float
    peak_mib: float
    finished: datetime


@dataclass(frozen=True)
class Measured:
    """One model on one runtime."""

    name: str
    spec: ModelSpec
    runtime: str
    started: datetime
    load_s: float
    compile_s: float | None
    loaded_mib: float
    cells: list[Cell]


def measure(name: str, runtime: str) -> Measured:
    """All cells of a model in a child process, so that its memory peaks are its own."""
    context = multiprocessing.get_context("fork")  # the libraries are imported once, in the parent
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, name, runtime))
    child.start()
    send.close()
    try:
        measured: Measured = receive.recv()
    except EOFError:
        sys.exit(f"{name} on {runtime}: the measuring process died; see its message above.")
    child.join()
    print(f"{name:45} {runtime:12} {len(measured.cells):3} cells", file=sys.stderr, flush=True)
    return measured


def _child(send: Connection, name: str, runtime: str) -> None:
    torch.set_num_threads(THREADS)
    warnings.simplefilter("ignore")
    spec = resolve_model(name)
    started, clock = _now(), time.perf_counter()
    model = build_model(spec)
    load_s = time.perf_counter() - clock
    loaded_mib = _resident_mib()
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        clock = time.perf_counter()
        prepare = _RUNTIMES[runtime](spec, model, Path(folder))
        compile_s = None if runtime == "pytorch" else time.perf_counter() - clock
        cells = list(_cells(spec, prepare))
    send.send(Measured(name, spec, runtime, started, load_s, compile_s, loaded_mib, cells))


def _cells(spec: ModelSpec, prepare: Callable[[Mapping[str, Any]], Pass | None]) -> Iterator[Cell]:
    lengths: tuple[int | None, ...] = (32, 128, 256) if spec.modality == "text" else (None,)
    slowest_s = SLOWEST_FIRST_PASS_S
    for batch, length in sorted(((b, s) for b in BATCHES for s in lengths), key=lambda c: c[0] * (c[1] or 1)):
        inputs = make_inputs(spec, batch_size=batch, sequence_length=length)
        run = prepare(inputs)
        if run is None:
            print(f"{spec.model_id} b{batch} s{length}: outputs differ from PyTorch's, left out", file=sys.stderr)
            continue
        warmup = [_timed(run) for _ in range(WARMUP)]
        if min(warmup) > slowest_s:
            return  # the next cells are larger still
        slowest_s = SLOWEST_PASS_S
        begun, latencies = time.perf_counter(), list[float]()
        while len(latencies) < SAMPLES_MAX:
            if len(latencies) >= SAMPLES_MIN and time.perf_counter() - begun > TARGET_S:
                break
            latencies.append(_timed(run))
        total_s = time.perf_counter() - begun
        shape = next(iter(inputs.values())).shape
        yield Cell(batch, length, shape, latencies, total_s, _resident_mib(), _peak_mib(), _now())


def _timed(run: Pass) -> float:
    clock = time.perf_counter()
    run()
    return time.perf_counter() - clock


def _pytorch(_spec: ModelSpec, model: torch.nn.Module, _folder: Path) -> Callable[[Mapping[str, Any]], Pass]:
    def prepare(inputs: Mapping[str, Any]) -> Pass:
        tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
        return lambda: model(**tensors)

    return prepare


def _onnxruntime(spec: ModelSpec, model: torch.nn.Module, folder: Path) -> Callable[[Mapping[str, Any]], Pass | None]:
    path = _export(spec, model, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return _checked(model, lambda inputs: lambda: session.run(None, dict(inputs))[0])


def _openvino(spec: ModelSpec, model: torch.nn.Module, folder: Path) -> Callable[[Mapping[str, Any]], Pass | None]:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(openvino.convert_model(_export(spec, model, folder)), "CPU", settings)
    request = compiled.create_infer_request()
    return _checked(model, lambda inputs: lambda: request.infer(dict(inputs))[0])


_RUNTIMES: dict[str, Callable[[ModelSpec, torch.nn.Module, Path], Callable[[Mapping[str, Any]], Pass | None]]] = {
    "pytorch": _pytorch,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}


def _checked(
    model: torch.nn.Module, prepare: Callable[[Mapping[str, Any]], Pass]
) -> Callable[[Mapping[str, Any]], Pass | None]:
    """Hand out a pass only where its first output equals PyTorch's."""

    def checked(inputs: Mapping[str, Any]) -> Pass | None:
        run = prepare(inputs)
        expected = model(**{name: torch.from_numpy(values) for name, values in inputs.items()})[0]
        error = (torch.from_numpy(run()) - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        return run if float(error) < TOLERANCE else None

    return checked


def _export(spec: ModelSpec, model: torch.nn.Module, folder: Path) -> Path:
    """The model as ONNX with free batch and length."""
    inputs = make_inputs(spec, batch_size=2, sequence_length=32 if spec.modality == "text" else None)
    names = list(inputs)

    class ByPosition(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.model(**dict(zip(names, tensors, strict=True)))[0]
            return output

    free = {name: {0: "batch", 1: "length"} if spec.modality == "text" else {0: "batch"} for name in names}
    tensors = tuple(torch.from_numpy(values) for values in inputs.values())
    with contextlib.redirect_stdout(sys.stderr):
        torch.onnx.export(
            ByPosition().eval(), tensors, folder / "m.onnx", dynamo=False, input_names=names, dynamic_axes=free
        )
    return folder / "m.onnx"


def _now() -> datetime:
    """UTC without saying so: none of the old formats names a zone."""
    return datetime.now(UTC).replace(tzinfo=None)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 7) for value in values]


def hardware_benchmark(models: Mapping[str, list[Measured]]) -> Json:
    """Form A1: seconds, no precision, one entry per family, model and hardware."""
    first = min(m.started for found in models.values() for m in found)
    benchmarks: Json = {}
    for family, found in models.items():
        for measured in found:
            results = {}
            for cell in measured.cells:
                shape = f"_seq_{cell.length}" if cell.length else "_img_224x224"
                results[f"batch_{cell.batch}{shape}"] = {
                    "status": "completed",
                    "latencies": _rounded(cell.latencies_s),
                    "avg_latency": round(fmean(cell.latencies_s), 7),
                    "throughput": round(cell.batch * len(cell.latencies_s) / cell.total_s, 5),
                    "total_time": round(cell.total_s, 6),
                    "iterations": len(cell.latencies_s),
                }
            benchmarks.setdefault(family, {})[measured.name] = {
                "cpu": {
                    "status": "completed",
                    "model_name": measured.name,
                    "model_class": "AutoModel",
                    "family": family,
                    "hardware": "cpu",
                    "benchmark_results": results,
                    "timestamp": measured.started.isoformat(),
                    "model_load_time": round(measured.load_s, 6),
                    "performance_summary": {"memory": {}},
                }
            }
    return {
        "timestamp": first.strftime("%Y%m%d_%H%M%S"),
        "system_info": {
            "platform": platform.platform(terse=True),
            "python_version": platform.python_version(),
            "processor": _cpu_name(),
            "hostname": "sample-host",
            "architecture": platform.machine(),
            "cpu_count_logical": os.cpu_count(),
            "torch_version": torch.__version__,
            "transformers_version": transformers.__version__,
            "cuda_available": False,
            "mps_available": False,
        },
        "hardware_info": {"cpu": True, "cuda": False, "mps": False, "rocm": False},
        "benchmarks": benchmarks,
    }


def relabelled(runs: Mapping[str, Measured]) -> Json:
    """Form A1 as the old runner filled it in: every run was on the CPU, whatever hardware it is filed under."""
    value = hardware_benchmark({"embedding": [runs["cpu"]]})
    entries = value["benchmarks"]["embedding"][runs["cpu"].name]
    for hardware, measured in runs.items():
        own = hardware_benchmark({"embedding": [measured]})["benchmarks"]["embedding"][measured.name]["cpu"]
        entries[hardware] = {**own, "hardware": hardware}
    value["system_info"] |= {"cuda_available": True, "cuda_devices": [{"name": "invented GPU"}]}
    value["hardware_info"] |= {"cuda": True, "openvino": True}
    return value


def failures(names: Sequence[str], length: int) -> Iterator[Json]:
    """Form F4: what each model really says to more tokens than it has positions for."""
    for name in names:
        model, ids = build_model(resolve_model(name)), torch.full((1, length), 10)
        try:
            model(input_ids=ids)
        except (IndexError, RuntimeError) as error:
            when = _now().isoformat()
            row = {"model_id": name, "hardware": "cpu", "batch_size": 1, "sequence_length": length}
            yield {**row, "timestamp": when, "error": str(error).splitlines()[0]}


def direct_benchmark(measured: Measured) -> Json:
    """Form C2: milliseconds, one shape per batch size, memory resident at the end of each."""
    cells = [c for c in measured.cells if c.length in (None, 128)]
    return {
        "model": measured.name,
        "hardware": "cpu",
        "success": True,
        "batch_results": {
            str(c.batch): {
                "success": True,
                "batch_size": c.batch,
                "avg_latency_ms": round(fmean(c.latencies_s) * 1000, 5),
                "throughput_items_per_second": round(c.batch / fmean(c.latencies_s), 5),
                "memory_mb": c.resident_mib,
                "latencies_ms": [round(s * 1000, 4) for s in c.latencies_s],
                "device": "cpu",
                "timestamp": c.finished.isoformat(),
            }
            for c in cells
        },
        "timestamp": measured.started.isoformat(),
    }


def documented(measured: Measured, device: str) -> Json:
    """The documented form: milliseconds, `b{B}_s{S}` cells, `latency_ms` a list."""
    cells: Json = {}
    for c in measured.cells:
        ms = [round(s * 1000, 4) for s in c.latencies_s]
        cells[f"b{c.batch}_s{c.length}"] = {
            "latency_ms": ms,
            "latency_mean_ms": round(fmean(ms), 5),
            "latency_median_ms": round(median(ms), 5),
            "latency_min_ms": min(ms),
            "latency_max_ms": max(ms),
            "latency_std_ms": round(stdev(ms), 5),
            "throughput_samples_per_sec": round(c.batch * 1000 / fmean(ms), 5),
            "first_token_latency_ms": None,
        }
    loaded = {
        "load_time_seconds": round(measured.load_s + (measured.compile_s or 0), 6),
        "memory_usage_mb": measured.loaded_mib,
        "peak_memory_mb": max(c.peak_mib for c in measured.cells),
    }
    return {
        "model_id": measured.name,
        "device": device,
        "precision": "fp32",
        "architecture_type": measured.spec.architecture,
        "task": "feature-extraction",
        "device_info": {"name": _cpu_name(), "threads": THREADS},
        "timestamp": measured.started.isoformat(),
        "load_results": loaded,
        "batch_results": cells,
        "summary": {"cells": len(cells)},
    }


def measurement_rows(measured: Measured) -> Iterator[Json]:
    """Rows of the 594 CSV; a percentile without samples enough stays empty, as do unknown fields."""
    for c in measured.cells:
        ms = [s * 1000 for s in c.latencies_s]
        figures = {
            "latency_p50_ms": median(ms),
            "latency_p95_ms": quantiles(ms, n=20)[-1],
            "latency_mean_ms": fmean(ms),
            "latency_std_ms": stdev(ms),
            "latency_min_ms": min(ms),
            "latency_max_ms": max(ms),
            "throughput_ips": c.batch * 1000 / fmean(ms),
            "memory_mb": c.peak_mib,
        }
        compile_ms = "" if measured.compile_s is None else round(measured.compile_s * 1000, 3)
        yield {
            "timestamp": c.finished.isoformat(sep=" ", timespec="seconds"),
            "framework": measured.runtime,
            "model": measured.name,
            "device": _cpu_name(),
            "device_type": "cpu",
            "batch_size": c.batch,
            "input_shape": "x".join(map(str, c.shape)),
            "dtype": "float32",
            "warmup_iterations": WARMUP,
            "measurement_iterations": len(ms),
            **{name: round(value, 4) for name, value in figures.items()},
            "compilation_time_ms": compile_ms,
            "notes": f"{THREADS} threads",
        }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def main(target: Path) -> None:
    """Measure everything and write the files under `target`."""
    runs = {family: [measure(name, "pytorch") for name in names] for family, names in _A1_FAMILIES.items()}
    _write(target / "hardware-benchmark/benchmark_results.json", hardware_benchmark(runs))
    for name in C2:
        measured = measure(name, "pytorch")
        stem = f"direct_benchmark_{name.replace('/', '_')}_cpu_{measured.started:%Y%m%d_%H%M%S}"
        _write(target / f"direct-benchmark/{stem}.json", direct_benchmark(measured))
    for name, device in DOCUMENTED:
        measured = measure(name, "pytorch" if device == "cpu" else device)
        stem = f"{name.replace('/', '_')}_{device}_fp32_{measured.started:%Y%m%d_%H%M%S}"
        _write(target / f"documented/{stem}.json", documented(measured, device))
    rows = [row for name, runtime in CSV_594 for row in measurement_rows(measure(name, runtime))]
    _write_csv(target / "csv/benchmark_runs.csv", comparison_csv.COLUMNS, rows)
    again = {hardware: measure(RELABELLED, "pytorch") for hardware in ("cpu", "cuda", "openvino")}
    _write(target / "relabelled/benchmark_results.json", relabelled(again))
    failed = list(failures(FAILING, length=1024))
    _write_csv(target / "csv/suite_failures.csv", list(failed[0]), failed)


_A1_FAMILIES = {"embedding": A1_TEXT, "text_generation": A1_GENERATION, "vision": A1_VISION}


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Json]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _write(path: Path, value: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
