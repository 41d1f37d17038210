"""Typed benchmark configuration: the keys of suite.json, its reader and its example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from accel_platform.bench.plan.plan import MAX_BATCH_SIZE, MAX_SEQUENCE_LENGTH
from accel_platform.bench.plan.run_options import RunScope
from accel_platform.bench.plan.schedule import parse_schedule
from accel_platform.errors import AccelError, InvalidInput
from accel_platform.events.types import Mode
from accel_platform.strict_json import COMMENT, read_object, validate_model
from accel_platform.workloads.sources import absolute_source
from accel_platform.workloads.weights import is_weights_folder

WEB = ("webnn", "webgpu", "wasm")

Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=MAX_BATCH_SIZE)]
Length = Annotated[int, Field(strict=True, ge=1, le=MAX_SEQUENCE_LENGTH)]
Models = Annotated[
    Annotated[Names, Tag("list")] | Annotated[dict[str, dict[str, Any]], Tag("object"), Field(min_length=1)],
    Discriminator(lambda value: "object" if isinstance(value, dict) else "list"),
]

NIGHTLY = "0 1 * * *"
"""Times of a suite that states none, as cron text in UTC."""


class BenchmarkConfig(BaseModel):
    """One benchmark: models by hardware by shape, its thoroughness, and the reports written afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: Models | None = Field(
        default=None,
        title='names such as ["bert-base"], or an object of models as in a models file',
        description="Models: keys, aliases or hub ids of the catalogue, or keys of `models_file`. As an object they are"
        " described here, in the form of a models file.",
    )
    model_families: Annotated[dict[str, Names], Field(min_length=1)] | None = Field(
        default=None,
        title='an object of name lists, such as {"vision": ["vit-base"]}',
        description="More models, under headings of your own, by which charts are divided.",
    )
    set: str | None = Field(
        default=None,
        title="the name of a set",
        description="A named set of models, beside those named above; `custom` is all of `models_file`. With no models"
        " at all it is `custom` where there is a `models_file`, else `small`.",
    )
    models_file: Path | None = Field(
        default=None, title="a path", description="Models of your own, from the suite file's folder."
    )
    weights: dict[str, str] = Field(
        default={},
        title='an object such as {"bert-base": "path or hub id"}',
        description="Real weights by model: a folder written by `save_pretrained`, or a hub id, which is downloaded"
        " unless cached. Without them parameters are random, seeded by the config.",
    )
    hardware_types: Names | None = Field(
        default=None,
        title='hardware names such as ["cpu", "openvino"]',
        description="Where to measure. By default all that is here, without software stand-ins. What is named and not"
        " here is reported as unavailable.",
    )
    include_web_platforms: bool | None = Field(
        default=None,
        strict=True,
        title="true or false",
        description="true adds webnn, webgpu and wasm, false leaves them out.",
    )
    browser: str | None = Field(
        default=None,
        title='"chromium", "chrome", "edge" or "firefox"',
        description="The browser for webnn, webgpu and wasm; by default one of Chromium's kind.",
    )
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1)] = Field(
        default=(1, 4),
        title=f"whole numbers from 1 to {MAX_BATCH_SIZE:,}, such as [1, 4]",
        description="Items per batch, each with every sequence length.",
    )
    sequence_lengths: Annotated[tuple[Length, ...], Field(min_length=1)] | None = Field(
        default=None,
        title=f"whole numbers from 1 to {MAX_SEQUENCE_LENGTH:,}, such as [32, 128]",
        description="Tokens per text; by default each model's own. Images and sounds have one size. Lengths that a"
        " model cannot read are left out for it, and the plan says so.",
    )
    precisions: Names | None = Field(
        default=None,
        title='precisions such as ["float32", "float16"]',
        description="What to compute in; by default each runtime's usual one.",
    )
    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] = Field(
        default=("inference",),
        title='modes such as ["inference", "generation", "training"]',
        description="What is timed.",
    )
    processes: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(
        default=1,
        title="a whole number from 1 to 1,024",
        description="Processes that train together, with data parallel; for the mode training alone.",
    )
    effort: str = Field(
        default="standard",
        title='"quick", "standard" or "thorough"',
        description="How thorough sampling is: minimum time and count, target error, limits.",
    )
    warmup_iterations: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] | None = Field(
        default=None,
        title="a whole number of at least 0",
        description="Runs that warm up at least. Warming up goes on until timings are stable, as ever.",
    )
    benchmark_iterations: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] | None = Field(
        default=None,
        title="a whole number of at least 1",
        description="Samples per cell at least; sampling goes on until the effort's time and error are reached. Fewer"
        " than 11 are raised to 11, which a median needs.",
    )
    timeout: Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)] | None = Field(
        default=None,
        title="seconds, above 0",
        description="Seconds for loading a model, and for each cell, before its process is killed. Sampling ends after"
        " half of it, so that what was measured is kept.",
    )
    missing: bool = Field(
        default=False,
        strict=True,
        title="true or false",
        description="Whether to measure only what the log lacks for this host.",
    )
    older_than: str | None = Field(
        default=None,
        title='an age such as "30d", "12h" or "4w"',
        description="With `missing`: also what was measured longer ago.",
    )
    work: RunScope = Field(
        default="all",
        title='"all", "verify" or "measure"',
        description="Measure and verify; only compare outputs with the reference, timing nothing; or only measure,"
        " which leaves the results unverified.",
    )
    fix: bool = Field(
        default=True,
        strict=True,
        title="true or false",
        description="Whether cells that fail are tried again by the documented alternatives.",
    )
    profile: bool = Field(
        default=False,
        strict=True,
        title="true or false",
        description="Whether each cell is profiled by operator afterwards; writes Chrome traces.",
    )
    parallel: bool = Field(
        default=False,
        strict=True,
        title="true or false",
        description="Whether devices that share no silicon are measured side by side; never two cells on one.",
    )
    use_resource_pool: bool = Field(
        default=True,
        strict=True,
        title="true or false",
        description="Whether a process loads its model once and measures all of its shapes; false gives each cell a"
        " process of its own.",
    )
    generate_plots: bool = Field(
        default=False,
        strict=True,
        title="true or false",
        description="Whether to draw the results: `charts.html`, which needs no network, and a PNG of each chart.",
    )
    update_compatibility_matrix: bool = Field(
        default=False,
        strict=True,
        title="true or false",
        description="Whether to bring the tables, and with them the matrix, up to the log afterwards.",
    )
    labels: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default={},
        title='an object of texts such as {"branch": "main"}',
        description="What the run is to be found by later. `commit` is the code that is measured; where it is not"
        " given, ACCEL_COMMIT, GITHUB_SHA or CI_COMMIT_SHA says it."
        " Nor need `branch` be given on GitHub and GitLab.",
    )
    report_dir: Path | None = Field(
        default=None,
        title="a path",
        description="Folder for the JSON reports and charts. By default `reports/<run>` under the home directory for a"
        " suite, none for `run_benchmark`.",
    )
    csv: Path | None = Field(default=None, title="a path", description="Also write the results as this CSV file.")
    schedule: Annotated[str | None, BeforeValidator(parse_schedule)] = Field(
        default=None,
        title='cron text such as "0 2 * * *"',
        description="When the suite is to run, also as"
        ' `{"enabled": true, "frequency": "daily", "time": "02:00"}`. Dagster starts the suite of'
        " `ACCEL_SUITE` at these times, by default each night at one; a change holds once its code is loaded anew.",
    )

    @model_validator(mode="after")
    def _consistent_web_platforms(self) -> BenchmarkConfig:
        named = [name for name in self.hardware_types or () if is_web(name)]
        if named and self.include_web_platforms is False:
            raise ValueError(f"hardware_types names {named[0]}, but include_web_platforms is false: change one of them")
        return self


def is_web(name: str) -> bool:
    """Return whether a browser serves this hardware name."""
    return name.casefold().partition(":")[0] in WEB


def read_config(path: Path) -> BenchmarkConfig:
    """Read a suite file; relative paths are resolved against the file's folder.

    Raises NotFound, or InvalidInput with the file, the key, its line, the expected value and the actual one.
    """
    value, text = read_object(path)
    config = validate_model(BenchmarkConfig, value, where=str(path), text=text)
    folder = path.parent
    changes: dict[str, Any] = {
        name: folder / given
        for name in ("models_file", "report_dir", "csv")
        if (given := getattr(config, name)) is not None
    }
    weights = {name: str(folder / s) if (folder / s).is_dir() else s for name, s in config.weights.items()}
    if isinstance(config.models, dict):
        changes["models"] = {key: _located_entry(entry, folder) for key, entry in config.models.items()}
    elif config.models is not None:
        changes["models"] = tuple(_resolve_path(name, folder) for name in config.models)
    if config.model_families is not None:
        changes["model_families"] = {
            heading: tuple(_resolve_path(name, folder) for name in names)
            for heading, names in config.model_families.items()
        }
    return config.model_copy(update={**changes, "weights": weights})


def _resolve_path(name: str, folder: Path) -> str:
    """Return a model's name; the path of a file or of a folder with weights as an absolute one."""
    return str((folder / name).resolve()) if is_weights_folder(str(folder / name)) else absolute_source(name, folder)


def _located_entry(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a model's description with its paths, which are relative to the folder, made absolute."""
    changes: dict[str, Any] = {}
    if isinstance(source := entry.get("source"), str):
        changes["source"] = absolute_source(source, folder)
    if isinstance(weights := entry.get("weights"), str) and (folder / weights).is_dir():
        changes["weights"] = str(folder / weights)
    return {**entry, **changes}


def resolve_config(value: BenchmarkConfig | Mapping[str, Any] | Path | str) -> BenchmarkConfig:
    """Return a configuration as it is, from its keys, or from a file. Raises as `read_config` does."""
    if isinstance(value, BenchmarkConfig):
        return value
    if isinstance(value, Mapping):
        return validate_model(BenchmarkConfig, value, where="the configuration")
    return read_config(Path(value))


_EXAMPLE: dict[str, Any] = {
    "model_families": {"embedding": ["bert-tiny"], "vision": ["vit-tiny"]},
    "hardware_types": ["cpu", "openvino", "onnxruntime"],
    "include_web_platforms": False,
    "batch_sizes": [1, 4],
    "sequence_lengths": [32, 128],
    "warmup_iterations": 5,
    "benchmark_iterations": 20,
    "timeout": 600,
    "effort": "quick",
    "generate_plots": True,
    "update_compatibility_matrix": True,
    "schedule": {"enabled": False, "frequency": "daily", "time": "02:00"},
}
"""Small models, so that it ends within a minute or two; the rest of the keys are shown with their defaults."""


def example_suite() -> str:
    """Return a runnable suite file with every key and its description."""
    lines = []
    for name, field in BenchmarkConfig.model_fields.items():
        default = field.get_default()
        value = _EXAMPLE.get(name, default)
        lines.append(f'  "{COMMENT} {name}": {_to_json(field.description)}')
        lines.append(f'  "{name}": {_to_json(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_example(path: Path) -> None:
    """Write the example as a new file. Raises InvalidInput where one exists, AccelError where it cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(example_suite())
    except FileExistsError as error:
        raise InvalidInput(f"{path} is there already: name another file, or move it away.") from error
    except OSError as error:
        raise AccelError(f"{path} cannot be written: {error.strerror}.") from error


def reference_table() -> str:
    """Return the keys as a Markdown table, for the documentation."""
    rows = ["| key | expects | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in BenchmarkConfig.model_fields.items():
        default = field.get_default()
        usual = "" if default in (None, {}) else f"`{_to_json(default)}`"
        rows.append(f"| `{name}` | {field.title} | {usual} | {field.description} |")
    return "\n".join(rows) + "\n"


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
