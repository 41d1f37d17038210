"""llama.cpp's `llama-batched-bench`: several sequences at once, seconds; JSON Lines, or the table it prints.

`pp` and `tg` are tokens of prompt and answer of each sequence, `pl` how many sequences run together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import device_in, hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import cells_of_markdown, pick, rows_of, share_of_rows, strays_of
from migrations.normalize.units import MS_PER_S, count, number, quantity, scaled
from migrations.sources.documents import Document

_NEEDED = ("pp", "tg", "pl", "t_pp", "t_tg", "t")
_COLUMNS = {
    "PP": "pp", "TG": "tg", "B": "pl", "N_KV": "n_kv", "T_PP s": "t_pp", "S_PP t/s": "speed_pp", "T_TG s": "t_tg",
    "S_TG t/s": "speed_tg", "T s": "t", "S t/s": "speed",
}  # fmt: skip
_SETTINGS = ("n_batch", "n_ubatch", "n_gpu_layers", "n_threads", "n_threads_batch", "flash_attn", "is_pp_shared")
_MODEL = re.compile(r"(?:-m|--model)\s+(?P<path>\S+\.gguf)|loaded meta data .* from (?P<loaded>\S+\.gguf)")
_QUANTIZED = re.compile(r"[-._](I?Q\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)
_DEVICE = re.compile(r"\s*Device \d+: (?P<name>[^,]+),")
_BACKEND = re.compile(r"ggml_(?P<name>cuda|vulkan|metal|sycl|opencl|hip)_init", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where rows have the times of prompt, answer and both, or the table has its header."""
    if document.kind == "text":
        return (
            0.95
            if any("T_PP s" in line and set(cells_of_markdown(line)) >= set(_COLUMNS) for line in document.value)
            else 0.0
        )
    return 0.95 * share_of_rows(document, *_NEEDED)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row: a whole generation of each sequence of the batch."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, row, notes in _printed(document.value) if document.kind == "text" else _lines(document):
        whole, prompt, answer = (scaled(row.get(name), MS_PER_S) for name in ("t", "t_pp", "t_tg"))
        made = count(row.get("tg"), at_least=1)
        size = {
            "mode": "generation" if made else "inference",
            "batch_size": count(row.get("pl"), at_least=1),
            "sequence_length": count(row.get("pp"), at_least=1),
        }
        cell = _cell(document.source_path, pointer, row, notes)
        if not whole:
            yield cell.result("failed", size, reason="the row holds no time")
            continue
        figures = {
            "output_tokens": made,
            "latency_mean_ms": whole,
            "prefill_ms": prompt,
            "time_per_output_token_ms": answer / made if answer and made else None,
        }
        yield cell.result("ok", {**size, **figures}, units={"t": "s", "t_pp": "s", "t_tg": "s", "speed": "tokens/s"})


def _lines(document: Document) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the rows with all other lines, which say nothing where they are of several models, because their places
    are not known."""
    notes = "\n".join(note.content for note in document.notes)
    models = {found["path"] or found["loaded"] for found in _MODEL.finditer(notes)}
    yield from ((pointer, row, notes if len(models) <= 1 else "") for pointer, row in rows_of(document))


def _printed(lines: list[str]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the rows of tables with the lines before them."""
    header: list[str] = []
    for index, line in enumerate(lines):
        cells = cells_of_markdown(line)
        if set(cells) >= set(_COLUMNS):
            header = cells
        elif header and len(cells) == len(header) and number(cells[0]) is not None:
            row = {_COLUMNS.get(name, name): cell for name, cell in zip(header, cells, strict=True)}
            yield child("", index), row, "\n".join(lines[:index])


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match, which in a log of several runs is of the newest; None without any."""
    return next(reversed(list(pattern.finditer(text))), None)


def _cell(source_path: str, pointer: str, row: Mapping[str, Any], notes: str) -> CellDraft:
    found, device, backend = (_last(pattern, notes) for pattern in (_MODEL, _DEVICE, _BACKEND))
    file = (found["path"] or found["loaded"]) if found else None
    stem = file.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf") if file else None
    quantized = _QUANTIZED.search(stem) if stem else None
    if stem and quantized:
        stem = stem[: quantized.start()] or stem
    place = None if backend else hardware_part(source_path)
    text = backend["name"] if backend else spaced(place) if place else NOT_STATED
    hardware = hardware_named(text)
    name = device["name"].strip() if device else device_in(place)
    model_hint = None if stem else model_part(source_path)
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((stem or model_hint,), text, precision=quantized[1] if quantized else None, runtime="llama.cpp"),
        machine=Machine(
            device_names={hardware: name} if hardware and name else {},
            threads=count(row.get("n_threads"), at_least=1),
            settings={key: row.get(key) for key in _SETTINGS if pick(row, key) is not None},
        ),
        original={
            "model": file or model_hint,
            "said_by_path": {"model": model_hint, "hardware": place} if model_hint or place else None,
            "stated": {
                f"{key}_tokens_per_s": rate
                for key in ("speed_pp", "speed_tg", "speed")
                if (rate := quantity(row.get(key)))
            },
        },
    )
