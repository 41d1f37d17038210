"""ONNX Runtime GenAI on the processor, generating from the graph of `bench/prepare/decoder_export.py`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import onnxruntime_genai

from accel_platform.backends.base import Arrays, Confirmation, Generation
from accel_platform.backends.profiling import integer_share


class OnnxRuntimeGenAIBackend:
    """Its Generator, called token by token, as its own benchmark does."""

    name = "onnxruntime"
    compiles = False

    def __init__(self, *, device: str, threads: int) -> None:
        self._device, self._threads = device, threads
        self._precision = "float32"
        self._folder: Path | None = None
        self._model: Any = None

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": onnxruntime.__version__, "onnxruntime-genai": onnxruntime_genai.__version__}

    def load(self, artifact: Path, *, precision: str) -> None:
        self._folder, self._precision = artifact.parent, precision
        config = onnxruntime_genai.Config(str(self._folder))
        options = {"intra_op_num_threads": self._threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, prompt: Arrays, new_tokens: int) -> Generation:
        generator = self._generator(prompt, new_tokens)
        given = np.ascontiguousarray(prompt["input_ids"], dtype=np.int32)
        marks, chosen = [perf_counter_ns()], []
        generator.append_tokens(given)
        marks.append(perf_counter_ns())
        for _ in range(new_tokens):
            generator.generate_next_token()
            chosen.append(np.array(generator.get_next_tokens()))
            marks.append(perf_counter_ns())
        return Generation(np.stack(chosen, 1), tuple(end - start for start, end in pairwise(marks)))

    def logits(self, prompt: Arrays, tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        generator = self._generator(prompt, tokens.shape[1])
        generator.append_tokens(np.ascontiguousarray(prompt["input_ids"], dtype=np.int32))
        rows = np.arange(len(tokens))
        first = last = np.array(generator.get_logits()[:, -1])
        for column in tokens[:, :-1].T:
            # The generator appends tokens to several prompts only once, so each token is made the likeliest.
            forced = np.zeros_like(first)
            forced[rows, column] = 1.0
            generator.set_logits(forced)
            generator.generate_next_token()
            last = generator.get_logits()[:, -1]
        return first, np.array(last)

    def precision_share(self) -> float | None:
        """Return the share of integer products, as ONNX Runtime places the graph outside of the generator."""
        assert self._folder is not None
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = onnxruntime.InferenceSession(self._folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        parts = session.get_provider_graph_assignment_info()
        return integer_share((node.op_type for part in parts for node in part.get_nodes()), self._precision)

    def confirm(self) -> Confirmation:
        return Confirmation(self._device, (self._model.device_type.casefold(),))

    def memory_device_peak_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._model = None

    def _generator(self, prompt: Arrays, new_tokens: int) -> Any:
        rows, length = prompt["input_ids"].shape
        parameters = onnxruntime_genai.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, num_beams=1, batch_size=rows, max_length=length + new_tokens)
        return onnxruntime_genai.Generator(self._model, parameters)
