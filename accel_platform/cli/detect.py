"""`accel detect`: what hardware this host has, printed and put on record. The looking is done in `hardware/`."""

from __future__ import annotations

from accel_platform.cli.output import PEOPLE, FileFormat, Home, Json, Output, answer, chosen, note, settings_for


def detect(output: Output = None, format_: FileFormat = None, home: Home = None, as_json: Json = False) -> None:
    """Look at this host: each kind of hardware with its device, or why it is not available."""
    from accel_platform.backends.detect import detect as look
    from accel_platform.backends.detect import fingerprint_of
    from accel_platform.events import EventLog
    from accel_platform.hardware.cpu import usable_cores

    inventory = look()
    appended = EventLog.open(settings_for(home)).append(inventory.events())
    kind, threads = chosen(as_json, format_, output), usable_cores()
    devices = [
        {
            **device.model_dump(mode="json"),
            "fingerprint": fingerprint_of(device, threads=threads) if device.available else None,
        }
        for device in inventory.devices
    ]
    host = inventory.host
    note(f"{host.hostname} ({inventory.host_id}): {host.cpu_model}, {host.memory_mib / 1024:.0f} GiB, {host.os}")
    short = [
        {
            "hardware": name,
            "available": ("emulated" if device.emulated else "yes") if device.available else "no",
            "backend": device.backend,
            "device": device.device_id if device.available else f"({device.reason})",
        }
        for name, device in zip(inventory.names, inventory.devices, strict=True)
    ]
    document = {"host_id": inventory.host_id, "host": host, "devices": devices}
    answer(short if kind in PEOPLE else devices, kind, output, title="Hardware of this host", document=document)
    note(f"Recorded as {appended.segment}.")
