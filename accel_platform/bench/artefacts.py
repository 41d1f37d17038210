"""Where prepared models lie, and under which names. Making them is `prepare.py`; the measuring process only reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accel_platform.bench.aten import GRAPH
from accel_platform.hardware.host import installed_versions

if TYPE_CHECKING:
    from accel_platform.backends.registry import Artefact
    from accel_platform.settings import Settings
    from accel_platform.workloads.families import ModelSpec

LAYOUT = 2
"""Raise it whenever what `prepare.py` writes changes."""
Shape = tuple[int, int | None]
"""Batch size and sequence length."""


@dataclass(frozen=True)
class Artefacts:
    """The folder of one model: its weights, its graphs, and per shape its inputs and reference outputs."""

    folder: Path

    @classmethod
    def of(cls, spec: ModelSpec, settings: Settings) -> Artefacts:
        """The folder's name holds a hash of the config and of the versions that weights and graph depend on."""
        versions = installed_versions(("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "numpy"))
        key = json.dumps([LAYOUT, spec.architecture, spec.config, versions], sort_keys=True)
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return cls(settings.cache_dir.absolute() / "prepared" / f"{spec.model_id}-{digest}")

    @property
    def weights(self) -> Path:
        """A folder for `from_pretrained`."""
        return self.folder / "weights"

    def graph_folder(self, kind: Artefact, sequence_length: int | None) -> Path:
        return self.folder / (kind if sequence_length is None else f"{kind}-{sequence_length}")

    def graph(self, kind: Artefact, sequence_length: int | None) -> Path:
        """One graph takes every batch size; the sequence length is fixed in it."""
        return self.graph_folder(kind, sequence_length) / (GRAPH if kind == "aten" else "model.onnx")

    def data(self, shape: Shape) -> Path:
        """An .npz with `input/<name>`, `other/<name>` (a second input) and `reference/<name>` (for the first)."""
        batch_size, sequence_length = shape
        return self.folder / f"data-{batch_size}x{sequence_length or 'fixed'}.npz"

    def artefact(self, kind: Artefact, sequence_length: int | None) -> Path:
        """What a backend that reads `kind` loads."""
        return self.weights if kind == "weights" else self.graph(kind, sequence_length)

    def missing(self, kinds: Iterable[Artefact], shapes: Iterable[Shape]) -> bool:
        """Whether anything of this has still to be made."""
        shapes = tuple(shapes)
        wanted = {self.artefact(kind, length) for kind in kinds for _, length in shapes} | {self.weights}
        return not all(path.exists() for path in (*wanted, *map(self.data, shapes)))
