"""Responses of Ollama's API, which scripts store as they come: nanoseconds of loading, prompt and generation.

A streamed response has its figures in the last of its lines. A prompt that was in the cache has no count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.path_hints import hardware_part, spaced
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import NoResult, Part, refuse
from migrations.normalize.row_access import rows_of, strays_of, text_of
from migrations.normalize.units import NS_PER_MS, count, quantity, samples_ns, scaled
from migrations.sources.documents import Document

_COUNTED = {"model", "total_duration", "eval_count", "eval_duration"}
_LINE = {"model", "created_at", "done"}
_QUANTIZED = re.compile(r"[-_](I?Q\d\w*|MXFP4\w*|BF16|FP16|F16|F32)$", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where all objects are lines of responses, and one at least has the counts."""
    if document.kind not in ("json", "json_lines"):
        return 0.0
    keys = document.key_sets
    counted = sum(number for found, number in keys.items() if found >= _COUNTED)
    return 0.95 if counted and all(found >= _COUNTED or found >= _LINE for found in keys) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per response."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, row in rows_of(document):
        if not row.keys() >= _COUNTED:
            continue  # a piece of the text that the last line of its response counts
        if not count(row["eval_count"]) or not quantity(row["eval_duration"]):
            yield NoResult(pointer, "a response without tokens, or without their time")
        else:
            yield _record(document.source_path, pointer, row)


def _record(source_path: str, pointer: str, row: Mapping[str, Any]) -> Part:
    tag = text_of(row["model"]) or ""
    quantized = _QUANTIZED.search(tag)
    name = tag[: quantized.start()] if quantized else tag
    place = hardware_part(source_path)
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (name.removesuffix(":latest"),),
            spaced(place) if place else NOT_STATED,
            precision=quantized[1] if quantized else None,
            runtime="ollama",
        ),
        times=(row.get("created_at"),),
        original={
            "model": tag,
            "hardware": place or NOT_STATED,
            "said_by_path": {"hardware": place} if place else None,
            "stated": {key: value for key, value in row.items() if key.endswith(("_count", "_duration"))},
        },
    )
    total, load = quantity(row["total_duration"]), quantity(row.get("load_duration")) or 0.0
    made, prompt = count(row["eval_count"], at_least=1), count(row.get("prompt_eval_count"), at_least=1)
    per_token = scaled(row["eval_duration"], 1 / NS_PER_MS / made) if made else None
    figures = {
        "mode": "generation",
        "batch_size": 1,
        "sequence_length": prompt,
        "output_tokens": made,
        "samples_ns": samples_ns([total - load], ns_per_unit=1) if total and total > load else None,
        "iterations": 1,
        "load_ms": scaled(load, 1 / NS_PER_MS) or None,
        "time_to_first_token_ms": scaled(row.get("prompt_eval_duration"), 1 / NS_PER_MS) or None if prompt else None,
        "time_per_output_token_ms": per_token or None,
    }
    return cell.result("ok", figures, units={"*_duration": "ns"})
