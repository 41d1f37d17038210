"""OpenVINO GenAI on the processor, generating from the stateful graph of `bench/prepare/decoder_export.py`."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import openvino_genai

from accel_platform.backends.base import Arrays, Confirmation, Generation, UnsupportedPrecision, share
from accel_platform.backends.openvino import HINTS, PRODUCTS, SEEN_PRECISIONS


class OpenVINOGenAIBackend:
    """LLMPipeline as OpenVINO GenAI's own benchmark drives it: no prefix cache, and the whole prompt in one pass.

    The pipeline returns tokens without logits. Those are of the same graph in the same precision, run without it.
    """

    name = "openvino"
    compiles = False

    def __init__(self, *, device: str, threads: int) -> None:
        self._device, self._threads = device, threads
        self._precision = "float32"
        self._graph: Path | None = None
        self._pipeline: Any = None
        self._compiled: Any = None

    def versions(self) -> dict[str, str]:
        return {"openvino": openvino.__version__, "openvino-genai": openvino_genai.__version__}

    def load(self, artifact: Path, *, precision: str) -> None:
        self._graph, self._precision = artifact, precision
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = sys.maxsize
        self._pipeline = openvino_genai.LLMPipeline(
            artifact.parent, self._device, scheduler_config=scheduler, **self._properties()
        )

    def generate(self, prompt: Arrays, new_tokens: int) -> Generation:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        # It wants one, which ends nothing.
        config.eos_token_id = 0
        given = openvino_genai.TokenizedInputs(
            openvino.Tensor(np.ascontiguousarray(prompt["input_ids"], dtype=np.int64)),
            openvino.Tensor(np.ones(prompt["input_ids"].shape, dtype=np.int64)),
        )
        answer = self._pipeline.generate(given, config)
        raw = answer.perf_metrics.raw_metrics
        prefill, first = raw.token_infer_durations[0], raw.m_times_to_first_token[0]
        # Moments are in milliseconds, durations in microseconds.
        later = [(end - start) * 1e3 for start, end in pairwise(raw.m_new_token_times)]
        times_us = (prefill, first - prefill, *later)
        return Generation(np.array(answer.tokens), tuple(round(time * 1e3) for time in times_us))

    def logits(self, prompt: Arrays, tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        request = self._plain().create_infer_request()
        rows, length = prompt["input_ids"].shape
        found = []
        for given, past in ((prompt["input_ids"], 0), (tokens[:, :-1], length)):
            step = {
                "input_ids": np.ascontiguousarray(given, dtype=np.int64),
                "attention_mask": np.ones((rows, past + given.shape[1]), dtype=np.int64),
                "position_ids": np.tile(np.arange(past, past + given.shape[1]), (rows, 1)),
                "beam_idx": np.arange(rows, dtype=np.int32),
            }
            found.append(request.infer(step)["logits"][:, -1])
        return found[0], found[1]

    def precision_share(self) -> float | None:
        facts = [node.get_rt_info() for node in self._plain().get_runtime_model().get_ops()]
        products = [fact for fact in facts if fact["layerType"].value.casefold() in PRODUCTS]
        wanted = SEEN_PRECISIONS[self._precision]
        return share(Counter(fact["runtimePrecision"].value.casefold() in wanted for fact in products))

    def confirm(self) -> Confirmation:
        devices = self._plain().get_property("EXECUTION_DEVICES")
        return Confirmation(self._device, tuple(device.partition(".")[0] for device in devices))

    def memory_device_peak_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._pipeline = self._compiled = None

    def _properties(self) -> dict[str, Any]:
        return {
            "INFERENCE_PRECISION_HINT": HINTS[self._precision],
            # Left to itself OpenVINO keeps keys and values in 8 bits.
            "KV_CACHE_PRECISION": HINTS[self._precision],
            "INFERENCE_NUM_THREADS": self._threads,
        }

    def _plain(self) -> Any:
        """Return the graph compiled without the pipeline; after measuring, because it takes memory of its own."""
        if self._compiled is None:
            core = openvino.Core()
            self._compiled = core.compile_model(core.read_model(self._graph), self._device, self._properties())
            hint, chosen = HINTS[self._precision], self._compiled.get_property("INFERENCE_PRECISION_HINT")
            if chosen.get_type_name() != hint:
                able = ", ".join(core.get_property(self._device, "OPTIMIZATION_CAPABILITIES"))
                raise UnsupportedPrecision(
                    f"OpenVINO was asked for {hint} and compiled for {chosen.get_type_name()}: "
                    f"this {self._device} has {able}."
                )
        return self._compiled
