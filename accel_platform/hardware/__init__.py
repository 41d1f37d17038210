"""What this host is made of: host, devices, fingerprints. Nothing is timed here."""

from accel_platform.hardware.detect import Inventory, detect, fingerprint_of

__all__ = ["Inventory", "detect", "fingerprint_of"]
