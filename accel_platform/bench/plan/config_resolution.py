"""Resolution of a configuration's names to models, hardware and an effort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES
from accel_platform.backends.registry import RUNTIMES, in_browser, runtime_for
from accel_platform.bench.plan.config import WEB, BenchmarkConfig, is_web
from accel_platform.bench.plan.run_options import Effort, effort_preset
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.events.types import ModelDescribed
from accel_platform.workloads.custom_models import custom_models, read_models
from accel_platform.workloads.model_catalog import ModelSpec, find_model, model_set, resolve_model
from accel_platform.workloads.sources import absolute_source, is_source, is_sourced, reread_source, spec_of_source
from accel_platform.workloads.weights import is_weights_folder, with_weights


def resolve_effort(config: BenchmarkConfig) -> Effort:
    """Return the named effort with the configuration's own limits. Raises InvalidInput for an unknown name."""
    effort = effort_preset(config.effort)
    sampling = effort.sampling
    if config.warmup_iterations is not None:
        sampling = replace(sampling, warmup_min_count=config.warmup_iterations)
    if config.benchmark_iterations is not None:
        sampling = replace(sampling, min_count=max(MIN_MEDIAN_SAMPLES, config.benchmark_iterations))
    if config.timeout is not None:
        # End sampling at half the timeout, because a killed cell loses its samples; compiling and warmup need the rest.
        half = config.timeout / 2
        sampling = replace(sampling, limit_s=half, max_time_s=min(sampling.max_time_s, half))
        effort = replace(effort, timeout_s=config.timeout)
    return replace(effort, sampling=sampling)


def described_models(log: EventLog) -> dict[str, ModelSpec]:
    """Return the models outside the catalogue, as runs last described them, by id, alias and file."""
    found: dict[str, ModelSpec] = {}
    for event in log.read(types={"ModelDescribed"}):
        assert isinstance(event.payload, ModelDescribed)
        spec = ModelSpec.of_description(event.payload.model_dump())
        if spec is not None:
            found |= dict.fromkeys((spec.model_id, *spec.aliases, spec.config.get("source", spec.model_id)), spec)
    return found


class ModelNames:
    """Models by name: those of a configuration, of the catalogue, of sources, and those that runs described."""

    def __init__(self, own: Mapping[str, ModelSpec], log: EventLog | None) -> None:
        self.own, self._log = own, log

    def resolve(self, name: str) -> ModelSpec:
        """Return the model of this name. Raises NotFound, InvalidInput."""
        if name in self.own:
            return self.own[name]
        # Before the catalog, which would take the path for the hub id of the model that its last part names.
        if "/" in name and is_weights_folder(name):
            return _of_weights(Path(name).expanduser())
        if (known := find_model(name)) is not None:
            return known
        # The log is read last, because that takes longest.
        # The same words in another folder are another file.
        described = self._described_models.get(absolute_source(name))
        if described is None:
            return spec_of_source(name) if is_source(name) else resolve_model(name)
        return reread_source(described) if is_sourced(described) else described

    @cached_property
    def _described_models(self) -> dict[str, ModelSpec]:
        return {} if self._log is None else described_models(self._log)


def _of_weights(folder: Path) -> ModelSpec:
    """Return the model of a folder with weights: the catalog's of that name, else one that the folder names."""
    if (known := find_model(folder.name)) is not None:
        return with_weights(known, str(folder))
    (own,) = custom_models({folder.name: {"weights": str(folder)}}, where=str(folder)).values()
    return own


def select_models(
    names: tuple[str, ...] | None, set_: str | None, known: ModelNames, weights: Mapping[str, str]
) -> list[ModelSpec]:
    """Return the models of the names and the set; custom models come before the catalog's. Raises NotFound,
    InvalidInput."""
    if set_ is None and names is None:
        set_ = "custom" if known.own else "small"
    found = [known.resolve(name) for name in names or ()]
    if set_ == "custom" and not known.own:
        raise InvalidInput("The set custom is what a models file holds: name one.")
    if set_ is not None:
        found += known.own.values() if set_ == "custom" else model_set(set_)
    found = list(dict.fromkeys(found))
    for name, source in weights.items():
        model = known.resolve(name)
        if model not in found:
            raise InvalidInput(f"There are weights for {name}, which is not among the models to measure.")
        found[found.index(model)] = with_weights(model, source)
    return found


def resolve_models(config: BenchmarkConfig, log: EventLog | None = None) -> tuple[list[ModelSpec], dict[str, str]]:
    """Return the models of a configuration, and headings by model id; `log` knows those of earlier runs.

    Raises NotFound, InvalidInput.
    """
    own: dict[str, ModelSpec] = {}
    if config.models_file is not None:
        own |= read_models(config.models_file)
    names: list[str] = []
    if isinstance(config.models, dict):
        own |= custom_models(config.models, where="models")
        names += config.models
    else:
        names += config.models or ()
    known = ModelNames(own, log)
    headings: dict[str, str] = {}
    for heading, members in (config.model_families or {}).items():
        names += members
        headings |= {known.resolve(name).model_id: heading for name in members}
    return select_models(tuple(names) or None, config.set, known, config.weights), headings


def resolve_hardware(config: BenchmarkConfig) -> list[str]:
    """Return the configuration's hardware names, in its browser; all known ones where it names none."""
    names: list[str] = [*(config.hardware_types if config.hardware_types is not None else RUNTIMES)]
    if config.include_web_platforms:
        names += WEB
    if config.include_web_platforms is False:
        names = [name for name in names if not is_web(name)]
    if config.browser is not None:
        names = [in_browser(name, config.browser) for name in names]
    return list(dict.fromkeys(runtime_for(name).name for name in names))
