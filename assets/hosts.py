"""The requested benchmarks of one host: a job per hardware name that it has, and the sensor that takes requests.

Each host that measures is a code location of its own, beside the asset graph, and knows its hardware by detection when
it is loaded. Which request goes where is decided in `routing.py`.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import dagster as dg
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

from accel_platform.backends.detect import detect
from accel_platform.bench.plan.device_scheduling import physical_device_id
from accel_platform.bench.requests.lifecycle import Request, Requests, close, offered
from accel_platform.errors import LogUnavailable
from accel_platform.hardware.host import host_id, host_name
from accel_platform.requested_benchmarks import measure_request
from assets.resources import Installation
from assets.routing import ATTEMPT_TAG, REQUEST_TAG, claim_request

HARDWARE = "ACCEL_HOST_HARDWARE"
"""Environment: the hardware names that a host stands for, comma-separated; without it those that detection finds."""
_POOLS = "ACCEL_HOST_POOLS"
"""Environment: what a code server found when it was loaded, for the runs that it starts."""
WATCH_S = 4.2
"""How long a tick waits for a request. Dagster looks at its sensors every 5 s, and the next tick follows at once."""
_LOOK_S = 0.25


def pools_here() -> dict[str, str]:
    """Map each hardware name of this host to the pool of its device: one benchmark at a time.

    Runtimes of one device share its pool; emulated devices share the processor's.
    """
    if found := os.environ.get(_POOLS):
        return dict(json.loads(found))
    claimed = [name.strip() for name in os.environ.get(HARDWARE, "").split(",") if name.strip()]
    inventory, host = detect(claimed), host_id()
    devices = {name: inventory.device(name) for name in claimed or inventory.names}
    here = [name for name, device in devices.items() if claimed or (device is not None and device.available)]
    # A device that is claimed and not here is nobody else's either.
    pools = {name: f"{host}/{physical_device_id(name, inventory) or name}" for name in here}
    os.environ[_POOLS] = json.dumps(pools)
    return pools


class Requested(dg.Config):
    """Attempt at a request, as the configuration of a run."""

    request_id: str
    attempt: int


def _job(hardware: str, pool: str, accel: Installation) -> dg.JobDefinition:
    slug = "".join(c if c.isalnum() else "_" for c in hardware)

    @dg.op(
        name=f"benchmark_{slug}",
        pool=pool,
        description=f"One requested benchmark on {hardware}; its events, and how it ended.",
    )
    def measure(context: dg.OpExecutionContext, config: Requested, accel: Installation) -> None:
        requests = Requests(accel.log)
        requests.refresh()
        request = requests[UUID(config.request_id)]
        if request.closed is not None or request.attempts != config.attempt:
            context.log.warning(f"Nothing to do: the request is {request.state}, at attempt {request.attempts}.")
            return
        with heartbeat(context.instance, context.run_id):
            close(accel.log, request, *measure_request(request, accel.log, accel.settings, context.log.info))

    @dg.job(
        name=f"measure_{slug}",
        tags={"hardware": hardware},
        resource_defs={"accel": accel},
        executor_def=dg.in_process_executor,
        description=f"Requested benchmarks on {hardware}, one at a time per device ({pool}).",
    )
    def job() -> None:
        measure()

    return job


def _run_request(request: Request, jobs: Mapping[str, dg.JobDefinition]) -> dg.RunRequest:
    name = offered(request, jobs, host_name())
    assert name is not None, "what this host does not offer it does not take"
    job = jobs[name]
    [op] = job.nodes
    limit_s = request.payload.max_runtime_s
    return dg.RunRequest(
        run_key=f"{request.id} {request.attempts}",
        job_name=job.name,
        run_config={"ops": {op.name: {"config": {"request_id": str(request.id), "attempt": request.attempts}}}},
        tags={
            "dagster/priority": str(request.payload.priority),
            ALIVE_TAG: NOT_YET,
            REQUEST_TAG: str(request.id),
            ATTEMPT_TAG: str(request.attempts),
            **({"dagster/max_runtime": f"{limit_s:g}"} if limit_s is not None else {}),
        },
    )


def _make_pools(instance: dg.DagsterInstance, pools: Collection[str]) -> None:
    """Announce pools to Dagster, because it admits all runs that wait for a pool it did not know."""
    storage = instance.event_log_storage
    for pool in set(pools) - {limit.name for limit in storage.get_pool_limits()}:
        storage.initialize_concurrency_limit_to_default(pool)


def _sensor(jobs: Mapping[str, dg.JobDefinition], pools: Collection[str]) -> dg.SensorDefinition:
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
                    return dg.SensorResult(run_requests=[_run_request(request, jobs) for request in taken])
                while not requests.refresh():
                    if time.monotonic() >= deadline:
                        waiting = len(requests.unfinished())
                        return dg.SensorResult(skip_reason=f"{waiting} requests are under way or wait for other hosts.")
                    time.sleep(_LOOK_S)
        except LogUnavailable as error:
            return dg.SensorResult(skip_reason=str(error))

    return benchmark_requests


def build_host_defs(pools: Mapping[str, str], installation: Installation) -> dg.Definitions:
    """Return the jobs and the sensor of a host with this hardware."""
    jobs = {name: _job(name, pool, installation) for name, pool in pools.items()}
    return dg.Definitions(
        jobs=list(jobs.values()), sensors=[_sensor(jobs, set(pools.values()))], resources={"accel": installation}
    )


defs = build_host_defs(pools_here(), Installation())


ALIVE_TAG = "accel/alive"
"""Tag of a run: how often it has said that it lives."""
NOT_YET = "0"
"""Of a run from its beginning: one that is lost before it says anything is missed too."""
BEAT_S = 5
SILENT_CHECKS = 4
"""A run that says nothing from one check of Dagster's run monitoring to the next, so many times in turn, is lost.

Checks are counted and not seconds: while Dagster's own storage is away there are no checks, nor signs of life.
"""
_CANCELING_BEATS = 3
"""Dagster tells a run to stop; one that has not heard it after so many beats tells itself."""
_END_S = 20
"""How long a run that has told itself to stop may take to end its children."""


class HostRunLauncher(DefaultRunLauncher):
    """Dagster's usual run launcher, which also knows when a measuring run is lost."""

    def __init__(self, inst_data: object = None) -> None:
        super().__init__(inst_data)  # type: ignore[arg-type]
        self._heard: dict[str, tuple[str, int]] = {}

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Answer Dagster's run monitoring, which ends a run that is neither running nor has succeeded."""
        alive = run.tags.get(ALIVE_TAG)
        if alive is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        before, silent = self._heard.get(run.run_id, (alive, -1))
        silent = silent + 1 if before == alive else 0
        self._heard[run.run_id] = alive, silent
        if silent < SILENT_CHECKS:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        del self._heard[run.run_id]
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "it no longer says that it lives: its host may be lost")


@contextmanager
def heartbeat(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Say, as long as the block lasts, that this run lives; end this process when Dagster has given the run up."""
    over = threading.Event()
    threading.Thread(target=_beat, args=(instance, run_id, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _beat(instance: DagsterInstance, run_id: str, over: threading.Event) -> None:
    beats = canceling = 0
    while not over.wait(BEAT_S):
        beats += 1
        try:
            run = instance.get_run_by_id(run_id)
            instance.add_run_tags(run_id, {ALIVE_TAG: str(beats)})
        except Exception:  # noqa: BLE001, S112 - whatever its storage raises while that is away: the next beat may reach it
            continue
        canceling = canceling + 1 if run is not None and run.status is DagsterRunStatus.CANCELING else 0
        if run is None or run.is_finished or canceling >= _CANCELING_BEATS:
            os.kill(os.getpid(), signal.SIGINT)
            if not over.wait(_END_S):
                os._exit(1)  # what it has started dies with it
            return
