"""Routes for hardware: names with their results, devices seen on hosts, and the catalogue of specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import (
    Selection,
    equality_condition,
    require_known,
    require_recorded_if_empty,
)
from accel_platform.backends.registry import RUNTIMES
from accel_platform.errors import NotFound
from accel_platform.hardware.catalog import catalog
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import DevicesQuery, selection_of
from predictor.schemas.rows import Device, DevicePage, SnapshotId
from predictor.service.http.conditional import NOT_MODIFIED, parse_json_columns, table_response
from predictor.service.http.paging import PagedTable
from predictor.service.http.problems import problem_responses

_DEVICES = PagedTable(
    "devices",
    ", ".join(f"r.{name}" for name in Device.model_fields),
    (
        ("coalesce(r.host_id, '')", "VARCHAR"),
        ("r.hardware", "VARCHAR"),
        ("coalesce(r.choice, '')", "VARCHAR"),
        ("coalesce(r.device_id, '')", "VARCHAR"),
    ),
    descending=False,
)
_RESULTS = """
SELECT hardware, count(*) AS results, count(DISTINCT model_id) AS models, count(DISTINCT device_id) AS devices
FROM results WHERE $name IS NULL OR hardware = $name GROUP BY hardware
"""
_SEEN = f"SELECT {', '.join(Device.model_fields)} FROM devices WHERE $name IS NULL OR hardware = $name ORDER BY ALL"
_MEASURED = """
SELECT device_id, min(device_name) AS device_name, count(*) AS results, count(DISTINCT model_id) AS models
FROM results WHERE hardware = $name GROUP BY device_id ORDER BY results DESC, device_id
"""


class Hardware(BaseModel):
    """One hardware name: its runtime, its availability on a host, and the number of its results."""

    hardware: str
    backend: str | None = Field(description="null for names that only imported results have.")
    available: bool = Field(
        description="Whether a device, or an emulator, answered to it where it was last looked for."
    )
    emulated: bool = Field(description="Whether only emulators answered: software in place of the device.")
    results: int
    models: int = Field(description="Different models that results are of.")
    devices: int = Field(description="Different devices that results are of.")


class HardwareList(BaseModel):
    """Every hardware name that this platform runs or has results of."""

    hardware: list[Hardware] = Field(description="One per hardware name, those of this platform first.")
    snapshot_id: SnapshotId


class MeasuredDevice(BaseModel):
    """A device with results."""

    device_id: str | None
    device_name: str | None
    results: int
    models: int = Field(description="Different models that results are of.")


class OneHardware(BaseModel):
    """One hardware name with the devices behind it."""

    hardware: Hardware = Field(description="The hardware name, with its counts.")
    seen: list[Device] = Field(description="What hosts found under this name.")
    measured: list[MeasuredDevice] = Field(description="Devices that results are of, those with most results first.")
    snapshot_id: SnapshotId


class Spec(BaseModel):
    """A device as its vendor states it; null where nothing is published. Rates are dense."""

    name: str
    vendor: str | None
    kind: str = Field(description="gpu, cpu or npu (whatever computes little but neural networks).")
    architecture: str | None = Field(
        description="What its code is compiled for, such as sm_90 or gfx942; null where unknown."
    )
    peak_fp32_tflops: float | None = Field(
        description="Shader or vector rate, not that of tensor cores, in TFLOPS; null where unknown."
    )
    peak_fp32_matrix_tflops: float | None = Field(
        description="FP32 rate of matrix units in TFLOPS; null where unknown, or vectors are as fast."
    )
    peak_tf32_tensor_tflops: float | None = Field(
        description="TF32 rate of tensor cores in TFLOPS; null where unknown, or it has none."
    )
    peak_fp16_tensor_tflops: float | None = Field(
        description="Dense FP16 matrix rate in TFLOPS, with FP32 accumulation where vendors tell; null where unknown."
    )
    peak_fp8_tensor_tflops: float | None = Field(
        description="FP8 matrix rate in TFLOPS; null where unknown, or it has none."
    )
    peak_fp4_tensor_tflops: float | None = Field(
        description="FP4 matrix rate in TFLOPS; null where unknown, or it has none."
    )
    dies: int = Field(description="Devices as which software sees the card; all other figures are of the whole card.")
    compute_units: int | None = Field(
        description="Number of streaming multiprocessors, compute units or Xe cores; null where unknown."
    )
    open_names: list[str] = Field(description="Names that leave form factor or memory open, taken for this one.")
    bandwidth_gb_s: float | None = Field(description="Memory bandwidth in GB/s; null where unknown.")
    memory_gib: float | None = Field(description="Memory in GiB; null where unknown.")
    tdp_w: float | None = Field(description="Thermal design power in W; null where unknown.")
    release_year: int | None = Field(description="Year of its release; null where unknown.")
    source: str = Field(description="Source of the figures.")
    aliases: list[str] = Field(description="Other names of the device.")
    peak_int8_tensor_tops: float | None = Field(
        description="INT8 matrix rate in TOPS; null where unknown, or it has none."
    )
    cache_mib: float | None = Field(description="Last-level cache on the chip in MiB; null where unknown.")
    usd_per_hour: float | None = Field(
        description="On-demand price of one such device with its host, in USD per hour; null where unknown."
    )
    usd_source: str | None = Field(description="Source of the price; null where no price is known.")
    usd_date: str | None = Field(description="Date of the price; null where no price is known.")
    chip: str | None = Field(
        description="Chip of a phone, board or laptop, by its name here; null where none is known."
    )


class Catalogue(BaseModel):
    """The public spec sheet of this version of the platform."""

    devices: list[Spec] = Field(description="All devices of the spec sheet.")
    version: str = Field(description="Version of the platform.")


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["hardware"])
    reader = advisor.reader

    @routes.get("/hardware", response_model=HardwareList, responses=problem_responses(503) | NOT_MODIFIED)
    def hardware(request: Request) -> Response:
        """List every hardware name that this platform runs or has results of."""
        return table_response(reader, request, lambda tables: {"hardware": [*_names(tables).values()]})

    @routes.get(
        "/hardware/{name}", response_model=OneHardware, responses=problem_responses(404, 422, 503) | NOT_MODIFIED
    )
    def one_hardware(request: Request, name: str) -> Response:
        """Return one hardware name: the devices that hosts found under it, and the devices with results."""

        def read(tables: Reader) -> dict[str, Any]:
            selection = selection_of(None, name, None)
            [known] = selection.hardware
            found = _names(tables, known)
            if known not in found:
                require_known(tables, selection)
                raise NotFound(f"No hardware is called {name!r}. Names: {', '.join(_names(tables))}.")
            return {
                "hardware": found[known],
                "seen": parse_json_columns(tables.rows(_SEEN, {"name": known}), "runtime_versions"),
                "measured": tables.rows(_MEASURED, {"name": known}),
            }

        return table_response(reader, request, read)

    @routes.get("/devices", response_model=DevicePage, responses=problem_responses(404, 422, 503) | NOT_MODIFIED)
    def devices(request: Request, query: Annotated[DevicesQuery, Query()]) -> Response:
        """List each hardware name on each host as last seen: the device behind it, or why there is none.

        `hardware` means what it does for results; devices that only results are of are listed by `/hardware/{name}`.
        """

        def read(tables: Reader) -> dict[str, Any]:
            condition, values = equality_condition(host_id=query.host_id, available=query.available)
            if query.hardware:
                named, names = _hardware_condition(query.hardware)
                condition, values = f"{condition} AND {named}", values | names
            rows, more = _DEVICES.page(tables, query, condition, values)
            require_recorded_if_empty(rows, tables, "devices", {"host_id": query.host_id})
            if not rows or len(query.hardware) > 1:
                _require_known_hardware(tables, query.hardware)
            return {"devices": parse_json_columns(rows, "runtime_versions"), "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get("/catalogue")
    def catalogue() -> Catalogue:
        """Return the specs of devices that queries may name: peaks, bandwidth, memory, power, price."""
        specs = [Spec.model_validate(asdict(spec)) for spec in catalog()]
        return Catalogue(devices=specs, version=version("accel-platform"))

    return routes


def _hardware_condition(hardware: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return a condition on `devices` (as `r`) by name, choice or device, as results are filtered, and its values."""
    devices = list(Selection(hardware=tuple(hardware)).hardware_devices.values())
    named = ("r.hardware", "r.hardware || ':' || r.choice")
    tests = [*(f"list_contains($hardware, {one})" for one in named), "list_contains($devices, r.name)"]
    return f"({' OR '.join(tests)})", {"hardware": list(hardware), "devices": devices}


def _require_known_hardware(tables: Reader, hardware: Sequence[str]) -> None:
    """Check each name that no device answers to, as `require_known` does."""
    for name in hardware:
        condition, values = _hardware_condition((name,))
        if not tables.rows(f"SELECT 1 FROM devices AS r WHERE {condition} LIMIT 1", values):
            require_known(tables, Selection(hardware=(name,)))


def _names(tables: Reader, name: str | None = None) -> dict[str, dict[str, Any]]:
    """Return all hardware names with their counts, or one."""
    counted = {row["hardware"]: row for row in tables.rows(_RESULTS, {"name": name})}
    answered = [row for row in tables.rows(_SEEN, {"name": name}) if row["available"]]
    available = {row["hardware"] for row in answered}
    real = {row["hardware"] for row in answered if not row["emulated"]}
    known = [known for known in RUNTIMES if name in (None, known)]
    none = {"results": 0, "models": 0, "devices": 0}
    return {
        each: {
            **none,
            **counted.get(each, {}),
            "hardware": each,
            "backend": RUNTIMES[each].backend if each in RUNTIMES else None,
            "available": each in available,
            "emulated": each in available - real,
        }
        for each in [*known, *sorted(counted.keys() - set(known))]
    }
