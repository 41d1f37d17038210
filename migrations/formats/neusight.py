"""NeuSight's whole models: milliseconds of a forward pass or a training step per model, batch, length and GPU.

PyTorch, float32. A training step is forward and backward without an optimizer. `option` names another way of running:
`fusion`, or a split over four GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import rows_of, share_of_rows, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_MODES = {"inf": "inference", "train": "training"}
_MODELS = {
    "bert_large": ("bert-large", "bert"),
    "gpt2_large": ("gpt2-large", "gpt2"),
    "gpt3_xl": ("gpt3-xl", "gpt2"),
    "gpt3_27": ("gpt3-2.7b", "gpt2"),
    "opt_13": ("opt-1.3b", "opt"),
    "switchxl4": ("switch-xl-4", "switch_transformers"),
}
"""Model and family by the source's names; GPT-3 is built as a larger GPT-2."""
_SPLIT = re.compile(r"[dtp]p(\d+)")


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, "model", "device", "mode", "option", "latency_ms", "forward_ms")


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for pointer, row in rows_of(document):
        device, option = text_of(row["device"]), text_of(row.get("option")) or None
        split = _SPLIT.match(option) if option else None
        device_name = f"{split[1]} x {device}" if split else device
        model, family = _MODELS.get(str(row["model"]), (row["model"], None))
        hardware = hardware_named(device)
        mode = _MODES.get(str(row["mode"]))
        cell = CellDraft(
            document.source_path,
            pointer,
            NamesInFile((model,), device, family=family, precision="float32", runtime="pytorch"),
            machine=Machine(
                device_names={hardware: device_name} if hardware and device_name else {},
                settings={"compiler": None if split else option, "parallel": option if split else None},
            ),
            original={"model": row["model"], "option": option},
        )
        figures: dict[str, Any] = {
            "mode": mode or "inference",
            "batch_size": count(row.get("batch_size"), at_least=1),
            "sequence_length": count(row.get("sequence_length"), at_least=1),
        }
        latency = quantity(row["latency_ms"]) or None
        if latency is None or mode is None:
            yield cell.result("failed", figures, reason=f"no figure, or an unknown mode {row['mode']!r}")
            continue
        figures["latency_mean_ms"] = latency
        if mode == "training":
            figures |= {name: quantity(row.get(name)) or None for name in ("forward_ms", "backward_ms")}
        yield cell.result("ok", figures, units={"latency_ms": "ms per batch"})
