"""Other ways to run a torch model: compiled by torch.compile, or replayed as one CUDA graph. Inference only."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from accel_platform.backends.base import Arrays, Unsupported
from accel_platform.backends.profiling import OperatorTime
from accel_platform.backends.pytorch import PyTorchBackend

_WARMUP_RUNS = 3
"""Runs before a capture: libraries take their workspaces and choose their kernels in them."""


class _OneProgram(PyTorchBackend):
    """Base of both backends: one program per shape, in which torch's profiler sees no operators of the model."""

    compiles = True

    def __init__(self, *, device: str, threads: int, choice: str) -> None:  # noqa: ARG002 - each class serves one
        super().__init__(device=device, threads=threads)
        self._program: Any = None

    def close(self) -> None:
        self._program = None
        super().close()

    def operators(self, *, runs: int, trace: Path) -> list[OperatorTime]:  # noqa: ARG002 - as ProfilingBackend has it
        raise Unsupported(f"The operator times of {self.name} are not read here: profile the plain runtime.")


class CompiledPyTorchBackend(_OneProgram):
    """The model by torch.compile with its default options, compiled anew for the shape of each cell."""

    name = "pytorch-compile"

    def compile(self, inputs: Arrays) -> None:
        self._program = None
        # Earlier shapes would count against the limit of recompilations.
        torch.compiler.reset()
        super().compile(inputs)
        self._program = torch.compile(self.model, dynamic=False)
        self.bind(inputs)
        try:
            self.run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise Unsupported(f"torch.compile does not support this model here: {error}") from error

    def run(self) -> None:
        with torch.inference_mode():
            self._last = self._program(**self._inputs)
        self.synchronize()


@cache
def _capture_stream() -> Any:
    """Return the one stream on which graphs are warmed up and captured: cuBLAS keeps memory for each that it meets."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class GraphPyTorchBackend(_OneProgram):
    """The eager model's kernels as one CUDA graph: no operator is launched from Python, so small models run faster."""

    name = "pytorch-graph"

    def compile(self, inputs: Arrays) -> None:
        """Capture a run for exactly these shapes; `bind` copies into the inputs that it reads."""
        self._program = None
        super().compile(inputs)
        super().bind(inputs)
        stream = _capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                for _ in range(_WARMUP_RUNS):
                    self.model(**self._inputs)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    self._last = self.model(**self._inputs)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise Unsupported(f"A CUDA graph of this model is not supported: {error}") from error
        self._program = graph
        self.synchronize()

    def bind(self, inputs: Arrays) -> None:
        with torch.inference_mode():
            for name, array in inputs.items():
                self._inputs[name].copy_(torch.from_numpy(array))
        self.synchronize()

    def run(self) -> None:
        self._program.replay()
        self.synchronize()
