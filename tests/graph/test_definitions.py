"""The graph as it is declared: it loads, its edges are these, and every asset says who owns it and what it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from accel_platform.warehouse.rules import RULES
from assets.definitions import build_defs, defs
from assets.resources import Installation

SNAPSHOT = Path(__file__).parents[1] / "data" / "definitions.yaml"
EDGES = {
    "hardware_inventory": set(),
    "measurements": {"hardware_inventory"},
    "legacy_history": set(),
    "reference_campaign": set(),
    "event_log": set(),
    "raw_events": {"event_log", "hardware_inventory", "measurements", "legacy_history", "reference_campaign"},
    "results": {"raw_events"},
    "compat_matrix": {"results"},
    "regressions": {"compat_matrix"},
    "predictor": {"compat_matrix"},
    "daily_report": {"regressions"},
}


@pytest.mark.slow
def test_loading_the_graph_imports_nothing_that_fits_or_measures() -> None:
    """Dagster loads it in every process: of the pages, the daemon, each run and each step."""
    heavy = {"lightgbm", "sklearn", "torch", "scipy.stats"}
    script = f"import sys, assets.definitions; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow  # it looks for this machine's hardware
def test_a_host_that_is_served_keeps_no_runtime_loaded() -> None:
    script = "import json, sys; from assets import hosts; print(json.dumps([*sys.modules])); print(hosts.pools_here())"
    environment = {**os.environ, "ACCEL_HOST_HARDWARE": "cpu", "ACCEL_HOST_POOLS": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=180
    )
    modules, pools = done.stdout.splitlines()
    assert not {"torch", "openvino", "onnxruntime", "jax"} & set(json.loads(modules))
    assert pools.startswith("{'cpu': '")


def test_the_edges_of_the_graph() -> None:
    graph = defs.resolve_asset_graph()
    found = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert found == EDGES


def test_every_data_rule_is_a_blocking_check_of_its_own() -> None:
    graph = defs.resolve_asset_graph()
    of_rules = {key for key in graph.asset_check_keys if key.asset_key == dg.AssetKey("results")}
    checks = {key.name: graph.get(key) for key in of_rules}
    assert set(checks) == {rule.name for rule in RULES}
    assert all(check.blocking for check in checks.values())


@pytest.mark.parametrize("asset", EDGES)
def test_every_asset_says_what_it_is(asset: str) -> None:
    node = defs.resolve_asset_graph().get(dg.AssetKey(asset))
    assert node.description
    assert node.owners
    assert node.kinds
    assert node.group_name in {"observe", "answer"}


def test_the_full_pipeline_covers_every_asset_but_the_reports_of_days() -> None:
    job = defs.resolve_job_def("full_pipeline")
    made = set(EDGES) - {"event_log", "daily_report"}
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == made


def test_what_automates_runs_without_being_asked() -> None:
    sensors = {sensor.name: sensor.default_status for sensor in defs.get_repository_def().sensor_defs}
    assert sensors == dict.fromkeys(sensors, dg.DefaultSensorStatus.RUNNING)
    assert any(isinstance(defs.resolve_sensor_def(name), dg.AutomationConditionSensorDefinition) for name in sensors)


def test_the_definitions_are_those_that_were_agreed_on() -> None:
    """All of the graph in one file, so that no change of it goes unseen."""
    found = yaml.safe_dump(_described(defs), sort_keys=True, width=120)
    if os.environ.get("ACCEL_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(found)
    assert found == SNAPSHOT.read_text(), (
        f"The definitions are not those of {SNAPSHOT.name}. If that is meant, "
        "`ACCEL_UPDATE_SNAPSHOT=1 python -m pytest tests/graph/test_definitions.py` writes it anew: commit that."
    )


def _told(condition: dg.AutomationCondition[Any]) -> str:
    """The whole condition, by the names of its parts."""
    parts = ", ".join(map(_told, condition.children))
    return f"{condition.name}({parts})" if parts else condition.name


def _described(definitions: dg.Definitions) -> dict[str, Any]:
    graph, repository = definitions.resolve_asset_graph(), definitions.get_repository_def()
    assets, checks = {}, {}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        condition, policy = node.automation_condition, node.freshness_policy_or_from_metadata
        assets[key.to_user_string()] = {
            "deps": sorted(parent.to_user_string() for parent in node.parent_keys),
            "description": (node.description or "").partition("\n")[0],
            "group": node.group_name,
            "kinds": sorted(node.kinds),
            "owners": sorted(node.owners),
            "partitions": type(node.partitions_def).__name__ if node.partitions_def else None,
            "condition": {str(condition.get_label()): _told(condition)} if condition else None,
            "freshness": str(policy) if policy else None,
        }
    for check in graph.asset_check_keys:
        checks.setdefault(check.asset_key.to_user_string(), {})[check.name] = (
            "blocking" if graph.get(check).blocking else "tells"
        )
    jobs = {
        job.name: {
            "assets": sorted(key.to_user_string() for key in job.asset_layer.selected_asset_keys),
            "ops": sorted(node.name for node in job.nodes),
            "tags": dict(job.tags),
        }
        for job in repository.get_all_jobs()
        if not job.name.startswith("__")
    }
    sensors = {
        sensor.name: {
            "kind": sensor.sensor_type.value,
            "jobs": sorted(target.job_name for target in sensor.targets if target.job_name),
            "status": sensor.default_status.value,
            "seconds": sensor.minimum_interval_seconds,
        }
        for sensor in repository.sensor_defs
    }
    schedules = {
        schedule.name: {
            "cron": schedule.cron_schedule,
            "job": schedule.job_name,
            "status": schedule.default_status.value,
        }
        for schedule in repository.schedule_defs
    }
    return {"assets": assets, "checks": checks, "jobs": jobs, "sensors": sensors, "schedules": schedules}


def test_an_override_replaces_one_part_and_leaves_the_rest() -> None:
    changed = build_defs(resources={"accel": Installation(home="/elsewhere")})
    assert changed.resources
    assert changed.resources["accel"].home == "/elsewhere"
    assert changed.resolve_asset_graph().get_all_asset_keys() == defs.resolve_asset_graph().get_all_asset_keys()
