"""The cluster file: every hardware name has a device, and each device becomes a pod that Kubernetes takes."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_platform.backends.registry import RUNTIMES
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.settings import Settings
from assets.executors.cluster import K8S_TAG, Cluster, load_cluster, pod_config

# Looked for, not imported: every process that collects tests would load the client of Kubernetes.
pytestmark = pytest.mark.skipif(find_spec("dagster_k8s") is None, reason="the extra `kubernetes` is not installed")

ACCELERATORS = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "gaudi": "habana.ai/gaudi",
    "qaic": "qualcomm.com/qaic",
    "intel-gpu": "gpu.intel.com/i915",
    "intel-npu": "npu.intel.com/accel",
}
LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return load_cluster(Settings())


def pod_of(kubernetes: dict[str, Any]) -> dict[str, Any]:
    """The pod that Dagster makes for a run with this tag, after Kubernetes' schema has taken the whole job."""
    import kubernetes_validate
    from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job, get_user_defined_k8s_config
    from kubernetes.client import ApiClient

    job = construct_dagster_k8s_job(
        job_config=DagsterK8sJobConfig(job_image="accel-platform:1", dagster_home="/opt/dagster"),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-1",
        user_defined_k8s_config=get_user_defined_k8s_config({K8S_TAG: json.dumps(kubernetes)}),
    )
    document = ApiClient().sanitize_for_serialization(job)
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


def test_every_runtime_that_a_cluster_can_have_has_a_device(cluster: Cluster) -> None:
    never = {"mps", "webgpu", "webnn"}  # macOS, and browsers with a screen
    assert {name.partition(":")[0] for name in cluster.hardware} == RUNTIMES.keys() - never
    assert {cluster.device_name(name) for name in ("cpu", "openvino", "onnxruntime", "jax")} == {"processor"}
    assert (cluster.device_name("cuda"), cluster.device_name("rocm")) == ("nvidia", "amd")


@pytest.mark.parametrize("device", sorted(ACCELERATORS))
def test_a_device_becomes_a_pod_with_one_of_it_on_a_node_that_has_it(cluster: Cluster, device: str) -> None:
    pod = pod_of(cluster.devices[device].kubernetes)
    resource = ACCELERATORS[device]
    [container] = pod["containers"]
    assert container["resources"]["limits"][resource] == "1"
    assert resource not in container["resources"]["requests"]  # Kubernetes takes the limit for it
    assert [one["key"] for one in pod["tolerations"]] == [resource]
    assert pod["tolerations"][0] == {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
    assert pod["nodeSelector"]
    for label, value in pod["nodeSelector"].items():
        assert LABEL.fullmatch(label), label
        assert value == "true"
    assert pod["restartPolicy"] == "Never"
    assert any("gres=" in option for option in cluster.devices[device].slurm)


def test_processors_are_asked_for_in_whole_cores_of_their_own(cluster: Cluster) -> None:
    from kubernetes.utils.quantity import parse_quantity

    for name, device in cluster.devices.items():
        [container] = pod_of(device.kubernetes)["containers"]
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {key: limits[key] for key in requests} == requests, name  # the guaranteed class
        assert parse_quantity(requests["cpu"]) % Decimal(1) == 0
        assert parse_quantity(requests["memory"]) >= 8 * 2**30


def test_a_file_of_ones_own_takes_the_place_of_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        yaml.safe_dump({"hardware": {"cuda": "h100"}, "devices": {"h100": {"slurm": ["--gres=gpu:h100:1"]}}})
    )
    monkeypatch.setenv("ACCEL_CLUSTER", str(file))
    own = load_cluster(Settings())
    assert own.device("cuda").slurm == ["--gres=gpu:h100:1"]
    with pytest.raises(NotFound, match="The cluster has no rocm, only cuda"):
        own.device("rocm")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hardware: [", "cannot be read"),
        ("[]", "no cluster file"),
        ("{hardware: {cuda: a}, devices: {b: {}}}", "cuda needs the device 'a'"),
        ("{hardware: {cudda: a}, devices: {a: {}}}", "No hardware is called 'cudda'"),
        ("{hardware: {cuda: a}, devices: {a: {kubernets: {}}}}", "kubernets"),
        ("{hardware: {}}", "devices"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=re.escape(reason)) as error:
        load_cluster(Settings(cluster=file))
    assert "\n" not in str(error.value)
    with pytest.raises(NotFound, match="ACCEL_CLUSTER"):
        load_cluster(Settings(cluster=tmp_path / "nowhere.yaml"))


def test_a_pod_that_dagster_does_not_understand_is_refused_in_one_line(cluster: Cluster) -> None:
    device = cluster.devices["nvidia"]
    assert pod_config("cuda", device) == device.kubernetes
    wrong = device.model_copy(update={"kubernetes": {"container_konfig": {}}})
    with pytest.raises(InvalidInput, match=r"The cluster file says of cuda: .*container_konfig") as error:
        pod_config("cuda", wrong)
    assert "\n" not in str(error.value)
