"""`accel detect`: what hardware this host has, printed and put on record. The looking is done in `hardware/`."""

from __future__ import annotations

from accel_platform.cli.output import (
    Format,
    Home,
    Json,
    OutputFormat,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)


def detect(home: Home = None, as_json: Json = False, format_: OutputFormat = Format.table) -> None:
    """Look at this host: each kind of hardware with its device, or why it is not available."""
    from accel_platform.events import EventLog
    from accel_platform.hardware import detect as look
    from accel_platform.hardware import fingerprint_of
    from accel_platform.hardware.cpu import usable_cores

    inventory = look()
    appended = EventLog.open(settings_for(home)).append(inventory.events())
    if wants_json(as_json, format_):
        threads = usable_cores()
        devices = [
            {
                **device.model_dump(mode="json"),
                "fingerprint": fingerprint_of(device, threads=threads) if device.available else None,
            }
            for device in inventory.devices
        ]
        print_json({"host_id": inventory.host_id, "host": inventory.host, "devices": devices})
        return
    host = inventory.host
    note(f"{host.hostname} ({inventory.host_id}): {host.cpu_model}, {host.memory_mib / 1024:.0f} GiB, {host.os}")
    print_table(
        [
            {
                "hardware": name,
                "available": ("emulated" if device.emulated else "yes") if device.available else "no",
                "backend": device.backend,
                "device": device.device_id if device.available else f"({device.reason})",
            }
            for name, device in zip(inventory.names, inventory.devices, strict=True)
        ]
    )
    note(f"Recorded as {appended.segment}.")
