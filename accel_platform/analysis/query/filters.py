"""Which results a question is about: one set of filters for commands, routes, pages and reports."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.warehouse.reader import Reader

Name = str | None
_MOST_NAMES = 50
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


class Selection(BaseModel):
    """Filters that all have to hold; one that is not given leaves nothing out."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: tuple[str, ...] = Field(
        default=(), max_length=_MOST_NAMES, description="Models: keys, aliases, hub ids, or families."
    )
    hardware: tuple[str, ...] = Field(
        default=(), max_length=_MOST_NAMES, description="Hardware names: cuda, or with a choice openvino:gpu.1."
    )
    device: Name = Field(default=None, max_length=200, description="A device by id or name.")
    mode: Name = Field(default=None, max_length=200, description="inference, generation or training.")
    precision: Name = Field(default=None, max_length=200)
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
    def _written(cls, value: object) -> object:
        return require_date(value)

    def where(self, table: str = "r") -> tuple[str, dict[str, Any]]:
        """A SQL condition over columns of `results` under this alias, and its named parameters."""
        conditions: list[str] = ["true"]
        values: dict[str, Any] = {}
        if self.model:
            # Names repeat, so that a list is looked through once for each of them; a subquery would be joined.
            conditions.append(
                f"(list_contains($models, {table}.model_id) OR list_contains($models, {table}.model_family))"
            )
            values["models"] = self.recorded_models()
        if self.hardware:
            chosen = f" OR list_contains($hardware, {table}.hardware || ':' || {table}.choice)" if self.choices else ""
            conditions.append(f"(list_contains($hardware, {table}.hardware){chosen})")
            values["hardware"] = list(self.hardware)
        if self.device is not None:
            conditions.append(f"$device IN ({table}.device_id, {table}.device_name)")
            values["device"] = self.device
        for name in ("mode", "precision", "batch_size", "sequence_length", "provenance", "status"):
            if (value := getattr(self, name)) is not None:
                conditions.append(f"{table}.{name} = ${name}")
                values[name] = value
        for name, sign in (("since", ">="), ("until", "<")):
            if (value := getattr(self, name)) is not None:
                conditions.append(f"{table}.occurred_at {sign} ${name}")
                values[name] = _instant(value)
        return " AND ".join(conditions), values

    @property
    def choices(self) -> tuple[str, ...]:
        """The hardware that is named with a choice, as `openvino:gpu.1` is."""
        return tuple(name for name in self.hardware if ":" in name)

    @property
    def hardware_names(self) -> list[str]:
        """Every hardware name once, without its choice."""
        return list(dict.fromkeys(name.partition(":")[0] for name in self.hardware))

    def recorded_models(self) -> list[str]:
        """The models as they are recorded. A name that is an alias and a family's, such as bert, is both."""
        return list(dict.fromkeys([*self.model, *map(canonical_model_id, self.model)]))


def require_known(reader: Reader, selection: Selection) -> None:
    """Raises NotFound for a model, hardware name or device that nothing knows, with those that are spelt alike, and
    InvalidInput for a choice that its runtime cannot have.

    One that is known and was not measured is no error: there is nothing to answer with then, and `measure_command`.
    """
    models = reader.rows("SELECT model_id, family FROM models")
    names = {name for row in models for name in row.values() if name}
    for model in selection.model:
        if canonical_model_id(model) == model and model not in names and not _in_catalogue(model):
            raise NotFound(_unknown("model or family", model, names, "SELECT model_id, family FROM models"))
    if selection.hardware or selection.device:
        places = reader.rows("SELECT DISTINCT hardware, choice, device_id, device_name FROM results")
        from accel_platform.backends.registry import RUNTIMES, runtime_for

        known = {row["hardware"] for row in places} | set(RUNTIMES)
        for hardware in selection.hardware_names:
            if hardware not in known:
                raise NotFound(_unknown("hardware", hardware, known, "SELECT DISTINCT hardware FROM results"))
        chosen = {f"{row['hardware']}:{row['choice']}" for row in places if row["choice"]}
        for choice in set(selection.choices) - chosen:
            if choice.partition(":")[0] not in RUNTIMES:
                raise NotFound(_unknown("hardware", choice, chosen, "SELECT DISTINCT hardware, choice FROM results"))
            runtime_for(choice)
        devices = {name for row in places for name in (row["device_id"], row["device_name"]) if name}
        if selection.device is not None and selection.device not in devices:
            sql = "SELECT DISTINCT device_id, device_name FROM results"
            raise NotFound(_unknown("device", selection.device, devices, sql))


def reject_choices(hardware: Iterable[str]) -> None:
    """Raises InvalidInput where a name has a choice and what is asked about tells devices, not choices, apart."""
    for name in hardware:
        if ":" in name:
            plain = name.partition(":")[0]
            raise InvalidInput(
                f"This is told by device, not by choice: ask for {plain!r} instead of {name!r}, and for its device."
            )


def measure_command(selection: Selection) -> str:
    """The command that measures what the selection speaks of."""
    options = {
        "models": ",".join(selection.model),
        "hardware": ",".join(selection.hardware),
        "mode": selection.mode,
        "precision": selection.precision,
        "batch-sizes": selection.batch_size,
        "sequence-length": selection.sequence_length,
    }
    told = (f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value)
    return f"accel bench run{''.join(told)}"


def _unknown(what: str, name: str, known: Iterable[str], sql: str) -> str:
    by_case = {one.casefold(): one for one in sorted(known)}
    close = [by_case[one] for one in difflib.get_close_matches(name.casefold(), by_case, n=3)]
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    return f'Nothing is known of a {what} {name!r}.{hint} All: `accel db query "{sql}"`.'


def _in_catalogue(name: str) -> bool:
    from accel_platform.workloads.model_catalog import resolve_model

    try:
        resolve_model(name)
    except NotFound:
        return False
    return True


def canonical_model_id(name: str) -> str:
    """A key, alias or hub id as the id it is recorded under; a name that only results know stays as it is."""
    from accel_platform.workloads.model_catalog import resolve_model

    try:
        return resolve_model(name).model_id
    except NotFound:
        return name


def require_date(value: object) -> object:
    """The value as it is. Raises ValueError for a number: nobody writes seconds since 1970 and means a date."""
    text = isinstance(value, str) and not _DAY.fullmatch(value) and re.fullmatch(r"[-+\d.e_ ]*", value.casefold())
    if text or isinstance(value, int | float):
        raise ValueError("write a date such as 2026-11-20, or a time such as 2026-11-20T08:30:00Z")
    return value


def _instant(value: date | datetime) -> datetime:
    """Midnight of a date, and times without a zone, are UTC."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def equality_condition(**columns: Any) -> tuple[str, dict[str, Any]]:
    """A condition over a table as `r`, and its values; a column whose value is None leaves nothing out."""
    given = {column: value for column, value in columns.items() if value is not None}
    return " AND ".join(["true", *(f'r."{column}" = ${column}' for column in given)]), given
