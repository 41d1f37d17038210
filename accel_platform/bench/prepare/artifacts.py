"""Paths of prepared models in the cache: weights, graphs, inputs and reference outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accel_platform.bench.prepare.aten_export import GRAPH
from accel_platform.hardware.host import installed_versions

if TYPE_CHECKING:
    from accel_platform.backends.registry import Artifact
    from accel_platform.events.types import Mode
    from accel_platform.settings import Settings
    from accel_platform.workloads.model_catalog import ModelSpec

LAYOUT = 2
"""Raise it whenever what the preparing worker writes, or how it traces a model's cost, changes."""
_PACKAGES = ("torch", "transformers", "diffusers", "onnx", "onnxscript", "onnxruntime", "numpy", "timm")
_MODE_PACKAGES: dict[Mode, tuple[str, ...]] = {"generation": ("openvino", "onnxruntime-genai", "nncf")}
"""Further packages that decide what is written for a mode."""
Shape = tuple[int, int | None]
"""Batch size and sequence length."""
Exporter = Literal["dynamo", "torchscript", "openvino"]
"""Exporter of graphs for runtimes that read ONNX: torch.export, tracing, or OpenVINO's own converter."""


@dataclass(frozen=True)
class Artifacts:
    """The folder of one model in one mode: its weights, its graphs, and per shape its inputs and reference outputs."""

    folder: Path
    exporter: Exporter = "dynamo"

    @classmethod
    def of(
        cls, spec: ModelSpec, settings: Settings, exporter: Exporter = "dynamo", mode: Mode = "inference"
    ) -> Artifacts:
        """Return the artifacts of a model. The folder's name hashes the config, real weights and library versions."""
        versions = installed_versions((*_PACKAGES, *_MODE_PACKAGES.get(mode, ())))
        if spec.architecture == "openvino":
            exporter = "openvino"
        real = [spec.weights.sha256] if spec.weights else []
        key = json.dumps([LAYOUT, spec.architecture, spec.config, mode, versions, *real], sort_keys=True)
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return cls(settings.cache_dir.absolute() / "prepared" / f"{spec.model_id}-{digest}", exporter)

    @property
    def weights(self) -> Path:
        """A folder for `from_pretrained`."""
        return self.folder / "weights"

    def graph_folder(self, kind: Artifact, sequence_length: int | None) -> Path:
        if "decoder" in kind:
            return self.folder / kind
        made = f"-{self.exporter}" if kind == "onnx" and self.exporter != "dynamo" else ""
        return self.folder / (kind + made if sequence_length is None else f"{kind}{made}-{sequence_length}")

    def graph(self, kind: Artifact, sequence_length: int | None) -> Path:
        """Return the path of a graph, which takes every batch size at one fixed sequence length.

        That of a decoder takes every length; its runtime finds it by its folder.
        """
        if "decoder" in kind:
            return self.graph_folder(kind, None) / ("genai_config.json" if "onnx" in kind else "openvino_model.xml")
        name = GRAPH if kind == "aten" else "model.onnx"
        if kind == "onnx" and self.exporter == "openvino":
            name = "model.xml"
        return self.graph_folder(kind, sequence_length) / name

    def data(self, shape: Shape) -> Path:
        """Return the path of an .npz with `input/<name>`, `other/<name>` (a second input) and `reference/<name>` (for
        the first).

        Where the reference is of some items of a large batch alone, `items/compared` are their indices. For training
        the inputs include labels or targets, and `parameters/trainable` marks the learned parameters. For
        generation `greedy/tokens` and `greedy/margins` are added.
        """
        return self._shaped("data", shape)

    def inputs(self, shape: Shape) -> Path:
        """Return the path of an .npz as in `data` without a reference, for unverified measurements."""
        return self._shaped("inputs", shape)

    def artifact(self, kind: Artifact, sequence_length: int | None) -> Path:
        """Return the path that a backend which reads `kind` loads."""
        return self.weights if kind == "weights" else self.graph(kind, sequence_length)

    def missing(self, kinds: Iterable[Artifact], shapes: Iterable[Shape], *, reference: bool = True) -> bool:
        """Return whether any of these files does not exist; without `reference` inputs alone are enough."""
        shapes = tuple(shapes)
        wanted = {self.artifact(kind, length) for kind in kinds for _, length in shapes} | {self.weights}
        return not all(path.exists() for path in (*wanted, *map(self.data if reference else self.inputs, shapes)))

    def _shaped(self, what: str, shape: Shape) -> Path:
        batch_size, sequence_length = shape
        return self.folder / f"{what}-{batch_size}x{sequence_length or 'fixed'}.npz"
