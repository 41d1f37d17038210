"""The checks of `gpu_proof.py` on numbers and times: contract, precisions, ways of running, modes, synchronization.

A check takes a `Target`. On a stand-in it runs what a processor has, and names what it has not.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from accel_platform.analysis.stats.medians import median_ns
from accel_platform.backends.base import Unsupported
from accel_platform.backends.pytorch import PyTorchBackend, rounding_of
from accel_platform.backends.registry import make_backend, runtime_for
from accel_platform.bench.measure.sampling import Sampling, collect_samples
from accel_platform.bench.measure.verification import TOLERANCE, relative_rms
from accel_platform.events.types import Mode
from accel_platform.workloads.model_catalog import resolve_model
from gpu_target import (
    REPOSITORY,
    Arrays,
    Outcome,
    Target,
    artifacts_of,
    loaded,
    measure_by_worker,
    prepare,
)

TIMED = (
    ("bert-tiny", 1), ("bert-base", 1), ("bert-large", 32), ("gpt2", 8), ("gpt2-medium", 16), ("t5-small", 8),
    ("vit-base", 1), ("vit-large", 32), ("resnet-50", 64), ("convnext-tiny", 32), ("whisper-small", 4),
    ("wav2vec2-base", 8),
)  # fmt: skip
"""Twelve models with batch sizes from launch-bound to milliseconds."""


TIMED_BY_STAND_IN = (("bert-tiny", 1), ("bert-mini", 1))


_ISSUING = 0.8
"""Share of a run's time that the host spends on issuing it, from which on the run is called launch-bound."""


def contract(target: Target) -> Outcome:
    """Run the contract tests of the backend, eager, compiled and as a graph, side by side."""
    found = Outcome()
    classes = ["TorchCpu"] if target.stand_in else ["TorchCuda", "CompiledOnCuda", "GraphOnCuda"]
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfEs"),
        *("-o", "filterwarnings=default", "tests/contract/test_backends.py", "-k"),
    ]
    # A pytest that runs this check would tell its child of itself.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    running = [
        subprocess.Popen(
            [*command, name],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in classes
    ]
    # Each has its own thread: one that is not read would stop when its pipe is full.
    with ThreadPoolExecutor(len(running)) as pool:
        texts = list(pool.map(lambda child: child.communicate()[0], running))
    for name, child, text in zip(classes, running, texts, strict=True):
        print(text, file=sys.stderr)
        lines = text.strip().splitlines() or ["it said nothing"]
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", lines[-1])}
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        met = child.returncode == 0 and counts.get("passed", 0) > 0
        found.add(f"contract tests of {name}", lines[-1].strip(), "all pass, some ran", met, "; ".join(failures)[:1500])
        found.absent += [line for line in lines if line.startswith("SKIPPED")][:8]
    return found


def timing(target: Target) -> Outcome:
    """Compare the engine's p50 with torch.utils.benchmark and device events, side by side in turns."""
    found = Outcome()
    for name, batch in TIMED_BY_STAND_IN if target.stand_in else TIMED:
        with loaded(target, name, batch) as (backend, inputs):
            _time_one(found, target, backend, f"{name}, batch {batch}")
            if not target.stand_in:
                _graph_time(found, target, name, batch, inputs)
    if target.stand_in:
        found.absent.append("device events and CUDA graphs: the stand-in has none")
    return found


def _time_one(found: Outcome, target: Target, backend: Any, label: str) -> None:
    from torch.utils.benchmark import Timer

    scope = {"model": backend.model, "inputs": backend._inputs}
    scope["synchronize"] = backend.synchronize
    # Without waiting the host would issue a run while the one before is computed, so that its start is hidden.
    timer = Timer("model(**inputs); synchronize()", globals=scope, num_threads=target.threads)
    rounds: dict[str, list[float]] = {"engine": [], "timer": [], "events": [], "issue": []}
    sampling = Sampling(min_time_s=0.4, max_time_s=1.0, warmup_max_s=0.5)
    backend.run()
    for _ in range(2 if target.stand_in else 3):
        rounds["engine"].append(median_ns(collect_samples(backend.run, sampling).samples_ns) / 1e6)
        with torch.inference_mode():
            rounds["timer"].append(timer.blocked_autorange(min_run_time=0.4).median * 1e3)
            if not target.stand_in:
                events, issue = _events_and_issue(backend)
                rounds["events"].append(events)
                rounds["issue"].append(issue)
    p50 = statistics.median(rounds["engine"])
    issuing = statistics.median(rounds["issue"]) / p50 if rounds["issue"] else 0.0
    reach = 0.01 if p50 > 5 else 0.03
    for rival in ("timer", "events"):
        if not rounds[rival]:
            continue
        ratio = statistics.median(a / b for a, b in zip(rounds["engine"], rounds[rival], strict=True)) - 1
        # A launch-bound run has gaps on the device and ends after its last kernel: rivals see less than callers.
        met = None if issuing >= _ISSUING or target.stand_in else abs(ratio) <= reach
        bound = f"launch-bound: issuing takes {issuing:.0%}" if issuing >= _ISSUING else f"issuing takes {issuing:.0%}"
        found.add(
            f"{label}: p50 against {rival}", f"{ratio:+.2%}", f"within {reach:.0%}", met, f"{p50:.4g} ms; {bound}"
        )
    if target.stand_in:
        found.add(f"{label}: both clocks ran", f"{p50:.4g} ms", "above 0", p50 > 0)


def _events_and_issue(backend: Any) -> tuple[float, float]:
    """Return the median milliseconds of a run by device events, and of issuing it from the host."""
    times, issues = [], []
    with torch.inference_mode():
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            began = time.perf_counter()
            begin.record()
            backend.model(**backend._inputs)
            end.record()
            issues.append((time.perf_counter() - began) * 1e3)
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times), statistics.median(issues)


def _graph_time(found: Outcome, target: Target, name: str, batch: int, inputs: Arrays) -> None:
    spec = resolve_model(name)
    with closing(make_backend(f"{target.hardware}:graph", threads=target.threads)) as graph:
        try:
            graph.load(artifacts_of(target, spec).weights, precision="float32")
            graph.compile(inputs)
        except Unsupported as error:
            found.absent.append(f"{name} as a graph: {error}"[:200])
            return
        samples = collect_samples(graph.run, Sampling(min_time_s=0.3, max_time_s=0.8, warmup_max_s=0.3))
        found.add(
            f"{name}, batch {batch}: p50 as a CUDA graph", f"{median_ns(samples.samples_ns) / 1e6:.4g} ms", "told", None
        )


class Unsynchronized(PyTorchBackend):
    """A planted fault: a backend that returns while the device still works."""

    def synchronize(self) -> None:
        """Do not wait."""


def synchronized(target: Target) -> Outcome:
    """Show that every sample waits for the device, and that a backend that does not wait is detected."""
    found = Outcome()
    name, batch = ("bert-mini", 4) if target.stand_in else ("vit-base", 32)
    sampling = Sampling(min_time_s=0.3, max_time_s=0.6, warmup_max_s=0.3)
    with loaded(target, name, batch) as (backend, inputs):
        if target.stand_in:
            _planted_thread(found, backend, sampling)
            return found
        waiting = [_finished_after(backend.run) for _ in range(50)]
        found.add("runs after which the device was idle", f"{sum(waiting)} of 50", "all", all(waiting))
        honest = median_ns(collect_samples(backend.run, sampling).samples_ns) / 1e6
        by_events, _ = _events_and_issue(backend)
    planted = Unsynchronized(device=str(target.device), threads=target.threads)
    with closing(planted):
        planted.load(artifacts_of(target, resolve_model(name)).weights, precision="float32")
        planted.bind(inputs)
        planted.run()
        torch.cuda.synchronize()
        early = []
        for _ in range(20):
            early.append(not _finished_after(planted.run))
            torch.cuda.synchronize()
        quick = []
        for _ in range(20):
            began = time.perf_counter_ns()
            planted.run()
            quick.append(time.perf_counter_ns() - began)
            torch.cuda.synchronize()
    faked = median_ns(quick) / 1e6
    found.add("planted backend that does not wait: caught busy", f"{sum(early)} of 20", "at least 18", sum(early) >= 18)
    found.add("its samples against device events", f"{faked / by_events:.2f}", "under 0.8", faked < 0.8 * by_events)
    ratio = honest / by_events
    found.add("the real backend's samples against device events", f"{ratio:.3f}", "0.98 or more", ratio >= 0.98)
    return found


def _finished_after(run: Callable[[], None]) -> bool:
    run()
    return bool(torch.cuda.current_stream().query())


def _planted_thread(found: Outcome, backend: Any, sampling: Sampling) -> None:
    """Show on a processor that a run left to a thread without waiting is detected."""
    honest = median_ns(collect_samples(backend.run, sampling).samples_ns)
    early, quick = [], []
    for _ in range(10):
        worker = threading.Thread(target=backend.run)
        began = time.perf_counter_ns()
        worker.start()
        quick.append(time.perf_counter_ns() - began)
        early.append(worker.is_alive())
        worker.join()
    found.add(
        "planted run that is not waited for: caught at work", f"{sum(early)} of 10", "at least 8", sum(early) >= 8
    )
    found.add(
        "its samples against real ones",
        f"{median_ns(quick) / honest:.2f}",
        "under 0.8",
        median_ns(quick) < 0.8 * honest,
    )


def precisions(target: Target) -> Outcome:
    """Count the products that ran in each precision, and let the errors bear it out; multiply in fp8."""
    found = Outcome()
    names = ("bert-mini",) if target.stand_in else ("bert-base", "resnet-50")
    for name in names:
        exact: Arrays = {}
        for precision in [p for p in runtime_for(target.hardware).precisions if p != "int8"]:
            try:
                with loaded(target, name, 4, precision=precision) as (backend, _):
                    backend.run()
                    outputs, share = backend.outputs(), backend.precision_share()
                    rounding = rounding_of(target.device)
            except Unsupported as error:
                found.absent.append(f"{name}, {precision}: {error}")
                continue
            exact = exact or outputs
            wrong = max(relative_rms(outputs[key], exact[key]) for key in exact)
            found.add(
                f"{name}, {precision}: share of products",
                share,
                "1, or 0.5 at least",
                share is not None and share >= 0.5,
                f"float32 is computed as {rounding}",
            )
            lowest = 0.0 if precision == "float32" else 2e-5
            found.add(
                f"{name}, {precision}: error against float32",
                f"{wrong:.2g}",
                f"{lowest:g} to {TOLERANCE[precision]:.2g}",
                lowest <= wrong <= TOLERANCE[precision],
            )
    _fp8(found, target)
    return found


def _fp8(found: Outcome, target: Target) -> None:
    size = 256 if target.stand_in else 4096
    left, right = (torch.randn(size, size, device=target.device) for _ in range(2))
    one = torch.ones((), device=target.device)
    small = [x.to(torch.float8_e4m3fn) for x in (left, right)]
    try:
        product = torch._scaled_mm(small[0], small[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    except (RuntimeError, NotImplementedError) as error:
        found.absent.append(f"fp8: {' '.join(str(error).split())[:160]}")
        return
    exact = left @ right.t()
    wrong = float((product.float() - exact).norm() / exact.norm())
    # e4m3 keeps 3 bits after the point: each operand is wrong by 2^-4 at most.
    found.add("fp8 product: error against float32", f"{wrong:.3f}", "0.01 to 0.09", 0.01 < wrong < 0.09)


def ways(target: Target) -> Outcome:
    """Compare torch.compile and a CUDA graph with the eager model: equal outputs, and their times."""
    found = Outcome()
    name, batch = ("bert-tiny", 1) if target.stand_in else ("bert-base", 1)
    sampling = Sampling(min_time_s=0.4, max_time_s=1.0, warmup_max_s=0.5)
    with loaded(target, name, batch) as (backend, inputs):
        backend.run()
        eager = backend.outputs()
        plain = median_ns(collect_samples(backend.run, sampling).samples_ns) / 1e6
    for way in runtime_for(target.hardware).choice_backends:
        with closing(make_backend(f"{target.hardware}:{way}", threads=target.threads)) as other:
            other.load(artifacts_of(target, resolve_model(name)).weights, precision="float32")
            began = time.perf_counter()
            other.compile(inputs)
            compile_s = time.perf_counter() - began
            other.bind(inputs)
            other.run()
            outputs = other.outputs()
            error = max(relative_rms(outputs[key], eager[key]) for key in eager)
            p50 = median_ns(collect_samples(other.run, sampling).samples_ns) / 1e6
        detail = f"{p50:.4g} ms, eager {plain:.4g} ms, made in {compile_s:.1f} s"
        found.add(f"{name} by {way}: error against eager", f"{error:.2g}", "under 1e-4", error < 1e-4, detail)
        if way == "graph":
            found.add(f"{name} by {way}: faster than launching", f"{plain / p50:.2f} times", "1 or more", p50 <= plain)
    return found


def modes(target: Target) -> Outcome:
    """Measure generation and training by measuring workers side by side, with verified tokens, losses and gradients."""
    found = Outcome()
    pairs: list[tuple[str, Mode]] = [("gpt2-tiny", "generation"), ("gpt2-tiny", "training")]
    if not target.stand_in:
        pairs = [(name, mode) for name in ("gpt2", "t5-small") for mode in ("generation", "training")]
        pairs.append(("bert-base", "training"))
    prepare(target, pairs)
    with ThreadPoolExecutor(len(pairs)) as pool:
        answers = list(pool.map(lambda pair: measure_by_worker(target, pair[0], mode=pair[1]), pairs))
    for (name, mode), answer in zip(pairs, answers, strict=True):
        verdict = answer.get("verdict") or {}
        reason = answer.get("reason") or verdict.get("reason") or answer.get("unfounded") or ""
        figures = {k: v for k, v in answer.get("figures", {}).items() if isinstance(v, float)}
        detail = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
        met = answer["kind"] == "measured" and verdict.get("passed") is True and not answer["unfounded"]
        found.add(f"{name}, {mode}", reason or "verified", "verified against float32", met, detail)
    return found


def collectives(target: Target) -> Outcome:
    """Train in one process through NCCL (gloo on a stand-in), with all that several processes do."""
    found = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        extra = {"rank": 0, "store": str(Path(folder) / "rendezvous")}
        answer = measure_by_worker(
            target, "bert-tiny", mode="training", module="accel_platform.bench.measure.ddp", extra=extra
        )
    verdict = answer.get("verdict") or {}
    library = "gloo" if target.stand_in else "NCCL"
    reason = answer.get("reason") or answer.get("unfounded") or verdict.get("reason") or "verified"
    efficiency = answer.get("figures", {}).get("scaling_efficiency")
    met = answer["kind"] == "measured" and verdict.get("passed") is True and not answer["unfounded"]
    found.add(f"training through {library}, one process", reason, "verified", met, f"scaling efficiency {efficiency}")
    return found
