"""The checks of `gpu_proof.py`: each returns what it saw of the GPU path, and whether that is right.

A check takes a `Target`. On a stand-in it runs what a processor has, and names what it has not.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from accel_platform.analysis.stats.medians import median_ns
from accel_platform.backends.base import Unsupported
from accel_platform.backends.pytorch import PyTorchBackend, rounding_of
from accel_platform.backends.registry import make_backend, runtime_for
from accel_platform.bench.measure.failures import classify
from accel_platform.bench.measure.sampling import Sampling, collect_samples
from accel_platform.bench.measure.verification import TOLERANCE, relative_rms
from accel_platform.bench.plan.plan import plan_cells
from accel_platform.bench.plan.support import head_for
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.preparation import prepare_models
from accel_platform.bench.run.worker_pool import WORKER
from accel_platform.hardware import gpu
from accel_platform.hardware.energy import NoEnergy, nvml, rapl
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child, child_environment
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

Arrays = dict[str, Any]
REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True)
class Target:
    """The device to prove, or a processor that stands in for it."""

    hardware: str
    home: Path
    stand_in: bool = False

    @property
    def device(self) -> torch.device:
        return torch.device(runtime_for(self.hardware).device)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()


@dataclass
class Outcome:
    """What a check found. It fails by one wrong figure; it is unavailable where it has no figure at all."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Parts that this machine does not have, with the reason."""
    complete: bool = True
    """False where time ran out: the next call goes on."""

    def add(self, what: str, got: Any, reach: str, met: bool | None, detail: str = "") -> None:
        """Add a figure; `met` None means that it is told only."""
        self.figures.append({"what": what, "got": got, "reach": reach, "met": met, "detail": detail})

    @property
    def status(self) -> str:
        if any(figure["met"] is False for figure in self.figures):
            return "fail"
        return "pass" if any(figure["met"] for figure in self.figures) else "unavailable"


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
    """Run the contract tests of the backend, eager, compiled and as a graph."""
    classes = "TorchCpu" if target.stand_in else "TorchCuda or CompiledOnCuda or GraphOnCuda"
    found = Outcome()
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfEs"),
        *("-o", "filterwarnings=default", "tests/contract/test_backends.py", "-k", classes),
    ]
    # A pytest that runs this check would tell its child of itself.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", lines[-1])}
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    met = done.returncode == 0 and counts.get("passed", 0) > 0
    found.add("contract tests", lines[-1].strip(), "all pass, some ran", met, "; ".join(failures)[:1500])
    found.absent += [line for line in lines if line.startswith("SKIPPED")][:8]
    return found


def timing(target: Target) -> Outcome:
    """Compare the engine's p50 with torch.utils.benchmark and device events, side by side in turns."""
    found = Outcome()
    for name, batch in TIMED_BY_STAND_IN if target.stand_in else TIMED:
        with _loaded(target, name, batch) as (backend, inputs):
            _time_one(found, target, backend, f"{name}, batch {batch}")
            if not target.stand_in:
                _graph_time(found, target, name, batch, inputs)
    if target.stand_in:
        found.absent.append("device events and CUDA graphs: the stand-in has none")
    return found


def _time_one(found: Outcome, target: Target, backend: Any, label: str) -> None:
    from torch.utils.benchmark import Timer

    scope = {"model": backend.model, "inputs": backend._inputs}
    timer = Timer("model(**inputs)", globals=scope, num_threads=target.threads)
    rounds: dict[str, list[float]] = {"engine": [], "timer": [], "events": [], "issue": []}
    sampling = Sampling(min_time_s=0.4, max_time_s=1.0, warmup_max_s=0.5)
    backend.run()
    for _ in range(2 if target.stand_in else 4):
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
            graph.load(_artifacts(target, spec).weights, precision="float32")
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
    """Show that every sample waits for the device, and that a backend that does not is told from one that does."""
    found = Outcome()
    name, batch = ("bert-mini", 4) if target.stand_in else ("vit-base", 32)
    sampling = Sampling(min_time_s=0.3, max_time_s=0.6, warmup_max_s=0.3)
    with _loaded(target, name, batch) as (backend, inputs):
        if target.stand_in:
            _planted_thread(found, backend, sampling)
            return found
        waiting = [_finished_after(backend.run) for _ in range(50)]
        found.add("runs after which the device was idle", f"{sum(waiting)} of 50", "all", all(waiting))
        honest = median_ns(collect_samples(backend.run, sampling).samples_ns) / 1e6
        by_events, _ = _events_and_issue(backend)
    planted = Unsynchronized(device=str(target.device), threads=target.threads)
    with closing(planted):
        planted.load(_artifacts(target, resolve_model(name)).weights, precision="float32")
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
    """Show on a processor that a run handed to a thread, and not waited for, is told from one that is."""
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


def memory(target: Target) -> Outcome:
    """Compare the reported peak of device memory with torch's allocator and with NVML."""
    found = Outcome()
    name, batch = ("bert-mini", 4) if target.stand_in else ("bert-large", 32)
    if target.stand_in:
        with _loaded(target, name, batch) as (backend, _):
            found.add(
                "device memory of a processor",
                backend.memory_device_peak_mib(),
                "None",
                backend.memory_device_peak_mib() is None,
            )
        found.absent.append("allocator and NVML: the stand-in has no device memory")
        return found
    torch.zeros(1, device=target.device)
    torch.cuda.empty_cache()
    before = _nvml_mib(found)
    reserved_before = torch.cuda.memory_reserved() / 2**20
    with _loaded(target, name, batch) as (backend, _):
        backend.run()
        told = backend.memory_device_peak_mib()
        reserved = torch.cuda.max_memory_reserved() / 2**20
        allocated = torch.cuda.max_memory_allocated() / 2**20
        after = _nvml_mib(found)
    assert told is not None
    found.add(
        "peak against torch's allocator",
        f"{told:.0f} MiB",
        f"{reserved:.0f} MiB, at least {allocated:.0f}",
        told == reserved >= allocated,
    )
    if before is not None and after is not None:
        grown, ours = after - before, reserved - reserved_before
        # Libraries take workspaces and load kernels beside the allocator.
        found.add(
            "growth by NVML against the allocator's",
            f"{grown:.0f} MiB",
            f"{ours:.0f} to {ours + 512:.0f} MiB",
            ours - 8 <= grown <= ours + 512,
        )
    return found


def _nvml_mib(found: Outcome) -> float | None:
    try:
        torch.cuda.synchronize()
        return gpu.used_mib()
    except gpu.Silent as silent:
        found.absent.append(str(silent))
        return None


def energy(target: Target) -> Outcome:
    """Compare the counted energy of steady work with NVML's power, integrated over the same time."""
    found = Outcome()
    try:
        meter = rapl() if target.stand_in else nvml()
        if not target.stand_in:
            gpu.power_w()
    except (NoEnergy, gpu.Silent) as reason:
        found.absent.append(str(reason))
        return found
    left = torch.randn(4096 if not target.stand_in else 512, 4096 if not target.stand_in else 512, device=target.device)
    synchronize = torch.cuda.synchronize if target.device.type == "cuda" else (lambda: None)

    def work(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            torch.mm(left, left)
            synchronize()  # type: ignore[no-untyped-call]

    work(3.0)  # NVML averages power over a second
    readings: list[tuple[float, float]] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(0.02):
            readings.append((time.perf_counter(), gpu.power_w()))

    reader = threading.Thread(target=read, daemon=True)
    if not target.stand_in:
        reader.start()
    with meter:
        work(8.0)
    ended.set()
    found.add("counted energy of 8 s", meter.joules or meter.reason, "more than 0 J", meter.joules is not None)
    if meter.joules is not None and len(readings) > 50:
        times, watts = zip(*readings, strict=True)
        joules = float(np.trapezoid(watts, times)) * meter.seconds / (times[-1] - times[0])
        ratio = meter.joules / joules - 1
        found.add(
            "against integrated power",
            f"{ratio:+.1%}",
            "within 5 %",
            abs(ratio) <= 0.05,
            f"{meter.joules:.0f} J, {joules:.0f} J",
        )
    return found


def clocks(target: Target) -> Outcome:
    """Read clock, temperature, load, power and throttling under load, as a result notes them."""
    found = Outcome()
    if target.stand_in:
        from accel_platform.hardware.cpu import state_now

        state = state_now()
        found.add("state of the processor", sorted(state), "the load is told", "load_average_1min" in state)
        found.absent.append("clock events of NVML: the stand-in has none")
        return found
    left = torch.randn(8192, 8192, device=target.device, dtype=torch.bfloat16)
    for _ in range(200):
        torch.mm(left, left)
    busy = gpu.state()
    torch.cuda.synchronize()
    for key in ("gpu_clock_mhz", "gpu_temperature_c", "gpu_load_percent", "gpu_power_w", "gpu_slowed_by"):
        found.add(key, busy.get(key), "told under load", key in busy)
    most = gpu.clock_max_mhz()
    if most is not None and "gpu_clock_mhz" in busy:
        found.add(
            "clock against its maximum",
            f"{busy['gpu_clock_mhz'] / most:.2f}",
            "0.3 to 1",
            0.3 < busy["gpu_clock_mhz"] / most <= 1.001,
        )
    return found


def precisions(target: Target) -> Outcome:
    """Count the products that ran in each precision, and let the errors bear it out; multiply in fp8."""
    found = Outcome()
    names = ("bert-mini",) if target.stand_in else ("bert-base", "resnet-50")
    for name in names:
        exact: Arrays = {}
        for precision in [p for p in runtime_for(target.hardware).precisions if p != "int8"]:
            try:
                with _loaded(target, name, 4, precision=precision) as (backend, _):
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
    with _loaded(target, name, batch) as (backend, inputs):
        backend.run()
        eager = backend.outputs()
        plain = median_ns(collect_samples(backend.run, sampling).samples_ns) / 1e6
    for way in runtime_for(target.hardware).ways:
        with closing(make_backend(f"{target.hardware}:{way}", threads=target.threads)) as other:
            other.load(_artifacts(target, resolve_model(name)).weights, precision="float32")
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
    """Measure generation and training by the measuring worker, with verified tokens, losses and gradients."""
    found = Outcome()
    names = ("gpt2-tiny",) if target.stand_in else ("gpt2", "t5-small", "bert-base")
    for name in names:
        for mode in ("generation", "training"):
            if mode == "generation" and name == "bert-base":
                continue
            answer = _measure(target, name, mode=mode)
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
        answer = _measure(target, "bert-tiny", mode="training", module="accel_platform.bench.measure.ddp", extra=extra)
    verdict = answer.get("verdict") or {}
    library = "gloo" if target.stand_in else "NCCL"
    reason = answer.get("reason") or answer.get("unfounded") or verdict.get("reason") or "verified"
    efficiency = answer.get("figures", {}).get("scaling_efficiency")
    met = answer["kind"] == "measured" and verdict.get("passed") is True and not answer["unfounded"]
    found.add(f"training through {library}, one process", reason, "verified", met, f"scaling efficiency {efficiency}")
    return found


def out_of_memory(target: Target) -> Outcome:
    """Ask for more memory than there is: a failure with its reason, and a process that goes on."""
    found = Outcome()
    with _loaded(target, "bert-tiny" if target.stand_in else "bert-base", 1) as (backend, inputs):
        backend.run()
        before = backend.outputs()
        if target.stand_in:
            limit = psutil.Process().memory_info().vms + 2**30
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            batch = 65_536
        else:
            free, _ = torch.cuda.mem_get_info()
            # The widest layer's output alone would be half as large again as what is free.
            batch = int(1.5 * free / (inputs["input_ids"].shape[1] * 3072 * 4))
        large = {key: np.repeat(array, batch, axis=0) for key, array in inputs.items()}
        try:
            backend.compile(large)
            backend.bind(large)
            backend.run()
            failure = ("none", "it ran")
        except Exception as caught:
            failure = classify(caught)
        finally:
            if target.stand_in:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        found.add(f"a batch of {batch:,}", failure[0], "out_of_memory", failure[0] == "out_of_memory", failure[1][:200])
        backend.compile(inputs)
        backend.bind(inputs)
        backend.run()
        after = backend.outputs()
        same = all(relative_rms(after[key], before[key]) < 1e-6 for key in before)
        found.add("the process afterwards", "as before" if same else "other outputs", "equal outputs", same)
        if not target.stand_in:
            kept = torch.cuda.memory_reserved() / 2**20
            found.add("memory that it keeps", f"{kept:.0f} MiB", "under 2,048 MiB", kept < 2048)
    return found


def kills(target: Target) -> Outcome:
    """Kill a measuring child at work: its memory on the device is free again."""
    found = Outcome()
    read = _host_memory if target.stand_in else gpu.used_mib
    name = "bert-mini" if target.stand_in else "bert-large"
    try:
        before = read()
    except gpu.Silent as silent:
        found.absent.append(str(silent))
        return found
    job, spec = _job(target, name, sampling=Sampling(min_time_s=60, max_time_s=60))
    assert spec is not None
    with Child(WORKER, job, env=child_environment(target.threads)) as child:
        messages = child.messages(120)
        loaded = next(messages)["kind"]
        time.sleep(3.0)
        held = read() - before
        os.kill(child.pid, signal.SIGKILL)
        try:
            list(messages)
        except Exception as caught:
            ended = str(caught)
        else:
            ended = "it was not killed"
    until = time.monotonic() + 15
    left = read() - before
    while left > 64 and time.monotonic() < until:
        time.sleep(0.5)
        left = read() - before
    found.add("a child killed at work", ended[:160], "SIGKILL is named", loaded == "loaded" and "SIGKILL" in ended)
    if target.stand_in:
        found.add(
            "its process",
            "gone" if not psutil.pid_exists(child.pid) else "there",
            "gone",
            not psutil.pid_exists(child.pid),
        )
        found.absent.append("memory of a device: the stand-in has none")
    else:
        found.add("memory it held", f"{held:.0f} MiB", "more than its weights, 1,200 MiB", held > 1200)
        found.add("memory it left", f"{left:.0f} MiB", "under 64 MiB", left <= 64)
    return found


def _host_memory() -> float:
    return float(psutil.virtual_memory().used) / 2**20


@contextmanager
def _loaded(target: Target, name: str, batch: int, *, precision: str = "float32") -> Iterator[tuple[Any, Arrays]]:
    """Yield the backend with the model loaded and inputs of this batch bound, and the inputs."""
    spec = resolve_model(name)
    inputs = _inputs(target, spec, batch)
    with closing(make_backend(target.hardware, threads=target.threads)) as backend:
        backend.load(_artifacts(target, spec).weights, precision=precision)
        backend.compile(inputs)
        backend.bind(inputs)
        yield backend, inputs
    if target.device.type == "cuda":
        torch.cuda.empty_cache()


def _artifacts(target: Target, spec: ModelSpec, mode: Any = "inference") -> Artifacts:
    return Artifacts.of(spec, Settings(home=target.home), "dynamo", mode)


def _inputs(target: Target, spec: ModelSpec, batch: int) -> Arrays:
    """Return inputs of the model after preparing its weights; no reference is computed."""
    from accel_platform.workloads.inputs import make_inputs

    _prepare(target, spec, 1, "inference", reference=False)
    return make_inputs(spec, batch_size=batch, sequence_length=spec.sequence_length)


def _prepare(target: Target, spec: ModelSpec, batch: int, mode: Any, *, reference: bool) -> Any:
    [cell] = plan_cells([spec], [target.hardware], [batch], modes=[mode])
    settings = Settings(home=target.home)
    failures = prepare_models(
        [cell], settings, threads=target.threads, timeout_s=300, report=lambda _: None, reference=reference
    )
    if failures:
        raise Unsupported(f"{spec.model_id} cannot be prepared: {next(iter(failures.values())).reason}")
    return cell


def _job(
    target: Target, name: str, *, mode: Any = "inference", sampling: Sampling | None = None
) -> tuple[dict[str, Any], ModelSpec]:
    spec = resolve_model(name)
    cell = _prepare(target, spec, 1, mode, reference=True)
    artifacts = _artifacts(target, spec, mode)
    job = {
        "hardware": target.hardware,
        "mode": mode,
        "head": head_for(spec, mode),
        "processes": 1,
        "work": "all",
        "energy": None,
        "traces": [],
        "precision": "float32",
        "threads": target.threads,
        "artifact": str(artifacts.weights),
        "cells": [str(artifacts.data((1, cell.sequence_length)))],
        "sampling": asdict(sampling or replace(Sampling(), min_time_s=0.5, max_time_s=2.0, warmup_max_s=1.0)),
    }
    return job, spec


def _measure(
    target: Target, name: str, *, mode: Any, module: str = WORKER, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the worker's last message on the model's one cell."""
    job, _ = _job(target, name, mode=mode)
    with Child(module, {**job, **(extra or {})}, env=child_environment(target.threads)) as child:
        for message in child.messages(240):
            if message["kind"] in ("measured", "failed", "not_loaded"):
                return dict(message)
    raise Unsupported(f"the worker ended without measuring {name} in {mode}")
