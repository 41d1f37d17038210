"""The Hailo model zoo's table: frames/s on a Hailo accelerator at batch size 1 and 8, no latency."""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_RATE = re.compile(r"fps_bs(?P<batch>\d+)|fps \(batch size=?(?P<worded>\d+)\)", re.IGNORECASE)
_ABOUT = {"task": "task", "input_res": "input", "params_m": "parameters_millions", "ops_g": "operations_1e9"}


def detect(document: Document) -> float:
    """Return high confidence where rows name hardware and model and have a frame rate by batch size."""
    named = share_of_rows(document, "hardware", "model")
    return 0.9 * named if any(_RATE.fullmatch(column) for column in document.columns) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row and batch size with a rate.

    The zoo compiles to 8 bits unless stated otherwise, but the table does not say so; the precision is left open.
    """
    rates = {column: found for column in document.columns if (found := _RATE.fullmatch(column))}
    for pointer, row in rows_of(document):
        device = text_of(row.get("hardware"))
        about = {field_name: row.get(name) for name, field_name in _ABOUT.items()}
        for column in rates:
            rate = quantity(pick(row, column))
            cell = CellDraft(
                document.source_path,
                child(pointer, column),
                NamesInFile(
                    (row.get("model"),), f"Hailo {device}" if device and "hailo" not in device.casefold() else device
                ),
                machine=Machine(device_names={"hailo": device} if device else {}),
                original=about,
            )
            batch = count(rates[column]["batch"] or rates[column]["worded"], at_least=1)
            if not rate:
                reason = "the table leaves this rate open" if rate is None else "the table gives 0 frames/s"
                yield cell.result("failed", {"batch_size": batch}, reason=reason)
            else:
                yield cell.result(
                    "ok", {"batch_size": batch, "throughput_items_per_s": rate}, units={column: "items/s"}
                )
