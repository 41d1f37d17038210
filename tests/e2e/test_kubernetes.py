"""Requested benchmarks as pods: Dagster's own launcher against a stand-in of Kubernetes that checks and runs them.

One world serves all tests: `dagster dev` with the run launcher of dagster-k8s, a code server as the Helm chart starts
it, and a cluster of a processor node and a node with a GPU, in whose container no GPU is found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import dagster as dg
import httpx
import psutil
import pytest
import yaml
from processes import free_port, needs_a_quiet_machine, running, wait_for

pytest.importorskip("dagster_k8s", reason="the extra `kubernetes` is not installed")
pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

from kubernetes_server import Cluster, Node

from accel_platform.bench.requests.lifecycle import Request, Requests, close, request_benchmark
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.executors.routing import REQUEST_TAG
from assets.resources import DATA_DIR
from assets.workspace import Host, answers

pytestmark = [pytest.mark.slow, needs_a_quiet_machine]
ASKED: dict[str, Any] = {"models": ["bert-tiny"], "batch_sizes": [1], "effort": "quick"}
TERMINATE = "mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"
GPU_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
WORKER = "accel_platform.bench.measure.worker"


class World:
    """The cluster, the log, and Dagster's instance."""

    def __init__(self, folder: Path, cluster: Cluster, kubeconfig: Path, stack: ExitStack) -> None:
        self.cluster, self.said = cluster, folder / "dagster.log"
        self.settings = Settings(home=folder / "home")
        self.log, self.requests = EventLog.open(self.settings), Requests(EventLog.open(self.settings))
        self.dagster_home = folder / "dagster"
        self.dagster_home.mkdir()
        instance = yaml.safe_load((DATA_DIR / "dagster.yaml").read_text())
        launcher = {
            "service_account_name": "dagster",
            "instance_config_map": "dagster-instance",
            "dagster_home": str(self.dagster_home),
            "load_incluster_config": False,
            "kubeconfig_file": str(kubeconfig),
            "job_namespace": "bench",
        }
        instance["run_launcher"] = {"module": "dagster_k8s", "class": "K8sRunLauncher", "config": launcher}
        (self.dagster_home / "dagster.yaml").write_text(yaml.safe_dump(instance))

        port = free_port()
        # What the chart's `env` and `includeConfigInLaunchedRuns` do.
        named = {
            "ACCEL_HOME": str(self.settings.home),
            "ACCEL_HOST_SCHEDULER": "kubernetes",
            "ACCEL_HOST_NAME": "kubernetes",
            "ACCEL_HOST_HARDWARE": "cpu,cuda",
        }
        container = {"k8s": {"namespace": "bench", "env_vars": [f"{name}={value}" for name, value in named.items()]}}
        environment = {
            **named,
            "PATH": str(Path(sys.executable).parent),
            "DAGSTER_HOME": str(self.dagster_home),
            "DAGSTER_CURRENT_IMAGE": "registry.example/accel-platform:1",
            "DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT": json.dumps(container),
        }
        server = [sys.executable, "-m", "dagster", "api", "grpc", "--module-name", "assets.hosts"]
        command = [*server, "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(running(command, folder / "code.log", **environment))
        there = Host("kubernetes", "127.0.0.1", port)
        wait_for("the code server", 180, lambda: answers(there), folder / "code.log")
        workspace = folder / "workspace.yaml"
        location = {"host": "127.0.0.1", "port": port, "location_name": "kubernetes"}
        workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": location}]}))
        self.pages = free_port()
        dev = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(self.pages)]
        stack.enter_context(running(dev, self.said, **environment))

    def ask(self, hardware: str, **more: Any) -> UUID:
        [one] = request_benchmark({**ASKED, "hardware_types": [hardware], **more}, self.log)
        return one

    def request(self, one: UUID) -> Request:
        self.requests.refresh()
        return self.requests[one]

    def closed(self, one: UUID, seconds: float = 240) -> Request:
        def found() -> Request | None:
            request = self.request(one)
            return request if request.closed else None

        return wait_for(f"the end of {one}", seconds, found, self.said)  # type: ignore[no-any-return]

    def jobs_of(self, one: UUID) -> list[dict[str, Any]]:
        """The Kubernetes jobs of the attempts at a request, as they were created."""
        with dg.DagsterInstance.from_config(str(self.dagster_home)) as instance:
            runs = instance.get_runs(dg.RunsFilter(tags={REQUEST_TAG: str(one)}))
        return [self.cluster.jobs[f"dagster-run-{run.run_id}"] for run in reversed(list(runs))]

    def measuring(self, one: UUID, attempt: int = 1) -> psutil.Process:
        def found() -> psutil.Process | None:
            if self.request(one).attempts != attempt:
                return None
            return next(iter(self.children()), None)

        return wait_for(f"attempt {attempt} to measure", 240, found, self.said)  # type: ignore[no-any-return]

    def children(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            here = (process.info["environ"] or {}).get("ACCEL_HOME") == str(self.settings.home)
            if here and WORKER in (process.info["cmdline"] or []):
                found.append(process)
        return found

    def gone(self) -> None:
        wait_for("the end of the measuring processes", 60, lambda: not self.children(), self.said)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kubernetes")
    cpu = Node("cpu-1", {"cpu": "8", "memory": "32Gi"})
    gpu = Node(
        "gpu-1",
        {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "1"},
        labels={"nvidia.com/gpu.present": "true"},
        taints=[GPU_TAINT],
    )
    cluster = Cluster(folder, [gpu, cpu])
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_HOST_POOLS", "{}")
        kubeconfig = stack.enter_context(cluster.serving())
        yield World(folder, cluster, kubeconfig, stack)


def test_a_cuda_request_becomes_a_pod_on_a_gpu_node_and_a_cpu_request_one_elsewhere(world: World) -> None:
    cuda, cpu = world.ask("cuda"), world.ask("cpu")
    request = world.closed(cuda)
    assert request.claimed_by == "kubernetes"
    assert request.closed is not None
    assert str(request.closed.reason).startswith("cuda is unavailable: ")  # said by the pod
    request = world.closed(cpu)
    assert (request.state, request.attempts) == ("done", 1), request

    [job] = world.jobs_of(cuda)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"] == "registry.example/accel-platform:1"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert [one["key"] for one in pod["tolerations"]] == ["nvidia.com/gpu"]
    assert job["spec"]["backoffLimit"] == 0  # Kubernetes starts nothing again: attempts are counted here
    assert world.cluster.pods[job["metadata"]["name"]].node == "gpu-1"

    [job] = world.jobs_of(cpu)
    assert "nodeSelector" not in job["spec"]["template"]["spec"]
    assert world.cluster.pods[job["metadata"]["name"]].node == "cpu-1"


def test_a_lost_node_and_a_reclaimed_spot_node_are_attempts_that_are_made_again(world: World) -> None:
    one = world.ask("cpu")
    world.measuring(one)
    world.cluster.lose_node("cpu-1")
    for process in world.children():
        process.kill()
    world.measuring(one, attempt=2)
    world.cluster.reclaim("cpu-1")
    world.measuring(one, attempt=3)
    world.cluster.lose_node("cpu-1")
    for process in world.children():
        process.kill()
    request = world.closed(one)
    assert (request.state, request.attempts) == ("failed", 3)
    assert request.closed is not None
    reason = str(request.closed.reason)
    assert reason.startswith("tried 3 times; the last time: Detected run worker status FAILED"), reason
    assert reason.endswith("Node is not ready"), reason  # not Dagster's advice to people at a terminal


def test_what_is_cancelled_stops_measuring_and_in_the_pages_its_job_is_deleted(world: World) -> None:
    in_pages, by_command = world.ask("cpu"), world.ask("cpu")
    world.measuring(in_pages)
    [job] = world.jobs_of(in_pages)
    name = str(job["metadata"]["name"])
    asked = {"query": TERMINATE, "variables": {"id": name.removeprefix("dagster-run-")}}
    answer = httpx.post(f"http://127.0.0.1:{world.pages}/graphql", json=asked, timeout=180).json()
    assert answer["data"]["terminateRun"]["__typename"] == "TerminateRunSuccess", answer
    wait_for("the job to be deleted", 60, lambda: name not in world.cluster.jobs, world.said)
    assert world.cluster.pods[name].deleted
    world.gone()
    assert world.closed(in_pages).state == "cancelled"

    world.measuring(by_command)
    assert close(world.log, world.request(by_command), "cancelled", "taken back")
    world.gone()  # its pod reads it in the log
    assert world.request(by_command).state == "cancelled"
