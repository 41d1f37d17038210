"""The graph as it is declared: it loads, its edges are these, and every asset says who owns it and what it is."""

from __future__ import annotations

import dagster as dg
import pytest

from accel_platform.warehouse.rules import RULES
from assets.definitions import build_defs, defs
from assets.resources import Installation

EDGES = {
    "hardware_inventory": set(),
    "measurements": {"hardware_inventory"},
    "legacy_history": set(),
    "reference_campaign": set(),
    "raw_events": {"hardware_inventory", "measurements", "legacy_history", "reference_campaign"},
    "results": {"raw_events"},
    "compat_matrix": {"results"},
    "predictor": {"compat_matrix"},
}


def test_the_edges_of_the_graph() -> None:
    graph = defs.resolve_asset_graph()
    found = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert found == EDGES


def test_every_data_rule_is_a_blocking_check_of_its_own() -> None:
    graph = defs.resolve_asset_graph()
    checks = {key.name: graph.get(key) for key in graph.asset_check_keys}
    assert set(checks) == {rule.name for rule in RULES}
    assert all(check.blocking and check.key.asset_key == dg.AssetKey("results") for check in checks.values())


@pytest.mark.parametrize("asset", EDGES)
def test_every_asset_says_what_it_is(asset: str) -> None:
    node = defs.resolve_asset_graph().get(dg.AssetKey(asset))
    assert node.description
    assert node.owners
    assert node.kinds
    assert node.group_name in {"observe", "answer"}


def test_the_main_line_covers_every_asset() -> None:
    job = defs.resolve_job_def("main_line")
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == set(EDGES)


def test_an_override_replaces_one_part_and_leaves_the_rest() -> None:
    changed = build_defs(resources={"accel": Installation(home="/elsewhere")})
    assert changed.resources
    assert changed.resources["accel"].home == "/elsewhere"
    assert changed.resolve_asset_graph().get_all_asset_keys() == defs.resolve_asset_graph().get_all_asset_keys()
