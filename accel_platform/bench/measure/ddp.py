"""Distributed data-parallel training over gloo or NCCL, and its scaling efficiency.

`run_leader` runs in the measuring process and starts one process per replica; each runs `run_replica`. The first
replica ends the sampling. Afterwards it trains alone on as many threads, as the baseline of the efficiency.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from accel_platform.bench.measure.failures import classify_death
from accel_platform.subprocesses.json_child import Child, ChildCrashed, Message, child_environment, serve

_NO_TIMEOUT_S = 86_400.0
"""The parent of the measuring process enforces the timeout."""


def run_leader(job: Message, send: Callable[[Message], None]) -> None:
    """Measure the job's one cell in several replicas, and send what one process would. The first failure ends all."""
    count = job["processes"]
    threads = max(1, job["threads"] // count)
    environment = {**child_environment(threads), **loopback_environment()}
    messages: SimpleQueue[tuple[int, Message]] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as replicas:
        for rank in range(count):
            replica_job = {**job, "rank": rank, "threads": threads, "store": str(Path(folder) / "rendezvous")}
            child = replicas.enter_context(Child(__name__, replica_job, env=environment))
            threading.Thread(target=_forward_messages, args=(rank, child, messages), daemon=True).start()
        answers: dict[int, Message] = {}
        while len(answers) < count:
            rank, message = messages.get()
            if message["kind"] in ("failed", "not_loaded"):
                send(message)
                return
            if message["kind"] == "measured":
                answers[rank] = message
            elif rank == 0:
                send(message)
        send(_combine_answers([answers[rank] for rank in range(count)], threads))


def _forward_messages(rank: int, child: Child, messages: SimpleQueue[tuple[int, Message]]) -> None:
    kind = "not_loaded"
    try:
        for message in child.messages(_NO_TIMEOUT_S):
            kind = "failed" if message["kind"] == "loaded" else kind
            messages.put((rank, message))
    except ChildCrashed as error:
        reason = f"replica {rank + 1}: {error}"
        messages.put((rank, {"kind": kind, "failure_class": classify_death(reason), "reason": reason}))


def _combine_answers(answers: list[Message], threads: int) -> Message:
    """Return the first replica's answer with the memory of all."""
    first = answers[0]
    device = [a["memory_device_peak_mib"] for a in answers]
    notes = {
        "threads_per_process": threads,
        "memory_method": "sum of the peaks of all processes",
        "memory_peak_per_process_mib": [a["memory_peak_mib"] for a in answers],
    }
    return {
        **first,
        "memory_peak_mib": sum(a["memory_peak_mib"] for a in answers),
        "memory_device_peak_mib": None if None in device else sum(device),
        "notes": {**first["notes"], **notes},
    }


def run_replica(job: Message, send: Callable[[Message], None]) -> None:
    """Load and train one replica with the others; send `loaded` and `measured`, or the failure."""
    from accel_platform.bench.measure.job import failure_message, load_backend

    try:
        _select_device(job)
    except Exception as error:  # noqa: BLE001 - whatever a runtime throws is the cell's failure
        send(failure_message("not_loaded", error))
        return
    backend = load_backend(job, send)
    if backend is None:
        return
    try:
        send({"kind": "measured", **_train_replica(backend, job)})
    except Exception as error:  # noqa: BLE001 - likewise
        send(failure_message("failed", error))


def _select_device(job: Message) -> None:
    """Select the replica's own device, unless it is the processor. Raises UnsupportedMode for too few devices."""
    import torch

    from accel_platform.backends.base import UnsupportedMode
    from accel_platform.backends.registry import runtime_for

    device = runtime_for(job["hardware"]).device
    if device == "cpu":
        return
    here = torch.cuda.device_count() if device == "cuda" else 1
    if job["processes"] > here:
        raise UnsupportedMode(f"Training in {job['processes']} processes needs as many devices; here: {here}.")
    torch.cuda.set_device(job["rank"])


def _train_replica(backend: Any, job: Message) -> Message:
    """Train together, then alone on the first replica."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from accel_platform.bench.measure import training
    from accel_platform.bench.measure.job import meter_target_for, read_data, sampling_for
    from accel_platform.bench.measure.observation import observe
    from accel_platform.hardware.memory import own_peak_mib

    training.require_precision(job["precision"])
    rank, model = job["rank"], backend.model
    data, sampling = read_data(job["cells"][0]), sampling_for(job)
    training.freeze_parameters(model, data)
    # Replicas see different items, as in real training.
    parts = ("input", "other") if rank % 2 == 0 else ("other", "input")
    mine, others = (training.to_device(model, data[part]) for part in parts)
    first, other_step = training.first_step(model, mine), training.first_step(model, others)
    on_cuda = model.device.type == "cuda"
    # A file, not a port, because no other process can take it or join.
    dist.init_process_group(
        "nccl" if on_cuda else "gloo", init_method=f"file://{job['store']}", rank=rank, world_size=job["processes"]
    )
    # Some layers may be unused in a step: a head without a loss, or a randomly dropped layer.
    idle = [norm == 0 and p.requires_grad for norm, p in zip(first["gradient_norms"], model.parameters(), strict=True)]
    unused = any(idle) or getattr(model.config, "layerdrop", 0) > 0
    together = DistributedDataParallel(model, device_ids=[rank] if on_cuda else None, find_unused_parameters=unused)
    steps = training.TrainingSteps(together, mine, backend.synchronize)
    agree = partial(_any_continues, dist.new_group(backend="gloo"))
    steps.run()
    observed: Message = {}
    if rank:
        while agree(continuing=False):
            steps.run()
    else:

        def lead_step() -> None:
            agree(continuing=True)
            steps.run()

        # All replicas descend from the parent, so it is the root. Waiting for the others to begin does not count.
        observed = observe(lead_step, sampling, lambda: steps.spent_ns, root=os.getppid(), target=meter_target_for(job))
        agree(continuing=False)
    diverged = _weights_differ(model, dist)
    peak = own_peak_mib(Path(job["artifact"]))
    if rank:
        device_peak = backend.memory_device_peak_mib()
        agree(continuing=False)
        return {"memory_peak_mib": peak, "memory_device_peak_mib": device_peak}
    verdict = training.verify_first_step(first, other_step, data, precision=job["precision"])
    answer = training.build_answer(backend, steps, {**observed, "memory_peak_mib": peak}, verdict)
    if diverged and answer["unfounded"] is None:
        answer["unfounded"] = "the replicas' weights differ after training together"
    alone = training.TrainingSteps(model, mine, backend.synchronize)
    alone_ns = observe(alone.run, sampling, target=meter_target_for(job))["samples_ns"]
    agree(continuing=False)
    answer["figures"]["scaling_efficiency"] = training.scaling_efficiency(alone_ns, observed["samples_ns"])
    answer["notes"]["alone_samples_ns"] = list(alone_ns)
    return answer


def _any_continues(group: Any, *, continuing: bool) -> bool:
    """Return whether any replica continues. All wait here for each other, asleep."""
    import torch
    import torch.distributed as dist

    flag = torch.tensor(int(continuing))
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag)


def _weights_differ(model: Any, dist: Any) -> bool:
    """Return whether the replicas' weights differ: they begin alike and take the same mean gradient at each step."""
    import torch

    with torch.no_grad():
        mine = torch.stack([p.double().sum() for p in model.parameters()])
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return not torch.equal(least, most)


def loopback_environment() -> dict[str, str]:
    """Return variables that bind gloo to the loopback, because the host name's own interface may lead nowhere."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == "127.0.0.1" for a in addresses):
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


if __name__ == "__main__":
    serve(run_replica)
