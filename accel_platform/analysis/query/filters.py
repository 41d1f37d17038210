"""Filters of results, shared by commands, routes, pages and reports."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from accel_platform.backend_names import canonical_backend
from accel_platform.errors import InvalidInput, NotFound, did_you_mean
from accel_platform.events.types import PAYLOADS, CoverageStatus, Mode, Provenance, RunStatus, Status
from accel_platform.hardware.catalog import catalogued_name, find_spec
from accel_platform.hardware.device_names import without_count
from accel_platform.hardware.instances import (
    naming_caution,
    part_of_gpu,
    queried_device_name,
    result_device_name,
    suggest_instances,
)
from accel_platform.precisions import PRECISIONS, canonical_precision
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.architectures import CATEGORIES
from accel_platform.workloads.model_catalog import Modality

Name = str | None
MAX_NAMES = 50
"""Models or hardware names of one query."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT: TypeAdapter[date | datetime | None] = TypeAdapter(date | datetime | None)


class Selection(BaseModel):
    """Filters that must all hold; an unset one excludes nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description="Models: keys, aliases, hub ids, or families."
    )
    hardware: tuple[str, ...] = Field(
        default=(),
        max_length=MAX_NAMES,
        description="Hardware names: cuda, or with a choice openvino:gpu.1; devices of the spec sheet; instance types.",
    )
    device: Name = Field(default=None, max_length=200, description="A device by id or name.")
    backend: Name = Field(default=None, max_length=200, description="A runtime: onnxruntime, pytorch or vllm, say.")
    mode: Name = Field(default=None, max_length=200, description="inference, generation or training.")
    precision: Name = Field(
        default=None, max_length=200, description="float32 (or fp32), float16, int8, say; a scheme such as w8a8."
    )
    batch_size: int | None = Field(default=None, ge=1, le=2**31)
    sequence_length: int | None = Field(default=None, ge=1, le=2**31)
    provenance: Name = Field(
        default=None, max_length=200, description="measured, emulated, imported, suspect or simulated."
    )
    status: Name = Field(default=None, max_length=200, description="ok, failed or timeout, say.")
    since: date | datetime | None = Field(default=None, description="Results that occurred at or after this time.")
    until: date | datetime | None = Field(default=None, description="Results that occurred before this time.")

    @field_validator("since", "until", mode="before")
    @classmethod
    def _validate_date(cls, value: object) -> object:
        return require_date(value)

    @field_validator("hardware")
    @classmethod
    def _canonical_hardware(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(canonical_hardware_name, names))

    @field_validator("precision")
    @classmethod
    def _canonical(cls, value: str | None) -> str | None:
        return None if value is None else canonical_precision(value)

    @field_validator("backend")
    @classmethod
    def _canonical_backend(cls, value: str | None) -> str | None:
        return None if value is None else canonical_backend(value)

    def filters(self) -> Selection:
        """Return the filters alone, without the fields that a subclass adds."""
        return Selection(**{name: getattr(self, name) for name in Selection.model_fields})

    def where(self, table: str = "r") -> tuple[str, dict[str, Any]]:
        """Return a SQL condition over columns of `results` under the alias `table`, and its named parameters."""
        conditions: list[str] = ["true"]
        values: dict[str, Any] = {}
        if self.model:
            # list_contains instead of a subquery, because DuckDB evaluates it once per distinct name and joins nothing.
            conditions.append(
                f"(list_contains($models, {table}.model_id) OR list_contains($models, {table}.model_family))"
            )
            values["models"] = self.recorded_models()
        if self.hardware:
            chosen = f" OR list_contains($hardware, {table}.hardware || ':' || {table}.choice)" if self.choices else ""
            device = f" OR list_contains($hardware_devices, {table}.device_name)" if self.hardware_devices else ""
            conditions.append(f"(list_contains($hardware, {table}.hardware){chosen}{device})")
            values["hardware"] = list(self.hardware)
            if device:
                values["hardware_devices"] = [*self.hardware_devices.values()]
        if self.device is not None:
            conditions.append(
                f"(list_contains($devices, {table}.device_id) OR list_contains($devices, {table}.device_name))"
            )
            values["devices"] = self.device_names
        for name in ("backend", "mode", "precision", "batch_size", "sequence_length", "provenance", "status"):
            if (value := getattr(self, name)) is not None:
                conditions.append(f"{table}.{name} = ${name}")
                values[name] = value
        for name, sign in (("since", ">="), ("until", "<")):
            if (value := getattr(self, name)) is not None:
                conditions.append(f"{table}.occurred_at {sign} ${name}")
                values[name] = utc_instant(value)
        return " AND ".join(conditions), values

    @property
    def choices(self) -> tuple[str, ...]:
        """Hardware named with a choice, such as `openvino:gpu.1`."""
        return tuple(name for name in self.hardware if ":" in name)

    @property
    def hardware_names(self) -> list[str]:
        """Every hardware name once, without its choice."""
        return list(dict.fromkeys(name.partition(":")[0] for name in self.hardware))

    @property
    def hardware_devices(self) -> dict[str, str]:
        """Devices named as hardware, with their names in the spec sheet: H100, 4 x H100, or g5.xlarge for its GPU."""
        sheet = {name: catalogued_name(queried_device_name(name)) for name in self.hardware}
        return {name: device for name, device in sheet.items() if find_spec(without_count(device))}

    @property
    def device_names(self) -> list[str] | None:
        """The device as the query names it, and its name in the spec sheet; None for all devices."""
        return None if self.device is None else [self.device, result_device_name(self.device)]

    def recorded_models(self) -> list[str]:
        """Return the recorded ids of the models; a name that is an alias and a family, such as BERT, gives both."""
        written = [*self.model, *map(str.casefold, self.model)]  # families are in lower case
        return list(dict.fromkeys([*written, *map(canonical_model_id, self.model)]))


def require_known(reader: Reader, selection: Selection) -> None:
    """Check that every name of the selection is known, measured or not.

    Raises
    ------
    NotFound
        For an unknown model, hardware, device, runtime or precision, with names of similar spelling.
    InvalidInput
        For a mode, provenance or status that there is not, and a choice that its runtime cannot have.
    """
    _require_known_values(reader, selection)
    _require_known_models(reader, selection.model)
    if selection.hardware or selection.device:
        _require_known_places(reader, selection)


def _require_known_models(reader: Reader, requested: Iterable[str]) -> None:
    """Check models, as `require_known` says."""
    sql = "SELECT model_id, family FROM models"
    names = {name for row in reader.rows(sql) for name in row.values() if name}
    for model in requested:
        if names.isdisjoint((model, model.casefold())) and not _in_catalog(model):
            raise NotFound(_unknown("model or family", model, names | _catalog_models(), sql))


def _require_known_places(reader: Reader, selection: Selection) -> None:
    """Check hardware names, their choices, and devices, as `require_known` says."""
    from accel_platform.backends.registry import RUNTIMES, runtime_for

    places = reader.rows("SELECT DISTINCT hardware, choice, device_id, device_name FROM results")
    devices = {name for row in places for name in (row["device_id"], row["device_name"]) if name}
    for name, device in selection.hardware_devices.items():
        if device not in devices:
            problem = f"Nothing was measured on or imported of {device!r}, which {name!r} names."
            whole = result_device_name(name)
            elsewhere = f"Results of all its devices go by {whole!r}." if whole in devices else None
            raise NotFound(" ".join(filter(None, (problem, naming_caution(name), elsewhere))))
    known = {row["hardware"] for row in places} | set(RUNTIMES)
    for hardware in selection.hardware_names:
        if hardware not in known and hardware not in selection.hardware_devices:
            alike = known | {*suggest_instances(hardware)}
            raise NotFound(_unknown("hardware name", hardware, alike, "SELECT DISTINCT hardware FROM results"))
    chosen = {f"{row['hardware']}:{row['choice']}" for row in places if row["choice"]}
    for choice in set(selection.choices) - chosen:
        if choice.partition(":")[0] not in RUNTIMES:
            raise NotFound(_unknown("hardware name", choice, chosen, "SELECT DISTINCT hardware, choice FROM results"))
        runtime_for(choice)
    if selection.device is not None and devices.isdisjoint(selection.device_names or ()):
        sql = "SELECT DISTINCT device_id, device_name FROM results"
        raise NotFound(_unknown("device", selection.device, devices, sql))


def _require_known_values(reader: Reader, selection: Selection) -> None:
    """Check runtime, mode, provenance, status and precision, as `require_known` says."""
    for what, value, values in (
        ("mode", selection.mode, get_args(Mode)),
        ("provenance", selection.provenance, get_args(Provenance)),
        ("status", selection.status, get_args(Status)),
    ):
        if value is not None and value not in values:
            raise InvalidInput(f"{value!r} is no {what}: choose {', '.join(values)}.")
    for name, value, known in (
        ("backend", selection.backend, _own_backends()),
        ("precision", selection.precision, PRECISIONS),
    ):
        if value is not None and value not in known:
            sql = f"SELECT DISTINCT {name} FROM results"
            recorded = {row[name] for row in reader.rows(sql)} - {None}
            if value not in recorded:
                raise NotFound(_unknown(name, value, {*known, *recorded}, sql))


KNOWN_VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "models": {"modality": get_args(Modality)},
    "runs": {"kind": ("benchmark", "coverage"), "status": (*get_args(RunStatus), "running")},
    "coverage": {"category": CATEGORIES, "status": get_args(CoverageStatus)},
    "events": {"type": tuple(PAYLOADS)},
}
"""Values of a table's columns that are right, recorded or not."""


_BRANCHES = "SELECT DISTINCT labels->>'$.branch' AS branch FROM runs"


def require_known_branch(reader: Reader, branch: str | None) -> None:
    """Check that some run is labeled with a branch. Raises NotFound, with names of similar spelling."""
    known = {row["branch"] for row in reader.rows(_BRANCHES)} - {None}
    if branch is not None and branch not in known:
        raise NotFound(_unknown("branch", branch, known, _BRANCHES))


def require_known_unless_found(rows: Sequence[Any], reader: Reader, selection: Selection) -> None:
    """Check the names of a selection that found nothing, or has several models or hardware names.

    A misspelt name is an error, not an empty answer; and of several names the rows do not tell which found something.
    Raises as `require_known` does.
    """
    if not rows or len(selection.model) > 1 or len(selection.hardware) > 1:
        require_known(reader, selection)


def require_recorded_if_empty(rows: Sequence[Any], reader: Reader, table: str, given: Mapping[str, str | None]) -> None:
    """Check the filters of a table that found nothing: a value that its column never had is an error.

    `given` has the filtered columns with their values, None for those unset.

    Raises NotFound, with values of similar spelling.
    """
    if rows:
        return
    for column, value in given.items():
        if value is None:
            continue
        sql = f"SELECT DISTINCT {column} FROM {table}"
        values = {row[column] for row in reader.rows(sql)} - {None} | set(KNOWN_VALUES.get(table, {}).get(column, ()))
        if value not in values:
            raise NotFound(_unknown(column.replace("_", " "), value, values, sql))


def reject_choices(hardware: Iterable[str]) -> None:
    """Reject hardware names with a choice, where none is recorded. Raises InvalidInput."""
    for name in hardware:
        if ":" in name:
            plain = name.partition(":")[0]
            raise InvalidInput(
                f"This is told by hardware name and device, not by choice: ask for {plain!r} instead of {name!r}."
            )


def measure_command(selection: Selection) -> str:
    """Return the command that measures what the selection describes."""
    options = {
        "models": ",".join(selection.model),
        "hardware": ",".join(name for name in selection.hardware if name not in selection.hardware_devices),
        "mode": selection.mode,
        "precision": selection.precision,
        "batch-sizes": selection.batch_size,
        "sequence-length": selection.sequence_length,
    }
    arguments = (f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value)
    return f"accel bench run{''.join(arguments)}"


def _unknown(what: str, name: str, known: Iterable[str], sql: str) -> str:
    by_case = {one.casefold(): one for one in sorted(known)}
    close = (by_case[one] for one in difflib.get_close_matches(name.casefold(), by_case, n=3))
    problem, all_names = f"Nothing is known of a {what} {name!r}.", f'All: `accel db query "{sql}"` (or POST /query).'
    return " ".join(filter(None, (problem, part_of_gpu(name), did_you_mean(close), all_names)))


def _own_backends() -> set[str]:
    from accel_platform.backends.registry import RUNTIMES

    return {runtime.backend for runtime in RUNTIMES.values()}


def _catalog_models() -> set[str]:
    from accel_platform.workloads.model_catalog import known_models

    return {spec.model_id for spec in known_models()}


def _in_catalog(name: str) -> bool:
    from accel_platform.workloads.model_catalog import find_model

    return find_model(name) is not None


def canonical_model_id(name: str) -> str:
    """Return the recorded id of a key, alias or hub id; a name that is not in the catalog is returned unchanged."""
    from accel_platform.workloads.model_catalog import find_model

    found = find_model(name)
    return name if found is None else found.model_id


def canonical_hardware_name(name: str) -> str:
    """Return a hardware name of this platform in lower case, with its choice; any other name unchanged."""
    from accel_platform.backends.registry import RUNTIMES

    folded = name.casefold()
    return folded if folded.partition(":")[0] in RUNTIMES else name


def require_date(value: object) -> object:
    """Return a date or a time unchanged, as text, too.

    Raises ValueError for other text, and for a number, because seconds since 1970 are hardly meant.
    """
    number = isinstance(value, int | float) or (
        isinstance(value, str) and not _DAY.fullmatch(value) and re.fullmatch(r"[-+\d.e_ ]*", value.casefold())
    )
    if number or not _is_moment(value):
        raise ValueError(
            f"write a date such as 2026-11-20, or a time such as 2026-11-20T08:30:00Z, not {str(value)[:40]!r}"
        )
    return value


def _is_moment(value: object) -> bool:
    try:
        _MOMENT.validate_python(value)
    except ValidationError:
        return False
    return True


def utc_instant(value: date | datetime) -> datetime:
    """Convert a date (its midnight) or a time to an aware time; UTC is assumed where no zone is given."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def equality_condition(**columns: Any) -> tuple[str, dict[str, Any]]:
    """Return a SQL condition on columns of the alias `r`, and its values; a value of None excludes nothing."""
    given = {column: value for column, value in columns.items() if value is not None}
    return " AND ".join(["true", *(f'r."{column}" = ${column}' for column in given)]), given
