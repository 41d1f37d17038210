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

    inventory = look()
    appended = EventLog.open(settings_for(home)).append(inventory.events())
    if wants_json(as_json, format_):
        print_json({"host_id": inventory.host_id, "host": inventory.host, "devices": inventory.devices})
        return
    host = inventory.host
    note(f"{host.hostname} ({inventory.host_id}): {host.cpu_model}, {host.memory_mib / 1024:.0f} GiB, {host.os}")
    print_table(
        [
            {
                "hardware": device.hardware,
                "available": "yes" if device.available else "no",
                "backend": device.backend,
                "device": device.device_id if device.available else f"({device.reason})",
            }
            for device in inventory.devices
        ]
    )
    note(f"Recorded as {appended.segment}.")
