"""Builder of results from what readers found in one cell: names normalized, originals kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from accel_platform.events.types import ResultRecorded, Status
from migrations.normalize import canonical_names
from migrations.normalize.path_hints import given_device
from migrations.normalize.records import Record, RefusedCell, refuse
from migrations.normalize.units import RecordedTime, first_moment

_STATUS: dict[str, Status] = {
    "completed": "ok",
    "success": "ok",
    "ok": "ok",
    "true": "ok",
    "passed": "ok",
    "pass": "ok",
    "succeeded": "ok",
    "successful": "ok",
    "complete": "ok",
    "done": "ok",
    "yes": "ok",
    "1": "ok",
    "1.0": "ok",
    "timeout": "timeout",
    "timed_out": "timeout",
    "skipped": "unavailable",
    "unavailable": "unavailable",
    "not_available": "unavailable",
    "unsupported": "unavailable",
    "not_supported": "unavailable",
    "not_run": "unavailable",
    "not_tested": "unavailable",
}


@dataclass(frozen=True)
class Machine:
    """Machine that a document says it was measured on; any part may be missing."""

    host: Mapping[str, Any] = field(default_factory=dict)
    device_names: Mapping[Any, str] = field(default_factory=dict)
    """By hardware name."""
    software: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options of the run that must be equal for figures to be comparable: layout, offloaded layers, devices, …"""


NOWHERE = Machine()


@dataclass(slots=True)  # not frozen, like CellDraft: tables make one for each row, and setting a frozen field is slow
class NamesInFile:
    """Names in the file's own words. `models` are tried in order; the first is kept."""

    models: Sequence[Any]
    hardware: Any
    family: Any = None
    precision: Any = None
    runtime: Any = None
    is_microbenchmark: bool = False


def status_of(value: Any) -> Status:
    """Return the meaning of a status text or flag. An unknown word is a failure."""
    if value is True:
        return "ok"
    return _STATUS.get(str(value).strip().casefold().replace(" ", "_"), "failed")


def outcome(*statements: Any, figures: Mapping[str, Any], error: Any = None) -> Status:
    """Return the status of the first meaningful word or flag.

    Without one, an error message or missing figures mean failure, and figures mean success.
    """
    stated = next((value for value in statements if value is not None and value != ""), None)
    if stated is not None:
        return status_of(stated)
    return "ok" if any(figures.values()) and not error else "failed"


def reason_unless_ok(status: Status, *sources: Any) -> str | None:
    """Return None for success, else the first message in the sources, else that the file has none.

    Sources are texts, or objects with an `error`; the last is the status in the file.
    """
    if status == "ok":
        return None
    for source in sources[:-1]:
        text = (source.get("error") or source.get("reason")) if isinstance(source, Mapping) else source
        if isinstance(text, str) and text.strip():
            return text.strip()
    return f"the file says {sources[-1]!r} and gives no reason"


@dataclass(slots=True)
class CellDraft:
    """One cell of a document on its way to a result. `times` are the file's own, the most specific first."""

    source_path: str
    pointer: str
    named: NamesInFile
    times: Sequence[Any] = ()
    machine: Machine = NOWHERE
    original: Mapping[str, Any] = field(default_factory=dict)

    def result(
        self,
        status: Status,
        figures: Mapping[str, Any],
        *,
        reason: str | None = None,
        units: Mapping[str, str] | None = None,
    ) -> Record | RefusedCell:
        """Return the cell with provenance `imported`. `figures` are fields of ResultRecorded, `units` the file's units.

        A cell without a model or hardware name, or with impossible figures, is refused with its content.
        """
        named, machine = self.named, self.machine
        if named.is_microbenchmark:
            model = canonical_names.microbenchmark_named(named.models[0] if named.models else None)
        else:
            model = canonical_names.model_named(*named.models, family=named.family)
        if model is None:
            advice = ": put the file into a folder called like it" if "said_by_path" in self.original else ""
            return self._refused("model_unnamed", f"the cell names no model{advice}", figures)
        hardware = canonical_names.hardware_named(named.hardware, named.runtime)
        if hardware is None:
            unnamed = named.hardware is None or not str(named.hardware).strip()
            why = "the cell names no hardware" if unnamed else f"no hardware is called {named.hardware!r} here"
            return self._refused("hardware_unknown", why, figures)
        when = first_moment(*self.times)
        host_id = canonical_names.imported_id(machine.host)
        # Files name hardware without its runtime, which may change the name: onnxruntime for cpu.
        as_written = canonical_names.hardware_named(named.hardware)
        device_name = (
            machine.device_names.get(hardware)
            or machine.device_names.get(as_written)
            or given_device(hardware, named.runtime)
        )
        device_id = canonical_names.device_id(hardware, host_id, device_name)
        settings = _known(machine.settings)
        fields = {
            "model_id": model.model_id,
            "model_family": model.family,
            "hardware": hardware,
            "backend": canonical_names.backend_named(hardware, named.runtime),
            "precision": canonical_names.precision_named(named.precision),
            "status": status,
            "provenance": "imported",
            "reason": reason,
            "device_id": device_id,
            "device_name": device_name,
            "fingerprint": _fingerprint(device_id, hardware, machine),
            "threads": machine.threads,
            "environment": {**machine.software, "settings": settings} if settings else machine.software,
            "occurred_local": when.local,
            "original": self._original(when, units),
            "source_path": self.source_path,
            **figures,
        }
        try:
            # Fields that are None are left out, because tables have a million rows and most fields are.
            result = ResultRecorded(**{name: value for name, value in fields.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return self._refused("invalid_figure", f"{where}: {first['msg']}", figures)
        return Record(result, self.pointer, when.at, host_id)

    def _refused(self, rule: str, reason: str, figures: Mapping[str, Any]) -> RefusedCell:
        content = {"model": self.named.models, "hardware": self.named.hardware, **self.original, **figures}
        return refuse(self.pointer, rule, reason, content)

    def _original(self, when: RecordedTime, units: Mapping[str, str] | None) -> dict[str, Any]:
        """Return the file's own words, with its time only where it could not be parsed."""
        content = {
            "model": next((text for text in self.named.models if isinstance(text, str) and text.strip()), None),
            "hardware": self.named.hardware,
            "precision": self.named.precision,
            "runtime": self.named.runtime,
            "timestamp": None if when else next((time for time in self.times if time not in (None, "")), None),
            "units": units,
            **self.original,
        }
        if isinstance(content.get("stated"), Mapping):
            content["stated"] = _known(content["stated"])
        return _known(content)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value or value not in (None, "", [], {})}


def _fingerprint(device_id: str | None, hardware: str, machine: Machine) -> str | None:
    """Return None unless the file names both device and software, because other figures are not comparable."""
    if device_id is None or not machine.software:
        return None
    software = dict(sorted(machine.software.items()))
    return canonical_names.imported_id(
        {
            "device": device_id,
            "hardware": hardware,
            "software": software,
            "threads": machine.threads,
            "settings": _known(machine.settings),
        }
    )
