"""llama.cpp's `llama-bench` as JSON, lines or CSV: nanoseconds per repetition of prompt, generation, or both.

A prompt test (`n_prompt` alone) is one forward pass over so many tokens. A generation test (`n_gen`) makes so many
tokens in turn behind `n_depth` or `n_prompt` tokens. It runs one sequence: `n_batch` counts tokens.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accel_platform.hardware.device_names import with_count
from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import object_of, pick, rows_of, share_of_rows, strays_of, text_of
from migrations.normalize.units import NS_PER_MS, count, quantity, samples_ns, scaled
from migrations.sources.documents import Document

_WRAPPED = "bench_raw"
_INSERT = re.compile(
    r"INSERT INTO \w+ \((?P<names>[\w, ]*\bn_prompt\b[\w, ]*)\) VALUES \((?P<values>.*)\);?", re.IGNORECASE
)
_UNITS = {"avg_ns": "ns", "samples_ns": "ns", "avg_ts": "tokens/s"}
_FLAGS = ("cuda", "hip", "rocm", "metal", "vulkan", "sycl", "opencl", "kompute")
_QUANTIZED = re.compile(r"[-._ ]((?:I?Q\d\w*)|(?:MXFP4\w*)|(?:BF16|F16|F32))(?:[-._ ]|$)", re.IGNORECASE)
_SETTINGS = (
    "n_batch", "n_ubatch", "type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload",
    "flash_attn", "tensor_split", "use_mmap", "embeddings", "no_op_offload", "n_depth", "devices", "cpu_mask", "poll",
    "tensor_buft_overrides", "no_host", "load_mode", "fit_target", "fit_min_ctx",
)  # fmt: skip
_GENERIC = ("", "ggml-model", "model", "main", "ggml")
"""File names that converters give whatever the model."""
_ABOUT = ("model_filename", "model_type", "model_size", "model_n_params", "backends", "gpu_info", "cpu_info")


def detect(document: Document) -> float:
    """Return high confidence where rows have prompt and generation lengths and times in nanoseconds, or most carry such
    a row.
    """
    if document.kind == "text":
        return 0.95 if any(_INSERT.fullmatch(line.strip()) for line in document.value) else 0.0
    if share_of_rows(document, _WRAPPED) >= 0.5:
        inner = [object_of(row.get(_WRAPPED)) for _, row in rows_of(document)]
        return 0.95 if any({"n_prompt", "n_gen", "avg_ns"} <= row.keys() for row in inner) else 0.0
    return 0.95 * share_of_rows(document, "n_prompt", "n_gen", "avg_ns")


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, row in _inserted(document.value) if document.kind == "text" else rows_of(document):
        yield _record(document.source_path, pointer, _unwrapped(row))


def _inserted(lines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of its SQL output."""
    for number, line in enumerate(lines):
        if found := _INSERT.fullmatch(line.strip()):
            values = next(csv.reader([found["values"]], quotechar="'", skipinitialspace=True), [])
            names = [name.strip() for name in found["names"].split(",")]
            if len(values) == len(names):
                yield child("", number), dict(zip(names, values, strict=True))


def _unwrapped(row: dict[str, Any]) -> dict[str, Any]:
    """Return the tool's own row from a script's row with other readings."""
    inner = row.get(_WRAPPED)
    if not isinstance(inner, dict):
        return row
    watched = {key: value for key, value in row.items() if key.endswith(("_mib", "_w", "_c")) and value is not None}
    return {**inner, "watched": watched, "build": row.get("build"), "error": row.get("error")}


def _record(source_path: str, pointer: str, row: Mapping[str, Any]) -> Record | RefusedCell:
    prompt, made = count(row.get("n_prompt")), count(row.get("n_gen"))
    depth = count(row.get("n_depth")) or 0
    samples = samples_ns(_list(row.get("samples_ns")), ns_per_unit=1)
    mean = scaled(row.get("avg_ns"), 1 / NS_PER_MS)
    cell = _cell(source_path, pointer, row, "prompt" if not made else "generation" if not prompt else "both")
    if not samples and not mean:
        return cell.result("failed", {}, reason=text_of(row.get("error")) or "the row holds no time")
    figures: dict[str, Any] = {
        "mode": "generation" if made else "inference",
        "batch_size": 1,
        "sequence_length": count((prompt or 0) + (depth if made else 0), at_least=1),
        "samples_ns": samples,
        "iterations": len(samples) or None,
    }
    if not samples:
        figures |= {"latency_mean_ms": mean, "latency_std_ms": scaled(row.get("stddev_ns"), 1 / NS_PER_MS)}
    if made:
        figures["output_tokens"] = made
        if not prompt and mean:
            figures["time_per_output_token_ms"] = mean / made
    return cell.result("ok", figures, units=_UNITS)


def _cell(source_path: str, pointer: str, row: Mapping[str, Any], test: str) -> CellDraft:
    filename, kind = text_of(row.get("model_filename")), text_of(row.get("model_type"))
    name, precision = _name_and_precision(filename or "", kind)
    gpu, cpu = text_of(row.get("gpu_info")), text_of(row.get("cpu_info"))
    backends = text_of(row.get("backends")) or ",".join(_flags_set(row))
    # A processor's name without any backend is of a build that has none.
    hardware = hardware_of(backends) if backends else "cpu" if cpu else None
    device = cpu if hardware == "cpu" else joint_name((gpu or "").split(", "), is_split=row.get("split_mode") != "none")
    build = text_of(row.get("build_commit"))
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((name, kind), hardware or NOT_STATED, precision=precision, runtime="llama.cpp"),
        times=(row.get("test_time"),),
        machine=Machine(
            host={"cpu": cpu, "gpu": gpu},
            device_names={hardware: device} if hardware and device else {},
            software={"llama.cpp": f"{build} ({row.get('build_number')})"} if build else {},
            threads=count(row.get("n_threads"), at_least=1),
            settings={key: row.get(key) for key in _SETTINGS if pick(row, key) is not None} | {"test": test},
        ),
        original={
            **{key: pick(row, key) for key in _ABOUT},
            "model": filename or kind,
            "hardware": backends or NOT_STATED,
            "n_prompt": count(row.get("n_prompt")),
            "n_gen": count(row.get("n_gen")),
            "n_depth": count(row.get("n_depth")),
            "build": row.get("build"),
            "stated": {"throughput_tokens_per_s": quantity(row.get("avg_ts")), **object_of(row.get("watched"))},
        },
    )


def _name_and_precision(filename: str, kind: str | None) -> tuple[str, str | None]:
    """Return the model's name and the precision of its weights, by the file's name or else by llama.cpp's own words.

    The name has no path, number of a part, or precision.
    """
    stem = filename.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", stem)
    in_stem = _QUANTIZED.search(f"{stem} ")
    found = in_stem or _QUANTIZED.search(f" {kind} ")
    name = stem[: in_stem.start()] if in_stem and in_stem.start() else stem
    if name.casefold() in _GENERIC:
        name = re.sub(r"\s+(?:mostly\s+)?\(?(?:I?Q\d|MXFP4|BF16|F16|F32).*$", "", kind or "")
    return name, found[1] if found else None


def _flags_set(row: Mapping[str, Any]) -> list[str]:
    """Return the backends that an old build names by a flag each."""
    return [flag for flag in _FLAGS if str(row.get(flag)).casefold() in ("true", "1")]


def joint_name(devices: Sequence[str], *, is_split: bool) -> str | None:
    """Return the common name of several devices, over all of which llama.cpp splits a model by default."""
    if len(set(devices)) > 1:
        return ", ".join(devices)
    return with_count(len(devices) if is_split else 1, devices[0]) or None if devices else None


def hardware_of(backends: str) -> str | None:
    """Return the hardware of llama.cpp's backends: `MTL,BLAS` is Metal's, and BLAS alone the processor's."""
    # Only llama.cpp calls Metal so; elsewhere MTL is a processor of Intel's.
    if (named := hardware_named(re.sub(r"\bMTL\d*\b", "Metal", backends))) is not None:
        return named
    return "cpu" if "blas" in backends.casefold() else None


def _list(value: Any) -> Any:
    """Return a list, also from text in a CSV cell."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
