"""Devices of a cluster: the resources that a benchmark on each hardware name requests from Kubernetes or Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from accel_platform.backends.registry import runtime_for
from accel_platform.errors import InvalidInput, NotFound, one_line
from accel_platform.settings import Settings
from accel_platform.strict_json import validate_model

Scheduler = Literal["kubernetes", "slurm"]
"""Scheduler that places the benchmarks of a host without devices."""
SCHEDULER = "ACCEL_HOST_SCHEDULER"
"""Environment variable: the scheduler of this host; without it the host measures requests itself."""
CLUSTER_FILE = Path(__file__).with_name("cluster.yaml")
K8S_TAG = "dagster-k8s/config"
"""Tag of a job whose value Dagster makes its pod from."""


class ClusterDevice(BaseModel):
    """One kind of device, as the schedulers know it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubernetes: dict[str, Any] = Field(default_factory=dict, title="an object, as dagster-k8s/config")
    slurm: list[str] = Field(default_factory=list, title="a list of options of sbatch")


class Cluster(BaseModel):
    """Devices of a cluster by name, and the hardware names that each of them serves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: dict[str, str] = Field(title="an object of hardware names and devices")
    devices: dict[str, ClusterDevice] = Field(title="an object of devices")

    @model_validator(mode="after")
    def _known(self) -> Cluster:
        for name, device in self.hardware.items():
            runtime_for(name)
            if device not in self.devices:
                raise InvalidInput(f"{name} needs the device {device!r}, which is not among {', '.join(self.devices)}.")
        return self

    def device_name(self, hardware: str) -> str:
        """Return the name of the device for a hardware name. Raises NotFound."""
        if hardware not in self.hardware:
            raise NotFound(f"The cluster has no {hardware}, only {', '.join(self.hardware)}: name it in ACCEL_CLUSTER.")
        return self.hardware[hardware]

    def device(self, hardware: str) -> ClusterDevice:
        """Return the device for a hardware name. Raises NotFound."""
        return self.devices[self.device_name(hardware)]


def load_cluster(settings: Settings) -> Cluster:
    """Read the cluster file of an installation, or the platform's own. Raises NotFound or InvalidInput."""
    path = settings.cluster or CLUSTER_FILE
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"There is no cluster file {path}: ACCEL_CLUSTER names it.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path} cannot be read: {one_line(error)}.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} is no cluster file: it needs `hardware` and `devices`.")
    return validate_model(Cluster, value, where=str(path))


def pod_config(hardware: str, device: ClusterDevice) -> dict[str, Any]:
    """Return the value of `dagster-k8s/config` for a hardware name. Raises InvalidInput where Kubernetes refuses it."""
    from dagster import DagsterInvalidConfigError
    from dagster_k8s.job import get_user_defined_k8s_config

    try:
        get_user_defined_k8s_config({K8S_TAG: json.dumps(device.kubernetes)})
    except (DagsterInvalidConfigError, ValueError, KeyError) as error:
        raise InvalidInput(f"The cluster file says of {hardware}: {one_line(error)}") from error
    return device.kubernetes
