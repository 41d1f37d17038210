"""The requested benchmarks of one host: a job per hardware name that it has, and the sensor that takes requests.

Each host that measures is a code location of its own, beside the asset graph, and knows its hardware by detection when
it is loaded. A host may stand for a cluster instead: its runs become pods, or jobs of Slurm, by `cluster.py`. Which
request goes where is decided in `routing.py`.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import get_args
from uuid import UUID

import dagster as dg
from pydantic import Field

from accel_platform.bench.plan.device_scheduling import detect_usable_devices
from accel_platform.bench.requests.lifecycle import Request, Requests, close, hardware_for_request, name_models
from accel_platform.errors import InvalidInput, LogUnavailable
from accel_platform.events import EventLog
from accel_platform.hardware.host import host_id, host_name
from accel_platform.requested_benchmarks import measure_within_limits, open_attempt
from accel_platform.table_io.values import count_of
from assets.executors.cluster import K8S_TAG, SCHEDULER, ClusterDevice, Scheduler, load_cluster, pod_config
from assets.executors.heartbeat import ALIVE_TAG, NOT_YET, heartbeat
from assets.executors.routing import ATTEMPT_TAG, LIMIT_TAG, NO_LIMIT, REQUEST_TAG, claim_request
from assets.executors.slurm import measure_in_slurm
from assets.failures import explain_failures
from assets.resources import Installation

HARDWARE = "ACCEL_HOST_HARDWARE"
"""Environment variable: the hardware names of a host, comma-separated; without it the detected ones."""
_POOLS = "ACCEL_HOST_POOLS"
"""Environment variable: the pools that a code server found when it was loaded, for the runs that it starts."""
WATCH_S = 4.2
"""Time that a tick waits for a request: less than the 5 s after which Dagster starts the next one."""
_POLL_INTERVAL_S = 0.25
_TAG_CHARS = 60
"""Characters of a tag's text, because the list of runs shows all of it."""


def pools_here() -> dict[str, str]:
    """Map each hardware name of this host to the pool of its device: one benchmark at a time.

    Runtimes of one device share its pool; emulated devices share the processor's.
    """
    if found := os.environ.get(_POOLS):
        return dict(json.loads(found))
    # In a process of its own, because the runtimes that it loads would keep 300 MB as long as the host is served.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        devices = pool.submit(detect_usable_devices, _claimed_hardware()).result()
    pools = {name: f"{host_id()}/{device}" for name, device in devices.items()}
    os.environ[_POOLS] = json.dumps(pools)
    return pools


def _claimed_hardware() -> list[str]:
    return [name.strip() for name in os.environ.get(HARDWARE, "").split(",") if name.strip()]


def scheduler_here() -> Scheduler | None:
    """Return the scheduler that this host hands its benchmarks to; None where it measures. Raises InvalidInput."""
    name = os.environ.get(SCHEDULER) or None
    if name is not None and name not in get_args(Scheduler):
        raise InvalidInput(f"{SCHEDULER} is {' or '.join(get_args(Scheduler))}, not {name!r}.")
    return name  # type: ignore[return-value]


def cluster_devices(installation: Installation) -> dict[str, ClusterDevice]:
    """Map each hardware name that this host stands for to its device in the cluster. Raises InvalidInput, NotFound."""
    names = _claimed_hardware()
    if not names:
        raise InvalidInput(f"Name the cluster's hardware in {HARDWARE}, such as cuda,cpu: nothing detects it.")
    cluster = load_cluster(installation.settings)
    return {name: cluster.device(name) for name in names}


class RequestAttempt(dg.Config):
    """Attempt at a request, as the configuration of a run."""

    request_id: str = Field(description="Full id of the request, which `accel bench requests --json` has.")
    attempt: int = Field(description="Number of the attempt, which a host has claimed for it; the first is 1.")


def _job(
    hardware: str, pool: str, accel: Installation, scheduler: Scheduler | None, device: ClusterDevice | None
) -> dg.JobDefinition:
    slug = "".join(c if c.isalnum() else "_" for c in hardware)
    pod = {K8S_TAG: pod_config(hardware, device)} if scheduler == "kubernetes" and device is not None else {}

    @dg.op(
        name=f"benchmark_{slug}",
        pool=pool,
        description=f"One requested benchmark on {hardware}; its events, and how it ended.",
    )
    @explain_failures
    def measure(context: dg.OpExecutionContext, config: RequestAttempt, accel: Installation) -> None:
        request = open_attempt(accel.log, _parse_id(config.request_id), config.attempt)
        if request is None:
            context.log.warning(
                f"Nothing to do: attempt {config.attempt} at the request is over. `accel bench request` asks anew."
            )
            return
        with heartbeat(context.instance, context.run_id):
            if scheduler == "slurm" and device is not None:
                measure_in_slurm(context, request, device.slurm, accel.settings)
            else:
                outcome = measure_within_limits(request, accel.log, accel.settings, context.log.info)
                close(accel.log, request, *outcome)
        _fail_with_request(accel.log, request)

    @dg.job(
        name=f"measure_{slug}",
        tags={"hardware": hardware, **pod},
        resource_defs={"accel": accel},
        executor_def=dg.in_process_executor,
        description=f"Requested benchmarks on {hardware}, one at a time per device ({pool}). Ask for one by "
        "`accel bench request`; the sensor `benchmark_requests` starts its run.",
    )
    def job() -> None:
        measure()

    return job


def _fail_with_request(log: EventLog, request: Request) -> None:
    """Raise dagster.Failure where the request has ended as failed, because its run would be shown as a success."""
    requests = Requests(log)
    requests.refresh()
    closed = requests[request.id].closed
    if closed is not None and closed.status == "failed":
        raise dg.Failure(f"The request failed: {closed.reason}", allow_retries=False)


def _parse_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise dg.Failure(
            f"{text!r} is no id of a request. `accel bench request` asks for a benchmark, and its run starts by itself."
        ) from None


def _run_request(request: Request, jobs: Mapping[str, dg.JobDefinition], scheduler: Scheduler | None) -> dg.RunRequest:
    name = hardware_for_request(request, jobs, host_name())
    assert name is not None, "what this host does not offer it does not take"
    job = jobs[name]
    [op] = job.nodes
    limit_s = request.payload.max_runtime_s
    limit = {LIMIT_TAG: f"{limit_s:g}"} if limit_s is not None else {}
    if scheduler == "slurm":
        limit = {LIMIT_TAG: NO_LIMIT}  # a job may wait in the queue for days; it limits its own time
    return dg.RunRequest(
        run_key=f"{request.id} {request.attempts}",
        job_name=job.name,
        run_config={"ops": {op.name: {"config": {"request_id": str(request.id), "attempt": request.attempts}}}},
        tags={
            "dagster/priority": str(request.payload.priority),
            "accel/models": name_models(request.payload.config)[:_TAG_CHARS],
            ALIVE_TAG: NOT_YET,
            REQUEST_TAG: str(request.id),
            ATTEMPT_TAG: str(request.attempts),
            **limit,
        },
    )


def _make_pools(instance: dg.DagsterInstance, pools: Collection[str]) -> None:
    """Announce pools to Dagster, because it admits all runs that wait for a pool it did not know."""
    storage = instance.event_log_storage
    for pool in set(pools) - {limit.name for limit in storage.get_pool_limits()}:
        storage.initialize_concurrency_limit_to_default(pool)


def _sensor(
    jobs: Mapping[str, dg.JobDefinition], pools: Collection[str], scheduler: Scheduler | None
) -> dg.SensorDefinition:
    seen: dict[str, Requests] = {}

    @dg.sensor(
        jobs=list(jobs.values()),
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Takes the requested benchmarks that this host can measure: {', '.join(jobs)}.",
    )
    def benchmark_requests(context: dg.SensorEvaluationContext, accel: Installation) -> dg.SensorResult:
        log, deadline = accel.log, time.monotonic() + WATCH_S
        requests = seen.setdefault(log.location, Requests(log))
        _make_pools(context.instance, pools)
        try:
            while True:
                taken = claim_request(requests, log, context.instance, hardware=jobs, host=host_name())
                if taken:
                    return dg.SensorResult(run_requests=[_run_request(request, jobs, scheduler) for request in taken])
                while not requests.refresh():
                    if time.monotonic() >= deadline:
                        left = count_of(len(requests.unfinished()), "request")
                        return dg.SensorResult(skip_reason=f"Under way, or waiting for other hosts: {left}.")
                    time.sleep(_POLL_INTERVAL_S)
        except LogUnavailable as error:
            return dg.SensorResult(skip_reason=str(error))

    return benchmark_requests


def build_host_defs(
    pools: Mapping[str, str],
    installation: Installation,
    scheduler: Scheduler | None = None,
    devices: Mapping[str, ClusterDevice] | None = None,
) -> dg.Definitions:
    """Return the jobs and the sensor of a host with this hardware, or of a cluster's scheduler with these devices."""
    jobs = {name: _job(name, pool, installation, scheduler, (devices or {}).get(name)) for name, pool in pools.items()}
    return dg.Definitions(
        jobs=list(jobs.values()),
        sensors=[_sensor(jobs, set(pools.values()), scheduler)],
        resources={"accel": installation},
    )


def defs_here() -> dg.Definitions:
    """Return the definitions of this host, from its environment. Raises InvalidInput, NotFound."""
    installation, scheduler = Installation(), scheduler_here()
    if scheduler is None:
        return build_host_defs(pools_here(), installation)
    cluster, devices = load_cluster(installation.settings), cluster_devices(installation)
    pools = {name: f"{host_name()}/{cluster.device_name(name)}" for name in devices}
    return build_host_defs(pools, installation, scheduler, devices)


defs = defs_here()
