"""The Helm values: they start what is there, and the chart's own schema takes them where `ACCEL_DAGSTER_CHART` is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from processes import REPOSITORY

from accel_platform.settings import Settings
from assets.executors.cluster import load_cluster, pod_config

# Looked for, not imported: every process that collects tests would load the client of Kubernetes.
pytestmark = pytest.mark.skipif(find_spec("dagster_k8s") is None, reason="the extra `kubernetes` is not installed")

VALUES_FILE = REPOSITORY / "deploy" / "kubernetes" / "values.yaml"
VALUES: dict[str, Any] = yaml.safe_load(VALUES_FILE.read_text())
LAUNCHER: dict[str, Any] = VALUES["runLauncher"]["config"]["k8sRunLauncher"]


def _environment() -> dict[str, str]:
    [deployment] = VALUES["dagster-user-deployments"]["deployments"]
    return {one["name"]: one["value"] for one in deployment["env"]}


def _with_defaults(defaults: Any, values: Any) -> Any:
    """The values as Helm lays them over the chart's."""
    if not isinstance(defaults, dict) or not isinstance(values, dict):
        return values
    return {**defaults, **{key: _with_defaults(defaults.get(key), value) for key, value in values.items()}}


def test_the_code_location_is_the_hosts_module_and_its_hardware_is_in_the_cluster_file() -> None:
    [deployment] = VALUES["dagster-user-deployments"]["deployments"]
    assert deployment["dagsterApiGrpcArgs"] == ["--module-name", "assets.hosts"]
    assert deployment["includeConfigInLaunchedRuns"] == {"enabled": True}
    environment = _environment()
    cluster = load_cluster(Settings())
    for name in environment["ACCEL_HOST_HARDWARE"].split(","):
        assert cluster.device(name).kubernetes
    assert environment["ACCEL_HOST_SCHEDULER"] == "kubernetes"
    own = {name.removeprefix("ACCEL_").lower() for name in environment if name.startswith("ACCEL_")}
    assert own - {"host_scheduler", "host_name", "host_hardware"} <= Settings.model_fields.keys()


def _pod(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that Dagster makes of these, each a `k8s` of a container context, the last over the others."""
    import kubernetes_validate
    from dagster_k8s.container_context import K8sContainerContext
    from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job
    from kubernetes.client import ApiClient

    whole = K8sContainerContext()
    for layer in layers:
        whole = whole.merge(K8sContainerContext.create_from_config({"k8s": layer}))
    job = construct_dagster_k8s_job(
        job_config=DagsterK8sJobConfig(job_image="accel-platform:1", dagster_home="/opt/dagster/dagster_home"),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-1",
        user_defined_k8s_config=whole.run_k8s_config,
    )
    document: dict[str, Any] = ApiClient().sanitize_for_serialization(job)
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    assert document["spec"]["backoffLimit"] == 0
    pod: dict[str, Any] = document["spec"]["template"]["spec"]
    return pod


def _of_cuda() -> dict[str, Any]:
    return {"run_k8s_config": pod_config("cuda", load_cluster(Settings()).device("cuda"))}


def test_dagster_makes_a_pod_of_the_values_and_the_cluster_file_that_kubernetes_takes() -> None:
    snake = {
        "podSpecConfig": "pod_spec_config",
        "containerConfig": "container_config",
        "jobSpecConfig": "job_spec_config",
    }
    pod = _pod({"run_k8s_config": {snake[key]: value for key, value in LAUNCHER["runK8sConfig"].items()}}, _of_cuda())
    # Those of the values and those of the device stand side by side.
    tolerated = {one["key"]: one.get("tolerationSeconds") for one in pod["tolerations"]}
    assert tolerated == {
        "node.kubernetes.io/unreachable": 10,
        "node.kubernetes.io/not-ready": 10,
        "nvidia.com/gpu": None,
    }
    [container] = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_lost_run_is_given_up_as_it_is_on_hosts() -> None:
    instance = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    monitoring, ours = VALUES["dagsterDaemon"]["runMonitoring"], instance["run_monitoring"]
    assert monitoring["pollIntervalSeconds"] == ours["poll_interval_seconds"]
    assert monitoring["freeSlotsAfterRunEndSeconds"] == ours["free_slots_after_run_end_seconds"]
    assert monitoring["maxResumeRunAttempts"] == 0  # attempts are counted in the log
    pools = instance["concurrency"]["pools"]
    assert VALUES["concurrency"]["pools"] == {
        "defaultLimit": pools["default_limit"],
        "granularity": pools["granularity"],
    }


needs_the_chart = pytest.mark.skipif(
    "ACCEL_DAGSTER_CHART" not in os.environ, reason="ACCEL_DAGSTER_CHART names no unpacked chart"
)


@needs_the_chart
def test_the_charts_schema_takes_the_values() -> None:
    chart = Path(os.environ["ACCEL_DAGSTER_CHART"])
    schema = json.loads((chart / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    jsonschema.validate(_with_defaults(defaults, VALUES), schema)
    unknown = VALUES.keys() - schema["properties"].keys() - defaults.keys()
    assert not unknown
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(_with_defaults(defaults, {"runLauncher": {"type": "NoSuchLauncher"}}), schema)


@needs_the_chart
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_what_helm_renders_is_taken_by_kubernetes_and_by_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kubernetes_validate
    from dagster._core.instance.config import dagster_instance_config

    # The chart's schema, which the test before this one checks, refers to a site that serves Kubernetes' own.
    command = ["helm", "template", "accel", os.environ["ACCEL_DAGSTER_CHART"], "--skip-schema-validation"]
    done = subprocess.run([*command, "-f", str(VALUES_FILE)], capture_output=True, text=True, check=False)
    if "unknown flag" in done.stderr:
        pytest.skip("this helm is older than 3.16")
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    named = {(document["kind"], document["metadata"]["name"]): document for document in documents}

    instance = named["ConfigMap", "accel-dagster-instance"]["data"]["dagster.yaml"]
    (tmp_path / "dagster.yaml").write_text(instance)
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "secret")
    loaded, _ = dagster_instance_config(str(tmp_path))
    assert loaded["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}

    server = named["Deployment", "accel-dagster-user-deployments-benchmarks"]
    [container] = server["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    handed_on = json.loads(environment["DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT"])["k8s"]
    launcher = yaml.safe_load(instance)["run_launcher"]["config"]["run_k8s_config"]
    [container] = _pod({"run_k8s_config": launcher}, handed_on, _of_cuda())["containers"]
    # Runs get the code server's secrets, and not the little that it asks of a node.
    assert {"secretRef": {"name": "accel-log"}} in container["envFrom"]
    device = _of_cuda()["run_k8s_config"]["container_config"]["resources"]
    assert container["resources"] == device
