"""Stand-in for the API server, the scheduler and the nodes of Kubernetes, on loopback. No test lives here.

It holds what a run launcher uses: jobs, their pods and events. A job is checked against Kubernetes' schema. Its pod
goes to a node with the labels, the tolerated taints and the resources, and its container is a process of this machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
from kubernetes.utils.quantity import parse_quantity

PATH = re.compile(r"/(?:api/v1|apis/batch/v1)/namespaces/(?P<ns>[^/]+)/(?P<kind>jobs|pods|events)(?:/(?P<name>[^/]+))?")


@dataclass
class Node:
    """One node: what the scheduler looks at."""

    name: str
    allocatable: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)


@dataclass
class Pod:
    """A job's only pod, and its process."""

    name: str
    spec: dict[str, Any]
    labels: dict[str, str]
    node: str | None = None
    process: subprocess.Popen[str] | None = None
    reason: str | None = None
    deleted: bool = False

    @property
    def phase(self) -> str:
        if self.reason is not None:
            return "Failed"
        if self.process is None:
            return "Pending"
        code = self.process.poll()
        return "Running" if code is None else "Failed" if code else "Succeeded"


class Cluster:
    """Nodes, jobs and pods."""

    def __init__(self, folder: Path, nodes: list[Node]) -> None:
        self.folder, self.nodes = folder, {node.name: node for node in nodes}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        self._lock = threading.RLock()

    @contextmanager
    def serving(self) -> Iterator[Path]:
        """Serve the API on loopback, and yield a kubeconfig for it; kill every container at the end."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": self}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = self.folder / "kubeconfig"
        here = {"cluster": {"server": f"http://127.0.0.1:{server.server_port}"}, "name": "here"}
        context = {"context": {"cluster": "here", "user": "me"}, "name": "here"}
        users = [{"name": "me", "user": {}}]
        config.write_text(
            json.dumps({"current-context": "here", "contexts": [context], "clusters": [here], "users": users})
        )
        try:
            yield config
        finally:
            server.shutdown()
            server.server_close()
            for pod in self.pods.values():
                self._signal(pod, signal.SIGKILL)
                if pod.process is not None:
                    pod.process.wait()

    def create(self, job: dict[str, Any]) -> dict[str, Any]:
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
        with self._lock:
            name, template = job["metadata"]["name"], job["spec"]["template"]
            assert template["spec"]["restartPolicy"] == "Never"
            labels = {**template["metadata"].get("labels", {}), "job-name": name}
            self.jobs[name] = job
            self.pods[name] = pod = Pod(f"{name}-x", template["spec"], labels)
            self._place(pod)
            return job

    def status(self, name: str) -> dict[str, Any]:
        with self._lock:
            phase = self.pods[name].phase
            counts = {"Failed": {"failed": 1}, "Succeeded": {"succeeded": 1}}.get(phase, {"active": 1})
            return {**self.jobs[name], "status": counts}

    def delete(self, name: str) -> None:
        with self._lock:
            del self.jobs[name]

    def delete_pod(self, name: str) -> None:
        [pod] = [pod for pod in self.pods.values() if pod.name == name]
        pod.deleted = True
        self._signal(pod, signal.SIGTERM)

    def lose_node(self, name: str) -> None:
        """Do as the node controller does when a node is gone: its pods are failed, and it takes no others."""
        with self._lock:
            for pod in self._running_on(name):
                self._signal(pod, signal.SIGKILL)
                pod.reason = "NodeLost"

    def reclaim(self, name: str) -> None:
        """Do as the kubelet of a spot node does that is taken away: its pods are told to end."""
        for pod in self._running_on(name):
            self._signal(pod, signal.SIGTERM)
            pod.reason = "Terminated"

    def _running_on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node == node and pod.phase == "Running"]

    def _place(self, pod: Pod) -> None:
        pod.node = next((node.name for node in self.nodes.values() if self._fits(pod, node)), None)
        if pod.node is None:
            return
        [container] = pod.spec["containers"]
        environment = {one["name"]: one["value"] for one in container["env"]}
        # The image's own.
        environment |= {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
        environment["PATH"] = str(Path(sys.executable).parent)
        command = [sys.executable, "-m", *container["args"]]
        with (self.folder / f"{pod.name}.log").open("w") as output:
            pod.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, text=True, start_new_session=True
            )

    def _fits(self, pod: Pod, node: Node) -> bool:
        if any(node.labels.get(label) != value for label, value in pod.spec.get("nodeSelector", {}).items()):
            return False
        tolerated = {one.get("key") for one in pod.spec.get("tolerations", [])}
        if any(taint["key"] not in tolerated for taint in node.taints):
            return False
        used = [_limits(other) for other in self._running_on(node.name)]
        for resource, amount in _limits(pod).items():
            taken = sum(parse_quantity(limits.get(resource, "0")) for limits in used)
            if parse_quantity(node.allocatable.get(resource, "0")) - taken < parse_quantity(amount):
                return False
        return True

    def _signal(self, pod: Pod, how: int) -> None:
        if pod.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(pod.process.pid, how)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the node controller writes down of a pod whose node is lost."""
        lost = [pod for pod in self.pods.values() if pod.name == name and pod.reason == "NodeLost"]
        about = {"metadata": {"name": "event"}, "involvedObject": {"name": name}}
        return [{**about, "type": "Warning", "reason": "NodeNotReady", "message": "Node is not ready"} for _ in lost]

    def describe_pod(self, pod: Pod) -> dict[str, Any]:
        status: dict[str, Any] = {"phase": pod.phase}
        if pod.reason is not None:
            status["reason"] = pod.reason
        return {
            "metadata": {"name": pod.name, "labels": pod.labels},
            "spec": {**pod.spec, "nodeName": pod.node},
            "status": status,
        }


def _limits(pod: Pod) -> dict[str, str]:
    [container] = pod.spec["containers"]
    found: dict[str, str] = container.get("resources", {}).get("limits", {})
    return found


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        found = PATH.match(url.path)
        assert found is not None, self.path
        kind, name = found["kind"], found["name"]
        if kind == "jobs" and name is not None:
            self._answer(self.cluster.status(name) if name in self.cluster.jobs else None)
        elif kind == "jobs":
            self._answer({"items": list(self.cluster.jobs.values())})
        elif kind == "pods" and name is None:
            query = parse_qs(url.query)
            wanted = (query.get("labelSelector") or query["fieldSelector"])[0].partition("=")[2]
            pods = [pod for job, pod in self.cluster.pods.items() if wanted in (job, pod.name) and not pod.deleted]
            self._answer({"items": [self.cluster.describe_pod(pod) for pod in pods]})
        else:
            name = parse_qs(url.query)["fieldSelector"][0].partition("=")[2]
            self._answer({"items": self.cluster.events(name)})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self._answer(self.cluster.create(body))
        except kubernetes_validate.ValidationError as error:
            self._answer({"kind": "Status", "message": str(error)}, 422)

    def do_DELETE(self) -> None:
        found = PATH.match(urlsplit(self.path).path)
        assert found is not None, self.path
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            (self.cluster.delete if found["kind"] == "jobs" else self.cluster.delete_pod)(found["name"])
        except (KeyError, ValueError):
            self._answer(None)
        else:
            self._answer({"kind": "Status", "status": "Success"})

    def _answer(self, value: dict[str, Any] | None, status: int = 200) -> None:
        body = json.dumps(value or {"kind": "Status", "code": 404}).encode()
        self.send_response(status if value is not None else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
