"""A host that stands for a cluster: its jobs carry pods, share the pools of its devices, and leave time to Slurm."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from accel_platform.bench.requests.lifecycle import Requests, claim, request_benchmark
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.executors.routing import claim_request
from assets.resources import Installation

ASKED: dict[str, Any] = {"models": ["bert-tiny"], "batch_sizes": [1], "effort": "quick", "hardware_types": ["cuda"]}


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> ModuleType:
    monkeypatch.setenv("ACCEL_HOST_POOLS", "{}")  # importing it would look at this machine's hardware
    from assets import hosts

    monkeypatch.setattr(hosts, "WATCH_S", 0.0)
    monkeypatch.setenv("ACCEL_HOME", str(settings.home))
    monkeypatch.setenv("ACCEL_HOST_NAME", "gpus")
    monkeypatch.setenv("ACCEL_HOST_HARDWARE", "cuda, cpu, openvino")
    return hosts


def _run_requests(defs: dg.Definitions, settings: Settings, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    context = dg.build_sensor_context(instance=instance, resources={"accel": Installation(home=str(settings.home))})
    found = defs.resolve_sensor_def("benchmark_requests")(context)
    assert isinstance(found, dg.SensorResult)
    return list(found.run_requests or ())


def test_a_cuda_request_becomes_a_run_whose_tags_are_a_pod_with_a_gpu(
    hosts: ModuleType, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dagster_k8s", reason="the extra `kubernetes` is not installed")
    monkeypatch.setenv("ACCEL_HOST_SCHEDULER", "kubernetes")
    defs: dg.Definitions = hosts.defs_here()
    job = defs.resolve_job_def("measure_cuda")
    assert job.tags["hardware"] == "cuda"
    pod = json.loads(job.tags["dagster-k8s/config"])
    assert pod["container_config"]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["pod_spec_config"]["node_selector"] == {"nvidia.com/gpu.present": "true"}
    pools = {
        name: defs.resolve_job_def(f"measure_{name}").nodes[0].definition.pool for name in ("cuda", "cpu", "openvino")
    }
    assert pools == {"cuda": "gpus/nvidia", "cpu": "gpus/processor", "openvino": "gpus/processor"}

    request_benchmark(ASKED, EventLog.open(settings), max_runtime_s=90)
    with dg.DagsterInstance.ephemeral() as instance:
        [run] = _run_requests(defs, settings, instance)
    assert (run.job_name, run.tags["dagster/max_runtime"]) == ("measure_cuda", "90")


def test_slurm_keeps_the_time_of_a_job_and_dagsters_clock_ends_no_request(
    hosts: ModuleType, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_HOST_SCHEDULER", "slurm")
    defs: dg.Definitions = hosts.defs_here()
    assert "dagster-k8s/config" not in defs.resolve_job_def("measure_cuda").tags
    log = EventLog.open(settings)
    [one] = request_benchmark(ASKED, log, max_runtime_s=0.001)
    with dg.DagsterInstance.ephemeral() as instance:
        [run] = _run_requests(defs, settings, instance)
        assert run.tags["dagster/max_runtime"] == "0"
        # There is no sbatch here: the run fails, later than the request's limit; another attempt is made all the same.
        monkeypatch.setenv("PATH", "/nowhere")
        job = defs.resolve_job_def("measure_cuda")
        done = job.execute_in_process(
            run_config=run.run_config, tags=dict(run.tags), instance=instance, raise_on_error=False
        )
        assert not done.success
        [again] = claim_request(Requests(log), log, instance, hardware=["cuda"], host="gpus")
        assert (again.id, again.attempts) == (one, 2)
        assert claim(log, one, 3, claimed_by="gpus")


@pytest.mark.parametrize(
    ("name", "value", "error", "reason"),
    [
        ("ACCEL_HOST_SCHEDULER", "lsf", InvalidInput, "kubernetes or slurm, not 'lsf'"),
        ("ACCEL_HOST_HARDWARE", "", InvalidInput, "Name the cluster's hardware"),
        ("ACCEL_HOST_HARDWARE", "mps", NotFound, "The cluster has no mps"),
    ],
)
def test_a_cluster_that_is_not_described_says_so(
    hosts: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: type[Exception], reason: str
) -> None:
    monkeypatch.setenv("ACCEL_HOST_SCHEDULER", "slurm")
    monkeypatch.setenv(name, value)
    with pytest.raises(error, match=reason):
        hosts.defs_here()
