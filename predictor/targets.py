"""Which hardware a question is about: from names and specs, as people give them, to candidates. Nothing is measured or
predicted here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from accel_platform.backends.registry import runtime_for
from accel_platform.errors import InvalidInput
from accel_platform.events.types import Hardware
from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec
from predictor.answers import Cause
from predictor.cases import silicon_of
from predictor.evidence import Evidence, Target
from predictor.questions import OwnDevice

_DRIVEN_AS = {
    ("NVIDIA", "gpu"): "cuda",
    ("AMD", "gpu"): "rocm",
    ("Apple", "gpu"): "mps",
    ("Intel", "gpu"): "openvino",
    ("Qualcomm", "npu"): "qnn",
}
"""The hardware name under which a vendor's accelerators are measured; every processor is `cpu`."""
_OWN_DRIVEN_AS: dict[str, Hardware] = {"gpu": "cuda", "cpu": "cpu", "npu": "qnn"}


@dataclass(frozen=True)
class Candidate:
    """Somewhere the model might run, and what is known of the silicon."""

    target: Target
    """Of a device that nobody here has, one of its own: no measurement is of it."""
    spec: DeviceSpec
    here: bool = True
    """Evidence knows it: a host has it, looked for it, or sent or wrote figures of it."""

    @property
    def device_id(self) -> str | None:
        """For an answer: None where nobody here has the device."""
        return self.target.device_id if self.here else None

    @property
    def hardware_name(self) -> str:
        """What `accel bench` calls it."""
        beside_the_processor = self.target.hardware == "openvino" and self.spec.kind == "gpu"
        return "openvino:gpu" if beside_the_processor else self.target.hardware


@dataclass(frozen=True)
class Missing:
    """Hardware that was named and that no target stands for."""

    hardware: str
    device: str | None
    cause: Cause
    reason: str


def choose_candidates(
    evidence: Evidence, hardware: Sequence[str | OwnDevice] | None
) -> tuple[list[Candidate], list[Missing]]:
    """The candidates that names and specs mean, and what has none.

    A name is a hardware name, a device's name or a device id, whatever its case; a device of the spec sheet is meant by
    any of its names. None means every target of the evidence. Raises InvalidInput, with close matches, for a name of
    none of these.
    """
    targets = evidence.targets()
    if hardware is None:
        return [Candidate(t, silicon_of(t, evidence.by_device)) for t in targets], []
    chosen: dict[Candidate, None] = {}
    missing: dict[Missing, None] = {}
    for asked in hardware:
        if isinstance(asked, OwnDevice):
            chosen[_own(asked)] = None
            continue
        here = [t for t in targets if _is_called(t, asked)]
        chosen.update((Candidate(t, silicon_of(t, evidence.by_device)), None) for t in here)
        found = None if here else _elsewhere(asked, targets)
        if isinstance(found, Candidate):
            chosen[found] = None
        elif found is not None:
            missing[found] = None
    return list(chosen), list(missing)


def _elsewhere(name: str, targets: list[Target]) -> Candidate | Missing:
    """What a name means that no target has. Raises InvalidInput if there is no such hardware."""
    kinds = {kind.casefold(): kind for kind in get_args(Hardware)}
    if name.casefold() in kinds:
        reason = "nothing was measured there, and no known host has it"
        return Missing(kinds[name.casefold()], None, "unavailable", reason)
    spec = find_spec(name)
    if spec is not None:
        hardware = "cpu" if spec.kind == "cpu" else _DRIVEN_AS.get((str(spec.vendor), spec.kind))
        if hardware is None:
            return Missing(spec.kind, spec.name, "no_runtime", f"no runtime of this platform drives {spec.name}")
        return _unmeasured(hardware, spec, "catalogue")
    known = {*kinds.values(), *(name for target in targets for name in _names(target))}
    close = difflib.get_close_matches(name, sorted(known | {spec.name for spec in catalog()}), n=3)
    hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(sorted(known))}."
    raise InvalidInput(f"No hardware is called {name!r}. {hint}")


def _own(asked: OwnDevice) -> Candidate:
    spec = DeviceSpec(
        **asked.model_dump(exclude={"hardware"}),
        vendor=None,
        release_year=None,
        source="as given in the question",
        usd_source=None if asked.usd_per_hour is None else "as given in the question",
    )
    return _unmeasured(asked.hardware or _OWN_DRIVEN_AS[asked.kind], spec, "own")


def _unmeasured(hardware: str, spec: DeviceSpec, whose: str) -> Candidate:
    target = Target(hardware, runtime_for(hardware).backend, f"{whose}:{spec.name}", spec.name)
    return Candidate(target, spec, here=False)


def _is_called(target: Target, name: str) -> bool:
    spec = find_spec(name)
    same_silicon = spec is not None and spec == find_spec(target.device)
    return same_silicon or name.casefold() in {known.casefold() for known in _names(target)}


def _names(target: Target) -> set[str]:
    return {name for name in (target.hardware, target.device, target.device_id) if name}
