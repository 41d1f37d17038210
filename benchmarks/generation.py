"""Text generation by the measuring engine against each runtime's own loop, on the same decoder and prompt.

In one process both generate by turns, A B B A, so that other work on the machine slows both alike. The rivals
drive the libraries as their own samples do: `benchmark_genai.py` of OpenVINO, `benchmark_e2e.py` of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from accel_platform.backends.base import Generating
from accel_platform.backends.registry import make_backend
from accel_platform.bench.measure.generation import NEW_TOKENS, RuntimeDecoder
from accel_platform.bench.measure.job import read_data
from accel_platform.bench.plan.plan import Cell, artifact_kind, plan_cells
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.preparation import prepare_models
from accel_platform.hardware.cpu import cpu_facts
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import resolve_model

Figure = dict[str, object]
Turn = tuple[float, float]
"""Time of one generation, and the median of its later tokens, both in ns."""
THREADS = 1


def ours(hardware: str, graph: Path, prompt: Any) -> Callable[[], Turn]:
    """Return a generation by the measuring engine, timed as a sample is."""
    backend = make_backend(hardware, threads=THREADS, mode="generation")
    backend.load(graph, precision="float32")
    assert isinstance(backend, Generating)
    decoder = RuntimeDecoder(backend, {"input_ids": prompt})

    def turn() -> Turn:
        start = time.perf_counter_ns()
        decoder.run()
        return time.perf_counter_ns() - start, statistics.median(decoder.timings_ns[-1][2:])

    return turn


def openvino_genai_loop(graph: Path, prompt: Any) -> Callable[[], Turn]:
    """Return a generation whose times the pipeline's own performance metrics tell."""
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens = False, sys.maxsize
    precise = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": THREADS}
    pipeline = openvino_genai.LLMPipeline(graph.parent, "CPU", scheduler_config=scheduler, **precise)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.eos_token_id = NEW_TOKENS, True, 0

    def turn() -> Turn:
        metrics = pipeline.generate(openvino.Tensor(prompt), config).perf_metrics
        return metrics.get_generate_duration().mean * 1e6, statistics.median(metrics.raw_metrics.m_durations) * 1e3

    return turn


def onnxruntime_genai_loop(graph: Path, prompt: Any) -> Callable[[], Turn]:
    """Return a generation timed by a clock around the generator's calls."""
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(graph.parent))
    options = {"intra_op_num_threads": THREADS, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = onnxruntime_genai.Model(config)
    tokens = prompt.astype(np.int32)

    def turn() -> Turn:
        start = time.perf_counter_ns()
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, batch_size=1, max_length=tokens.shape[1] + NEW_TOKENS)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(tokens)
        marks = []
        while not generator.is_done():
            generator.generate_next_token()
            marks.append(time.perf_counter_ns())
        return marks[-1] - start, statistics.median(end - begin for begin, end in pairwise(marks))

    return turn


RIVALS = {"openvino": openvino_genai_loop, "onnxruntime": onnxruntime_genai_loop}


def compare(cell: Cell, artifacts: Artifacts, seconds: float) -> list[Figure]:
    """Return the ratios of both figures for one runtime: medians of all turns, and of the fastest tenth."""
    graph = artifacts.artifact(artifact_kind(cell), cell.sequence_length)
    data = read_data(str(artifacts.data((cell.batch_size, cell.sequence_length))))
    prompt = np.ascontiguousarray(data["input"]["input_ids"])
    a, b = ours(cell.hardware, graph, prompt), RIVALS[cell.hardware](graph, prompt)
    found: tuple[list[tuple[float, ...]], list[tuple[float, ...]]] = ([], [])
    # As while the engine samples.
    gc.collect()
    gc.disable()
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        for side in (0, 1, 1, 0):
            used = time.process_time_ns()
            turn = (a, b)[side]()
            found[side].append((*turn, time.process_time_ns() - used))
    gc.enable()
    warm = [turns[len(turns) // 10 :] for turns in found]
    figures: list[Figure] = []
    # Processor time hardly depends on what else the machine does, and shows what either side adds.
    names = (f"time of {NEW_TOKENS} tokens", "time per output token", f"processor time of {NEW_TOKENS} tokens")
    for at, what in enumerate(names):
        mine, other = (sorted(turn[at] for turn in turns) for turns in warm)
        ratio = statistics.median(mine) / statistics.median(other) - 1
        fast = statistics.median(mine[: len(mine) // 10 + 1]) / statistics.median(other[: len(other) // 10 + 1]) - 1
        rate = (1 if "output" in what else NEW_TOKENS) / statistics.median(mine) * 1e9
        figures.append(
            {
                "what": f"{what} on {cell.hardware} against its own loop",
                "reach": "within 3%",
                "got": f"{ratio:+.1%}",
                "met": abs(ratio) <= 0.03,
                "fastest_tenth": round(fast, 4),
                "detail": f"{len(mine)} turns each, fastest tenth {fast:+.1%}, ours {rate:.0f} tokens/s",
            }
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--model", default="llama-tiny", help="a decoder of the catalog")
    parser.add_argument("--seconds", type=float, default=20, help="how long a runtime generates")
    parser.add_argument("--home", type=Path, help="keep the prepared model here instead of in a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=arguments.home or Path(folder))
        cells = plan_cells([resolve_model(arguments.model)], list(RIVALS), [1], modes=("generation",))
        if failures := prepare_models(cells, settings, threads=THREADS, timeout_s=600, report=lambda _: None):
            raise SystemExit(f"{arguments.model} cannot be prepared: {failures}")
        artifacts = Artifacts.of(cells[0].model, settings, mode="generation")
        figures = [figure for cell in cells for figure in compare(cell, artifacts, arguments.seconds)]
    load = os.getloadavg()[0]
    if arguments.json:
        machine = {"processor": cpu_facts()["name"], "threads": THREADS, "model": arguments.model, "load": load}
        print(json.dumps({"machine": machine, "figures": figures}, indent=2, ensure_ascii=False))
        return
    for figure in figures:
        word = "met" if figure["met"] else "MISSED"
        print(f"{figure['what']}: {figure['got']} (reach {figure['reach']}, {word}; {figure['detail']})")
    print(f"{arguments.model}, {THREADS} thread, load of the machine in the end: {load:.1f}")


if __name__ == "__main__":
    main()
