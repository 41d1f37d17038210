"""The Helm values: they start what is there, and the chart's own schema takes them where `ACCEL_DAGSTER_CHART` is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from processes import REPOSITORY

from accel_platform.settings import Settings
from assets.cluster import load_cluster

pytest.importorskip("dagster_k8s", reason="the extra `kubernetes` is not installed")

VALUES: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "values.yaml").read_text())
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


def test_dagster_makes_a_pod_of_the_values_and_the_cluster_file_that_kubernetes_takes() -> None:
    import kubernetes_validate
    from dagster_k8s.container_context import K8sContainerContext
    from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job
    from kubernetes.client import ApiClient

    from assets.cluster import pod_config

    device = load_cluster(Settings()).device("cuda")
    snake = {
        "podSpecConfig": "pod_spec_config",
        "containerConfig": "container_config",
        "jobSpecConfig": "job_spec_config",
    }
    common = {snake[key]: value for key, value in LAUNCHER["runK8sConfig"].items()}
    both = K8sContainerContext.create_from_config({"k8s": {"run_k8s_config": common}}).merge(
        K8sContainerContext.create_from_config({"k8s": {"run_k8s_config": pod_config("cuda", device)}})
    )
    job = construct_dagster_k8s_job(
        job_config=DagsterK8sJobConfig(job_image="accel-platform:1", dagster_home="/opt/dagster/dagster_home"),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-1",
        user_defined_k8s_config=both.run_k8s_config,
    )
    document = ApiClient().sanitize_for_serialization(job)
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    pod = document["spec"]["template"]["spec"]
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
    assert document["spec"]["backoffLimit"] == 0


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


@pytest.mark.skipif("ACCEL_DAGSTER_CHART" not in os.environ, reason="ACCEL_DAGSTER_CHART names no unpacked chart")
def test_the_charts_schema_takes_the_values() -> None:
    chart = Path(os.environ["ACCEL_DAGSTER_CHART"])
    schema = json.loads((chart / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    jsonschema.validate(_with_defaults(defaults, VALUES), schema)
    unknown = VALUES.keys() - schema["properties"].keys() - defaults.keys()
    assert not unknown
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(_with_defaults(defaults, {"runLauncher": {"type": "NoSuchLauncher"}}), schema)
