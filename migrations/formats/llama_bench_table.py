"""Default output of `llama-bench`: a Markdown table of tokens/s per test (`pp512`, `tg128`, `pp512 @ d4096`).

The time of a test is derived from its rate and tokens, and marked so. Devices are named in the lines before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.formats.llama_bench import hardware_of, joint_name
from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import cells_of_markdown
from migrations.normalize.units import MS_PER_S, count, quantity
from migrations.sources.documents import Document

_TEST = re.compile(r"(?:pp ?(?P<prompt>\d+))?(?:\+?tg ?(?P<made>\d+))?(?: ?@ ?d(?P<depth>\d+))?")
_NUMBER = re.compile(r"\d+")
_DEVICE = re.compile(r"\s*Device (?P<number>\d+): (?P<name>[^,]+),")
_BUILD = re.compile(r"build: (?P<build>\w+ \(\d+\))")
_PRECISION = re.compile(r"\b(I?Q\d\w*(?: - \w+)?|MXFP4\w*|BF16|F16|F32)\b")
_MODEL = re.compile(r"\s+(?:mostly\s+)?(?:I?Q\d|MXFP4|BF16|F16|F32).*$")
_NOT_SETTINGS = {"model", "size", "params", "backend", "test", "t/s", "threads"}


def detect(document: Document) -> float:
    """Return high confidence where a table has a model, a test and tokens/s."""
    return (
        0.9 if document.kind == "text" and any(_is_header(cells_of_markdown(line)) for line in document.value) else 0.0
    )


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row of every such table in the text."""
    header: list[str] = []
    devices: list[str] = []
    builds = [(number, found["build"]) for number, line in enumerate(document.value) if (found := _BUILD.search(line))]
    for number, line in enumerate(document.value):
        if found := _DEVICE.match(line):
            devices = [*(devices if int(found["number"]) else []), found["name"].strip()]
        elif _BUILD.search(line):
            devices = []  # the run ends, and the next may be of another machine
        cells = cells_of_markdown(line)
        if _is_header(cells):
            header = cells
        elif header and len(cells) == len(header) and not set("".join(cells)) <= set("-: "):
            row = dict(zip(header, cells, strict=True))
            # The tool prints its build below a table.
            build = next((name for at, name in builds if at > number), builds[-1][1] if builds else None)
            yield _record(document.source_path, child("", number), row, devices, build)
        elif not cells:
            header = []


def _record(
    source_path: str, pointer: str, row: dict[str, str], devices: list[str], build: str | None
) -> Record | RefusedCell:
    test = _TEST.fullmatch(row["test"])
    rate = quantity(row["t/s"].partition("±")[0])
    if test is None or not (test["prompt"] or test["made"]):
        return refuse(pointer, "unexpected_shape", f"no test is called {row['test']!r}", row)
    prompt, made, depth = (count(test[name]) or 0 for name in ("prompt", "made", "depth"))
    precision = _PRECISION.search(row["model"])
    hardware = hardware_of(row.get("backend", ""))
    own = [devices[int(number)] for number in _NUMBER.findall(row.get("dev", "")) if int(number) < len(devices)]
    device = joint_name(own or devices, is_split=row.get("sm") != "none")
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (_MODEL.sub("", row["model"]) or row["model"],),
            hardware or NOT_STATED,
            precision=precision[1].replace(" - ", "_") if precision else None,
            runtime="llama.cpp",
        ),
        machine=Machine(
            device_names={hardware: device} if hardware and device else {},
            software={"llama.cpp": build} if build else {},
            threads=count(row.get("threads"), at_least=1),
            settings={
                **{key: value for key, value in row.items() if key not in _NOT_SETTINGS},
                "n_depth": depth or None,
            },
        ),
        original={
            **{key: row.get(key) for key in ("model", "size", "params", "test")},
            "hardware": row.get("backend") or NOT_STATED,
            "stated": {"throughput_tokens_per_s": rate, "derived": "latency_mean_ms = tokens / (tokens/s)"},
        },
    )
    figures: dict[str, Any] = {
        "mode": "generation" if made else "inference",
        "batch_size": 1,
        "sequence_length": count(prompt + (depth if made else 0), at_least=1),
    }
    if not rate:
        return cell.result("failed", figures, reason=f"the table gives {row['t/s']!r} tokens/s")
    figures |= {"latency_mean_ms": (prompt + made) * MS_PER_S / rate}
    if made:
        figures |= {"output_tokens": made, "time_per_output_token_ms": None if prompt else MS_PER_S / rate}
    return cell.result("ok", figures, units={"t/s": "tokens/s"})


def _is_header(cells: list[str]) -> bool:
    return {"model", "test", "t/s"} <= set(cells)
