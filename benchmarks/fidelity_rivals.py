"""The tools that `fidelity.py` compares with, each in a fresh process on the same model, inputs and threads.

The rivals of torch run here too: `time_torch` is all that such a process does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from accel_platform.subprocesses.json_child import child_environment
from fidelity_engine import Prepared


def benchmark_app(prepared: Prepared, threads: int, seconds: int) -> float:
    """Return the p50 in ns that OpenVINO's benchmark_app reports, in float32 and on the inputs of our child."""
    with tempfile.TemporaryDirectory() as folder, np.load(prepared.data) as stored:
        inputs = {key.partition("/")[2]: stored[key] for key in stored.files if key.startswith("input/")}
        for name, array in inputs.items():
            np.save(Path(folder) / f"{name}.npy", array)
        shapes = ",".join(f"{name}[{','.join(map(str, array.shape))}]" for name, array in inputs.items())
        command = [
            str(Path(sys.executable).with_name("benchmark_app")),
            *("-m", str(prepared.loads("openvino")), "-d", "CPU", "-shape", shapes),
            *("-hint", "none", "-nstreams", "1", "-nthreads", str(threads), "-api", "sync", "-t", str(seconds)),
            # Left to itself it would compute in bfloat16 where the processor can; our child does not.
            *("-infer_precision", "f32"),
            *("-i", ",".join(f"{name}:{Path(folder) / name}.npy" for name in inputs)),
            *("-json_stats", "-report_type", "no_counters", "-report_folder", folder),
        ]
        _run(command, threads)
        report = json.loads((Path(folder) / "benchmark_report.json").read_text(encoding="utf-8"))
    return float(report["execution_results"]["latency (ms)"]) * 1e6


def torch_timer(prepared: Prepared, threads: int, seconds: float) -> float:
    """Return the p50 in ns of torch.utils.benchmark's blocked_autorange."""
    answer = _ask("timer", prepared, threads, seconds)
    assert isinstance(answer, float)
    return answer


def plain_loop(prepared: Prepared, threads: int, seconds: float) -> list[int]:
    """Return the times in ns of a bare loop in one process, without a harness or a parent that waits."""
    answer = _ask("loop", prepared, threads, seconds)
    assert isinstance(answer, list)
    return answer


def _ask(what: str, prepared: Prepared, threads: int, seconds: float) -> Any:
    job = {
        "weights": str(prepared.loads("cpu")),
        "data": str(prepared.data),
        "threads": threads,
        "seconds": seconds,
    }
    script = "from fidelity_rivals import time_torch; time_torch()"
    return json.loads(_run([sys.executable, "-c", script, what, json.dumps(job)], threads))


def _run(command: list[str], threads: int) -> str:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, **child_environment(threads), "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed: {done.stdout[-500:]} {done.stderr[-1500:]}")
    return done.stdout


def _torch(what: str, job: dict[str, Any]) -> float | list[int]:
    import torch
    from torch.utils.benchmark import Timer
    from transformers import AutoModel

    torch.set_num_threads(job["threads"])
    model = AutoModel.from_pretrained(job["weights"], dtype=torch.float32).eval()
    with np.load(job["data"]) as stored:
        inputs = {k.partition("/")[2]: torch.from_numpy(stored[k]) for k in stored.files if k.startswith("input/")}
    with torch.inference_mode():
        warm_until = time.perf_counter() + 0.3
        while time.perf_counter() < warm_until:
            model(**inputs)
        if what == "timer":
            timer = Timer("model(**inputs)", globals={"model": model, "inputs": inputs}, num_threads=job["threads"])
            return float(timer.blocked_autorange(min_run_time=job["seconds"]).median * 1e9)
        times: list[int] = []
        end = time.perf_counter_ns() + int(job["seconds"] * 1e9)
        while time.perf_counter_ns() < end:
            start = time.perf_counter_ns()
            model(**inputs)
            times.append(time.perf_counter_ns() - start)
        return times


def time_torch() -> None:
    """Print the figure that the first argument names, for the job in the second: all that a process of `_ask` does."""
    print(json.dumps(_torch(sys.argv[1], json.loads(sys.argv[2]))))
