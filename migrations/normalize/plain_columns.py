"""Columns of a plain table of results, the form for figures that no tool's file holds: names, aliases, meanings.

The reader, `accel migrate --template`, `--map` and `docs/reference/plain-table.md` all follow this declaration.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from accel_platform.errors import InvalidInput
from migrations.normalize.field_aliases import names_figure, names_speed, names_token_figure, unit_in


@dataclass(frozen=True)
class Column:
    """One column: its meaning, other names that are taken for it, and an example."""

    meaning: str
    aliases: tuple[str, ...] = ()
    example: str = ""


COLUMNS: dict[str, Column] = {
    "model": Column("Model; needed.", ("model_name", "model_id", "network", "net", "architecture"), "resnet50"),
    "device": Column(
        "Device by name, such as RTX 4090; else `hardware`, or `--device` for a whole table.",
        ("device_name", "gpu", "gpu_name", "cpu_name", "cpu_model", "accelerator", "chip", "processor"),
        "NVIDIA GeForce RTX 4090",
    ),
    "hardware": Column(
        "Hardware name: cpu, cuda, rocm, mps, openvino, ...; found from a well-known device.",
        ("hardware_type", "hardware_name", "device_type", "platform", "target"),
        "cuda",
    ),
    "runtime": Column(
        "Runtime or framework; `unstated` without it.",
        ("framework", "backend", "engine", "library", "execution_provider"),
        "pytorch",
    ),
    "runtime_version": Column("Version of the runtime.", ("framework_version", "backend_version", "engine_version")),
    "batch_size": Column("Items per batch.", ("batch", "bs", "batchsize"), "8"),
    "sequence_length": Column(
        "Tokens per item.", ("seq", "seq_len", "seq_length", "seqlen", "input_length", "input_tokens", "prompt_tokens")
    ),
    "image_size": Column("Pixels along an edge of an image.", ("img_size", "input_size", "resolution", "imgsz")),
    "output_tokens": Column("Generated tokens per item.", ("output_length", "new_tokens", "generated_tokens")),
    "precision": Column("float32, float16, int8, ...", ("dtype", "fp", "data_type", "quantization"), "float16"),
    "mode": Column("inference, training or generation; by the figures without it.", ("task_mode",)),
    "iterations": Column("Samples behind the figures.", ("runs", "repetitions", "samples", "measurement_iterations")),
    "warmup_iterations": Column("Runs before them.", ("warmup", "warmup_runs")),
    "timestamp": Column("When it was measured, in ISO 8601.", ("date", "time", "created_at", "measured_at")),
    "status": Column("ok (without it), failed, timeout or skipped.", ("success", "outcome")),
    "error": Column("Message of a failure.", ("error_message", "failure_reason")),
}
"""Everything but figures, by canonical name."""
FIGURES: dict[str, Column] = {
    "latency_ms": Column(
        "Mean time of a batch, ms.",
        ("latency", "mean_latency_ms", "avg_latency_ms", "inference_time_ms", "latency_s", "latency_us"),
        "3.1",
    ),
    **{
        f"latency_{name}_ms": Column(f"{meaning} of a batch's times, ms.", (f"{name}_latency_ms", f"latency_{name}"))
        for name, meaning in (
            ("p50", "Median"), ("p90", "90th percentile"), ("p95", "95th percentile"), ("p99", "99th percentile"),
            ("min", "Smallest"), ("max", "Largest"), ("std", "Standard deviation"),
        )
    },
    "throughput": Column(
        "Items per second.",
        ("throughput_items_per_s", "fps", "images_per_second", "samples_per_second", "throughput_fps"),
        "2580",
    ),
    "time_to_first_token_ms": Column("Median time to the first token, ms.", ("ttft_ms", "ttft", "ttft_s")),
    "time_per_output_token_ms": Column("Median time per token after it, ms.", ("tpot_ms", "tpot")),
    "throughput_tokens_per_s": Column(
        "New tokens per second, of all sequences.", ("tokens_per_second", "tokens_per_s", "tok_s", "tps")
    ),
    "peak_memory_mb": Column("Peak memory, MiB.", ("memory_mb", "memory_peak_mib", "memory_gb", "peak_ram_mb")),
}  # fmt: skip
"""Figures; statistics and units are read from the words of the name, so more names than these are understood."""
_MAX_NAMED = 20
_BARE = re.compile(
    r"(?P<which>p50|p90|p95|p99)|(?:(?P<statistic>mean|avg|average|median|p50|p90|p95|p99|min|max|std)_)?"
    r"(?P<unit>ns|us|ms)"
)
"""Names that say the statistic, the unit or both, and nothing more: `p95`, `ms`, `mean_ms`."""


@dataclass(frozen=True)
class ReadColumns:
    """Columns of one table: those that mean something, and the rest."""

    meanings: Mapping[str, str]
    """Column of the file by canonical name."""
    figures: Mapping[str, str]
    """Column of the file by a name that `field_aliases` understands."""
    unread: tuple[str, ...]

    @property
    def names_place(self) -> bool:
        """True where a device or hardware is named."""
        return "device" in self.meanings or "hardware" in self.meanings

    @property
    def unit(self) -> str | None:
        """Unit of the times of all columns that state one; None where they state none, or several."""
        units = {unit for figure in self.figures if (unit := unit_in(figure))}
        return units.pop() if len(units) == 1 else None

    @property
    def is_result_table(self) -> bool:
        """True where a model and a latency or rate are named; the device may be the same for the whole table."""
        return "model" in self.meanings and any(map(_is_speed, self.figures))

    def lacking(self) -> str | None:
        """Say what no column names although a table of results needs it; None where nothing in it looks like one."""
        needs = {
            "a model": "model" in self.meanings,
            "a device or hardware": self.names_place,
            "a latency or throughput": any(map(_is_speed, self.figures)),
        }
        lacking = [what for what, there in needs.items() if not there]
        return f"no column is taken for {' or for '.join(lacking)}" if 0 < len(lacking) < len(needs) else None

    def remarks(self, *, can_be_mapped: bool) -> Iterator[str]:
        """Yield remarks for the file's author: columns that were not read, and how to map them if possible."""
        taken = {**self.meanings, **self.figures}
        renamed = [f"{theirs} as {ours}" for ours, theirs in taken.items() if slug(theirs) != ours]
        if renamed:
            yield f"columns read: {', '.join(renamed)}"
        if self.unread:
            named = [_with_hint(column) if can_be_mapped else column for column in self.unread[:_MAX_NAMED]]
            more = [f"and {len(self.unread) - _MAX_NAMED} more"] if len(self.unread) > _MAX_NAMED else []
            yield f"columns kept, but not read: {', '.join([*named, *more])}"


@lru_cache(maxsize=256)
def read_columns(columns: tuple[str, ...]) -> ReadColumns:
    """Return what each column of a table means.

    Of several columns of one meaning, that of the canonical name is read, else the first.
    """
    read: dict[str, str] = {}
    for column in columns:
        ours = meaning_of(column)
        if ours is not None and (ours not in read or (slug(column) == ours != slug(read[ours]))):
            read[ours] = column
    taken = set(read.values())
    return ReadColumns(
        {ours: column for ours, column in read.items() if ours in COLUMNS},
        {ours: column for ours, column in read.items() if ours not in COLUMNS},
        tuple(column for column in columns if column not in taken),
    )


@lru_cache(maxsize=8192)
def meaning_of(column: str) -> str | None:
    """Return the canonical column that a name means, or a name that `field_aliases` understands; None for another."""
    name = slug(column)
    if (ours := _names().get(name)) is not None:
        return ours
    if bare := _BARE.fullmatch(name):
        statistic = bare["which"] or bare["statistic"]
        name = "_".join(filter(None, ("latency", statistic, bare["unit"])))
    return name if names_figure(name) or names_token_figure(name) else None


def slug(name: str) -> str:
    """Return a column's name in the form of the declaration: `Latency (ms)` is latency_ms."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().casefold()).strip("_")


def parse_map(pairs: list[str]) -> dict[str, str]:
    """Return the columns of `--map theirs=ours,…` by their own names. Raises InvalidInput with the closest column."""
    found = {}
    for pair in (part for text in pairs for part in text.split(",") if part.strip()):
        theirs, equals, ours = pair.partition("=")
        if not equals or not theirs.strip() or not ours.strip():
            raise InvalidInput(f"--map: expected YOURS=OURS, such as gpu=device, got {pair!r}.")
        name = slug(ours)
        if meaning_of(name) is None:
            close = difflib.get_close_matches(name, [*_names(), *FIGURES], n=2)
            hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join([*COLUMNS, *FIGURES])}."
            raise InvalidInput(f"--map: no column of a plain table is called {ours.strip()!r}. {hint}")
        found[theirs.strip()] = name
    return found


def template() -> str:
    """Return a plain table as CSV: every column, and one row of examples."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    every = {**COLUMNS, **FIGURES}
    writer.writerow(every)
    writer.writerow(column.example for column in every.values())
    return written.getvalue()


def reference_page() -> Iterator[str]:
    """Yield the lines of `docs/reference/plain-table.md`."""
    yield "# Plain table"
    yield ""
    yield "`accel migrate results.csv` reads CSV, Parquet or flat JSON objects with these columns, in any order: one"
    yield "row is one result. Capitals, spaces and units in brackets do not matter: `Latency (ms)` is `latency_ms`."
    yield "`accel migrate --template csv` prints a file to begin with. Generated from"
    yield "`migrations/normalize/plain_columns.py`."
    for title, columns in (("Columns", COLUMNS), ("Figures (at least a latency or a throughput)", FIGURES)):
        yield ""
        yield f"## {title}"
        yield ""
        yield "| column | meaning | also taken |"
        yield "| --- | --- | --- |"
        for name, column in columns.items():
            yield f"| `{name}` | {column.meaning} | {', '.join(f'`{alias}`' for alias in column.aliases)} |"
    yield ""
    yield "Other names of figures are read by their words, statistic, latency or throughput, and unit: `p95_latency_s`."
    yield ""
    yield "- Latencies are of a whole batch. A column `latency` or `p95` without a unit has that of the table's other"
    yield "  times. Where they have none, or several, its rows are refused: `--map latency=latency_s` says which it is."
    yield "- Where `;` stands between columns, a comma in a number is decimal: `12,5` is 12.5, and `1.234,5` is 1234.5."
    yield "- A column that is not read is kept with each result (`original`) and named in the import's answer."
    yield "  `accel migrate results.csv --map card=device,t=latency_ms` says what your names mean. SQL finds the rest:"
    yield (
        "  `SELECT model_id, device_name, e.payload->>'$.original.stated.\"who measured\"' AS who"
        " FROM results JOIN events AS e USING (event_id)`."
    )
    yield "- Without a `runtime`, none is invented: the result's `backend` is `unstated`, except where the hardware is"
    yield "  named by a runtime (`openvino`, `onnxruntime`)."


def _is_speed(figure: str) -> bool:
    return names_speed(figure) or names_token_figure(figure)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {alias: name for name, column in COLUMNS.items() for alias in (name, *column.aliases)}


def _with_hint(column: str) -> str:
    if meaning_of(column) is not None:
        return f"{column} (another has its meaning)"
    close = difflib.get_close_matches(slug(column), [*_names(), *FIGURES], n=1, cutoff=0.75)
    return f"{column} (if it is {close[0]}: --map {column}={close[0]})" if close else column
