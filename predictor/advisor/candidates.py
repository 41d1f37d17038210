"""Which hardware a question is about: from names and specs, as people give them, to candidates. Nothing is measured or
predicted here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import get_args

from accel_platform.backends.registry import runtime_for
from accel_platform.errors import InvalidInput
from accel_platform.events.types import Hardware
from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec
from predictor.data.evidence import Evidence, Target
from predictor.data.samples import device_spec_for
from predictor.schemas.requests import OwnDevice
from predictor.schemas.responses import ExclusionCause

_DRIVEN_AS = {
    ("NVIDIA", "gpu"): "cuda",
    ("AMD", "gpu"): "rocm",
    ("Apple", "gpu"): "mps",
    ("Intel", "gpu"): "openvino",
    ("Qualcomm", "npu"): "qnn",
}
"""The hardware name under which a vendor's accelerators are measured; every processor is `cpu`."""
_OWN = "own:"
_KINDS = {kind.casefold(): kind for kind in get_args(Hardware)}
_OWN_DRIVEN_AS: dict[str, Hardware] = {"gpu": "cuda", "cpu": "cpu", "npu": "qnn"}


@dataclass(frozen=True)
class Candidate:
    """Somewhere the model might run, and what is known of the silicon."""

    target: Target
    """Of a device that nobody here has, one of its own: no measurement is of it."""
    spec: DeviceSpec
    here: bool = True
    """Evidence knows it: a host has it, looked for it, or sent or wrote figures of it."""
    own: bool = False
    """The asker described it: its name says nothing to anyone else."""

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
class AbsentDevice:
    """Hardware that was named and that no target stands for."""

    hardware: str
    device: str | None
    cause: ExclusionCause
    reason: str


def choose_candidates(
    evidence: Evidence, hardware: Sequence[str | OwnDevice] | None
) -> tuple[list[Candidate], list[AbsentDevice]]:
    """The candidates that names and specs mean, and what has none.

    A name is a hardware name, a device's name or a device id, whatever its case; a device of the spec sheet is meant by
    any of its names. None means every target of the evidence. Raises InvalidInput, with close matches, for a name of
    none of these.
    """
    if hardware is None:
        return [_known(evidence, target) for target in evidence.targets()], []
    meaning = evidence.memoize("meaning", lambda: lru_cache(maxsize=1024)(partial(_meaning, evidence)))
    chosen: dict[Candidate | Target, Candidate] = {}
    missing: dict[AbsentDevice, None] = {}
    for asked in hardware:
        for found in [_own(asked)] if isinstance(asked, OwnDevice) else meaning(asked):
            if isinstance(found, Candidate):
                chosen[found if found.own else found.target] = found
            else:
                missing[found] = None
    return list(chosen.values()), list(missing)


def _meaning(evidence: Evidence, name: str) -> list[Candidate | AbsentDevice]:
    """What a name means. Raises InvalidInput if there is no such hardware."""
    here = [_known(evidence, target) for target in _called(evidence, name)]
    spec = find_spec(name)
    driven = None if spec is None else _driven(spec)
    if spec is None or driven is None or any(c.target.backend == runtime_for(driven).backend for c in here):
        return [*here] or [_elsewhere(name, evidence.targets())]
    # Others ran something else on it; what runs here may be asked for all the same.
    return [*here, _unmeasured(driven, spec, "catalogue:")]


def _elsewhere(name: str, targets: list[Target]) -> Candidate | AbsentDevice:
    """What a name means that no target has. Raises InvalidInput if there is no such hardware."""
    if name.casefold() in _KINDS:
        reason = "nothing was measured there, and no known host has it"
        return AbsentDevice(_KINDS[name.casefold()], None, "unavailable", reason)
    spec = find_spec(name)
    if spec is not None:
        hardware = _driven(spec)
        if hardware is None:
            return AbsentDevice(spec.kind, spec.name, "no_runtime", f"no runtime of this platform drives {spec.name}")
        return _unmeasured(hardware, spec, "catalogue:")
    known = {*_KINDS.values(), *(name for target in targets for name in _names(target))}
    everything = sorted(known | {spec.name for spec in catalog()})
    words = set(name.casefold().split())
    # `NVIDIA A100` is several devices, and spelt more like an A10 than like any of them.
    holding = [candidate for candidate in everything if words <= set(candidate.casefold().split())]
    close = holding[:5] or difflib.get_close_matches(name, everything, n=3)
    hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(sorted(known))}."
    raise InvalidInput(f"No hardware is called {name!r}. {hint}")


def _driven(spec: DeviceSpec) -> str | None:
    return "cpu" if spec.kind == "cpu" else _DRIVEN_AS.get((str(spec.vendor), spec.kind))


def _own(asked: OwnDevice) -> Candidate:
    spec = DeviceSpec(
        **asked.model_dump(exclude={"hardware"}),
        vendor=None,
        release_year=None,
        source="as given in the question",
        usd_source=None if asked.usd_per_hour is None else "as given in the question",
    )
    return _unmeasured(asked.hardware or _OWN_DRIVEN_AS[asked.kind], spec, _OWN)


def _unmeasured(hardware: str, spec: DeviceSpec, whose: str) -> Candidate:
    target = Target(hardware, runtime_for(hardware).backend, f"{whose}{spec.name}", spec.name)
    return Candidate(target, spec, here=False, own=whose == _OWN)


def _known(evidence: Evidence, target: Target) -> Candidate:
    return evidence.memoize(
        ("candidate", target), lambda: Candidate(target, device_spec_for(target, evidence.by_device))
    )


def _called(evidence: Evidence, name: str) -> list[Target]:
    """The targets of that name, and of whatever name if they are of the device of the spec sheet that it means."""
    spec = find_spec(name)
    found = {*evidence.memoize("names", lambda: _by_name(evidence)).get(name.casefold(), ())}
    if spec is not None:
        found.update(evidence.memoize("specs", lambda: _by_spec(evidence)).get(spec.name, ()))
    return sorted(found, key=Target.sort_key)


def _by_name(evidence: Evidence) -> dict[str, list[Target]]:
    found: dict[str, list[Target]] = {}
    for target in evidence.targets():
        for name in {name.casefold() for name in _names(target)}:
            found.setdefault(name, []).append(target)
    return found


def _by_spec(evidence: Evidence) -> dict[str, list[Target]]:
    found: dict[str, list[Target]] = {}
    for target in evidence.targets():
        if (spec := find_spec(target.device)) is not None:
            found.setdefault(spec.name, []).append(target)
    return found


def _names(target: Target) -> set[str]:
    return {name for name in (target.hardware, target.device, target.device_id) if name}
