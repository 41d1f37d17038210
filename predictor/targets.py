"""Which hardware a question is about: from names, as people give them, to targets. Nothing is known of them here."""

from __future__ import annotations

import difflib
from typing import get_args

from accel_platform.errors import InvalidInput
from accel_platform.events.types import Hardware
from accel_platform.hardware.catalog import catalog, find_spec
from predictor.evidence import Evidence, Target

_DRIVEN_AS = {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "mps", "Qualcomm": "qnn"}
"""The hardware name under which a vendor's accelerators are measured."""


def choose_targets(evidence: Evidence, names: list[str] | None) -> tuple[list[Target], list[tuple[str, str | None]]]:
    """The targets that the names mean, and hardware and device of the names that are real but known to no host.

    A name is a hardware name, a device's name or a device id, whatever its case; None means every target. Raises
    InvalidInput, with close matches, for a name of none of these.
    """
    targets = evidence.targets()
    if names is None:
        return targets, []
    chosen: list[Target] = []
    missing: list[tuple[str, str | None]] = []
    for name in dict.fromkeys(names):
        here = [t for t in targets if name.casefold() in {known.casefold() for known in _names(t)}]
        chosen += [t for t in here if t not in chosen]
        if not here:
            missing.append(_elsewhere(name, targets))
    return chosen, missing


def _elsewhere(name: str, targets: list[Target]) -> tuple[str, str | None]:
    """Hardware and device that a name means which no target has. Raises InvalidInput if there is no such hardware."""
    kinds = {kind.casefold(): kind for kind in get_args(Hardware)}
    if name.casefold() in kinds:
        return kinds[name.casefold()], None
    spec = find_spec(name)
    if spec is not None:
        hardware = "cpu" if spec.kind == "cpu" else _DRIVEN_AS.get(str(spec.vendor))
        if hardware is None:
            raise InvalidInput(f"No runtime of this platform drives {spec.name}: nothing can be said of it.")
        return hardware, spec.name
    known = {*kinds.values(), *(name for target in targets for name in _names(target))}
    close = difflib.get_close_matches(name, sorted(known | {spec.name for spec in catalog()}), n=3)
    hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(sorted(known))}."
    raise InvalidInput(f"No hardware is called {name!r}. {hint}")


def _names(target: Target) -> set[str]:
    return {name for name in (target.hardware, target.device, target.device_id) if name}
