"""`accel devices`: the spec sheet, whose devices every query may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_platform.cli.options import PEOPLE, FileFormat, Json, Output, TableOptions
from accel_platform.cli.output import exit_if_nothing, note, write_answer

if TYPE_CHECKING:
    from accel_platform.hardware.catalog import DeviceSpec

_SHOWN = {
    "name": "device",
    "kind": "kind",
    "release_year": "year",
    "memory_gib": "memory_gib",
    "bandwidth_gb_s": "gb_per_s",
    "peak_fp32_tflops": "fp32_tflops",
    "peak_fp16_tensor_tflops": "fp16_tflops",
    "tdp_w": "watts",
    "usd_per_hour": "usd_per_hour",
}
"""Columns of the table by field; files hold every field."""


DeviceKind = Literal["gpu", "cpu", "npu"]


def devices(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A part of the device's or vendor's name, e.g. H100, or an instance type.", show_default="all"
        ),
    ] = None,
    kind: Annotated[DeviceKind | None, typer.Option(help="Only this kind of silicon.")] = None,
    output: Output = None,
    format_: FileFormat = None,
    as_json: Json = False,
) -> None:
    """List the devices of the spec sheet: rates, memory, power and price, with the source of each.

    `--hardware` of other commands takes any of their names, and a cloud's instance types. Rates are dense.
    """
    from dataclasses import asdict

    from accel_platform.errors import did_you_mean
    from accel_platform.hardware.catalog import catalog, find_spec
    from accel_platform.hardware.instances import find_instance, part_of_gpu, queried_device_name, suggest_instances

    instance = find_instance(name)
    exact = None if name is None else find_spec(queried_device_name(name))
    found = [
        asdict(spec)
        for spec in catalog()
        if (kind is None or spec.kind == kind) and (name is None or spec is exact or _is_part(name, spec))
    ]
    asked, table = " ".join(filter(None, (name, kind))), TableOptions(output, format_, as_json=as_json)
    document: dict[str, Any] = {"devices": found}
    if instance is not None:
        document["instance"] = asdict(instance)
    near = did_you_mean(suggest_instances(name or ""))
    hint = near or "Describe yours in a file: `accel predict --hardware-spec`."
    problem = f"The spec sheet has no device like {asked}."
    write_answer(
        found,
        table,
        title="Devices",
        short=_short,
        document=document,
        missing=" ".join(filter(None, (problem, part_of_gpu(name or ""), hint))),
    )
    if found and table.kind in PEOPLE:
        if instance is not None:
            price = "its price is not known" if instance.rent is None else f"all of it for {instance.rent.describe()}"
            note(f"{instance.describe(instance.name)}, {price}; figures are of one device")
        note("--json has other rates, all names, and the sources")
    exit_if_nothing(found)


def _is_part(text: str, spec: DeviceSpec) -> bool:
    names = (spec.name, spec.vendor or "", *spec.aliases, *spec.open_names, spec.chip or "")
    return any(text.casefold() in name.casefold() for name in names)


def _short(device: Mapping[str, Any]) -> dict[str, Any]:
    return {column: device[field] for field, column in _SHOWN.items()}
