"""The graph at work on a tiny model: what it leaves, what a second run reuses, and what a broken rule blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import duckdb
import pytest

from accel_platform.events import Event, EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.layers import current
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.rules import RULES
from assets.definitions import build_defs
from assets.events import MeasurementConfig, raw_events
from assets.legacy_imports import CampaignConfig
from assets.matrix import compat_matrix
from assets.metadata_previews import NOTHING_TO_DRAW
from assets.partitions import SAMPLES, legacy_sources
from assets.resources import Installation
from assets.run_in_process import dagster_home
from assets.tables import results, results_rules
from assets.triggers.jobs import full_pipeline

pytestmark = pytest.mark.slow

TINY = MeasurementConfig(models=["bert-tiny"], hardware=["cpu"], batch_sizes=[1, 2], effort="quick")
NOTHING = "inbox/nothing"


class Home:
    """An installation in a temporary directory, and the Dagster instance in it."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(home=directory)
        self.resources = {"accel": Installation(home=str(directory))}
        self.instance = dg.DagsterInstance.from_config(str(dagster_home(self.settings)))

    def line(self, source: str) -> dg.ExecuteInProcessResult:
        """Materialise the whole graph; `source` is the partition of old files."""
        (self.settings.inbox_dir / "nothing").mkdir(parents=True, exist_ok=True)
        self.instance.add_dynamic_partitions(str(legacy_sources.name), [source])
        job = build_defs(resources=self.resources).resolve_job_def(full_pipeline.name)
        ops = {
            "measurements": TINY,
            "reference_campaign": CampaignConfig(paths=[]),
        }
        config = dg.RunConfig(ops=ops)
        return job.execute_in_process(
            instance=self.instance, partition_key=source, run_config=config, raise_on_error=False
        )

    def materialise(self, *selected: dg.AssetsDefinition) -> dg.ExecuteInProcessResult:
        """Materialise these assets with their checks."""
        return dg.materialize(
            [raw_events, results, results_rules, compat_matrix],
            selection=dg.AssetSelection.assets(*selected),
            instance=self.instance,
            resources=self.resources,
            raise_on_error=False,
        )


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    with home.instance:
        yield home


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home in which the tiny model was measured and nothing else is known."""
    home = Home(tmp_path_factory.mktemp("measured"))
    with home.instance:
        assert home.line(NOTHING).success
        yield home


def _require_shown(home: Home, result: dg.ExecuteInProcessResult) -> None:
    """Every asset of the line says how many rows it has, and shows some of them and a picture."""
    job = build_defs(resources=home.resources).resolve_job_def(full_pipeline.name)
    for key in job.asset_layer.selected_asset_keys:
        [event] = result.asset_materializations_for_node(key.to_user_string())
        assert isinstance(event.metadata["dagster/row_count"].value, int), key
        assert event.metadata["preview"].value, key
        shown = [str(entry.value) for entry in event.metadata.values()]
        assert any("data:image/png;base64," in text or text == NOTHING_TO_DRAW for text in shown), key


def _metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, object]:
    [event] = result.asset_materializations_for_node(asset)
    return {name: entry.value for name, entry in event.metadata.items()}


def test_the_line_measures_checks_publishes_and_trains_and_a_second_run_reuses_it(empty: Home) -> None:
    first = empty.line(SAMPLES)
    assert first.success
    assert _metadata(first, "measurements")["measured"] == 2
    rules = [check for check in first.get_asset_check_evaluations() if check.asset_key == results.key]
    assert len(rules) == len(RULES)
    assert all(check.passed for check in rules)
    _require_shown(empty, first)
    reader = Reader(empty.settings)
    measured = reader.rows("SELECT * FROM results WHERE provenance = 'measured' ORDER BY batch_size")
    assert [(row["model_id"], row["batch_size"], row["status"]) for row in measured] == [
        ("bert-tiny", 1, "ok"),
        ("bert-tiny", 2, "ok"),
    ]
    [matrix] = first.asset_materializations_for_node("compat_matrix")
    assert matrix.tags is not None
    assert matrix.tags["dagster/data_version"] == reader.snapshot_id
    assert str(matrix.metadata["ratings"].value).startswith("![chart](data:image/png;base64,")
    predictor = _metadata(first, "predictor")
    assert predictor["trained_now"] is True

    second = empty.line(SAMPLES)
    assert second.success
    again = _metadata(second, "measurements")
    assert (again["in_the_log_before"], again["measured"], again["failed"]) == (2, 0, 0)
    assert _metadata(second, "legacy_history")["new_events"] == 0
    assert reader.rows("SELECT * FROM results WHERE provenance = 'measured' ORDER BY batch_size") == measured
    assert _metadata(second, "predictor")["predictor_id"] == predictor["predictor_id"]
    assert _metadata(second, "predictor")["trained_now"] is False


def test_with_too_little_to_learn_from_no_predictor_is_made_and_the_reason_is_kept(measured: Home) -> None:
    assert measured.instance.get_latest_materialization_event(dg.AssetKey("predictor")) is None
    assert not measured.settings.models_dir.exists()
    [record] = measured.instance.fetch_observations(dg.AssetKey("predictor"), limit=1).records
    assert record.asset_observation is not None
    assert "have 2 of 1 in inference (bert)" in str(record.asset_observation.metadata["reason"].value)


def test_a_broken_rule_stops_the_matrix_and_leaves_the_earlier_tables_in_service(measured: Home) -> None:
    settings = measured.settings
    served = current(settings)
    assert served is not None

    # Something new is seen, and something goes wrong in building the tables: a row is there twice.
    log = EventLog.open(settings)
    log.append([Event.of(next(log.read(types={"HostObserved"})).payload, source="test")])
    staged = publish.stage(settings)
    with duckdb.connect(staged.projection.directory / staged.projection.layers[-1].file) as con:
        con.execute(f"ATTACH '{served.directory / served.layers[0].file}' AS below (READ_ONLY)")
        con.execute("INSERT INTO result_rows SELECT * FROM below.result_rows LIMIT 1")

    blocked = measured.materialise(raw_events, results, compat_matrix)
    assert not blocked.success
    assert [c.check_name for c in blocked.get_asset_check_evaluations() if not c.passed] == ["result_id_unique"]
    assert _metadata(blocked, "results")["snapshot_id"] == staged.snapshot_id
    assert "compat_matrix" not in {event.step_key for event in blocked.all_events if event.is_step_start}
    assert current(settings) == served

    # Nor can the matrix alone bring them into service: what did not pass is audited first.
    alone = measured.materialise(compat_matrix)
    assert not alone.success
    assert "result_id_unique (2 rows)" in str(alone.failure_data_for_node("compat_matrix"))
    assert current(settings) == served
    assert Reader(settings).snapshot_id == served.snapshot_id

    # Built again from the log the tables are whole, and the very same selection passes.
    publish.stage(settings, full=True)
    assert measured.materialise(raw_events, results, compat_matrix).success
    assert Reader(settings).snapshot_id == staged.snapshot_id
