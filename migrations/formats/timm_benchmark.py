"""timm's `benchmark.py`: `infer_*` and `train_*` columns, in CSV or JSON. Step times are milliseconds per batch.

The file names no hardware, precision or version; its name does (`benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv`).
Parameters are in millions, `gmacs` thousand million multiply-adds, `macts` million activations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import hardware_part, parts, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child
from migrations.normalize.row_access import pick, rows_of, share_of_rows
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_UNITS = {"step_time": "ms per batch", "samples_per_sec": "items/s"}
_MODES = {"infer": "inference", "train": "training"}
_SHAPE = ("img_size", "gmacs", "macts")
_DEVICE = re.compile(r"(?<![a-z0-9])((?:rtx|gtx|a|h|v|t|l|mi)?-?\d{2,5}[a-z]*|i\d_\d+\w*|m\d|tpu\w*)$", re.IGNORECASE)
_PYTORCH = re.compile(r"(?<![a-z])pt(?:1(?P<old>\d\d)|(?P<major>[2-9])(?P<minor>\d)(?P<patch>\d))(?!\d)", re.IGNORECASE)
_CUDA = re.compile(r"(?<![a-z])cu(?P<major>\d\d)(?P<minor>\d)(?!\d)", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where rows name a model and a rate of one of the two modes."""
    rate = max(share_of_rows(document, "model", f"{mode}_samples_per_sec") for mode in _MODES)
    return 0.95 if rate and share_of_rows(document, "model") == 1.0 else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row and mode; a row with an error instead of figures is a failure."""
    machine, named = _settings_in_name(document.source_path)
    for pointer, row in rows_of(document):
        modes = [mode for mode in _MODES if pick(row, f"{mode}_samples_per_sec", f"{mode}_step_time") is not None]
        for mode in modes:
            place = pointer if len(modes) == 1 else child(pointer, f"{mode}_samples_per_sec")
            yield _cell(document, place, row, mode, machine, named).result(
                "ok",
                {
                    "mode": _MODES[mode],
                    "batch_size": count(row.get(f"{mode}_batch_size"), at_least=1),
                    "latency_mean_ms": quantity(row.get(f"{mode}_step_time")),
                    "throughput_items_per_s": quantity(row.get(f"{mode}_samples_per_sec")),
                },
                units=_UNITS,
            )
        if not modes:
            reason = str(pick(row, "error", "errors") or "the row holds no figure and no reason")
            yield _cell(document, pointer, row, "infer", machine, named).result("failed", {}, reason=reason)


def _cell(
    document: Document, pointer: str, row: dict[str, Any], mode: str, machine: Machine, named: dict[str, Any]
) -> CellDraft:
    original = {name: pick(row, f"{mode}_{name}", name) for name in _SHAPE}
    shape = {"image_size": original.pop("img_size"), "parameters_millions": pick(row, "param_count"), **original}
    who = NamesInFile((_model(row.get("model")),), named["hardware"], precision=named["precision"], runtime="pytorch")
    return CellDraft(
        document.source_path,
        pointer,
        who,
        machine=machine,
        original={"model": row.get("model"), **shape, "said_by": named["said_by"]},
    )


def _settings_in_name(source_path: str) -> tuple[Machine, dict[str, Any]]:
    """Return device, precision, layout, compiler and versions, as far as the file's name tells."""
    name = (parts(source_path) or [""])[0]
    words = name.casefold().split("-")
    compiler = next((word for word in ("dynamo", "aot", "script", "inductor") if word in words), None)
    place = hardware_part(source_path)
    device = _DEVICE.search(re.sub(r"-(?:dynamo|aot|script|inductor)$", "", name))
    hardware = hardware_named(spaced(place)) if place else None
    if hardware is None and device and re.fullmatch(r"[2345]0[5-9]0\w*", device[1]):
        hardware, place = "cuda", f"cuda, for a GeForce {device[1]}"
    device_name = device[1].removeprefix("rtx") if device else None
    if device_name and device_name.isdigit() and hardware == "cuda":
        device_name = f"RTX {device_name}"
    machine = Machine(
        device_names={hardware: device_name} if hardware and device_name else {},
        software=_versions(name),
        settings={"layout": next((w for w in words if w in ("nchw", "nhwc")), None), "compiler": compiler},
    )
    precision = next((w for w in words if w in ("amp", "fp32", "fp16", "float32", "float16", "bf16", "bfloat16")), None)
    return machine, {"hardware": place or NOT_STATED, "precision": precision, "said_by": name}


def _versions(name: str) -> dict[str, str]:
    """Return versions: `pt113-cu117` is PyTorch 1.13 with CUDA 11.7, `pt240` PyTorch 2.4.0."""
    found = {}
    if pytorch := _PYTORCH.search(name):
        old = pytorch["old"]
        found["pytorch"] = f"1.{old}" if old else f"{pytorch['major']}.{pytorch['minor']}.{pytorch['patch']}"
    if cuda := _CUDA.search(name):
        found["cuda"] = f"{cuda['major']}.{cuda['minor']}"
    return found


def _model(name: Any) -> Any:
    """Return the model name; timm's `test_vit` and the like are models, elsewhere `test_` is a script's prefix."""
    return f"timm/{name}" if isinstance(name, str) and name.startswith("test_") else name
