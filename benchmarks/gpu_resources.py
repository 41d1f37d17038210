"""The checks of `gpu_proof.py` on memory, energy and clocks, and on children that are killed.

A check takes a `Target`. On a stand-in it runs what a processor has, and names what it has not.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time

import numpy as np
import psutil
import torch

from accel_platform.bench.measure.failures import classify
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.measure.verification import relative_rms
from accel_platform.bench.run.worker_pool import WORKER
from accel_platform.hardware import gpu
from accel_platform.hardware.energy import NoEnergy, nvml, rapl
from accel_platform.subprocesses.json_child import Child, child_environment
from gpu_target import Outcome, Target, job_for, loaded


def memory(target: Target) -> Outcome:
    """Compare the reported peak of device memory with torch's allocator and with NVML."""
    found = Outcome()
    name, batch = ("bert-mini", 4) if target.stand_in else ("bert-large", 32)
    if target.stand_in:
        with loaded(target, name, batch) as (backend, _):
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
    with loaded(target, name, batch) as (backend, _):
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
    except gpu.DriverSilent as silent:
        found.absent.append(str(silent))
        return None


def energy(target: Target) -> Outcome:
    """Compare the counted energy of steady work with NVML's power, integrated over the same time."""
    found = Outcome()
    try:
        meter = rapl() if target.stand_in else nvml()
        if not target.stand_in:
            gpu.power_w()
    except (NoEnergy, gpu.DriverSilent) as reason:
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
    for _ in range(1000):
        torch.mm(left, left)
    time.sleep(1.0)  # NVML averages power over a second, and they take longer
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


def out_of_memory(target: Target) -> Outcome:
    """Ask for more memory than there is: a failure with its reason, and a process that goes on."""
    found = Outcome()
    with loaded(target, "bert-tiny" if target.stand_in else "bert-base", 1) as (backend, inputs):
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
    except gpu.DriverSilent as silent:
        found.absent.append(str(silent))
        return found
    job, spec = job_for(target, name, sampling=Sampling(min_time_s=60, max_time_s=60))
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
