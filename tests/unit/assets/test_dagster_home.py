"""The `dagster.yaml` of an installation: a link that follows the platform, or a file of the user."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.instance.config import get_default_tick_retention_settings, get_tick_retention_settings

from accel_platform.errors import InvalidInput, StorageUnavailable
from accel_platform.settings import Settings
from assets.resources import DATA_DIR
from assets.run_in_process import dagster_home, run_full_pipeline
from faults import no_room, without_rights

OURS = DATA_DIR / "dagster.yaml"


@pytest.mark.parametrize("former", ["none", "removed", "another"])
def test_a_link_follows_the_platform_that_is_used(tmp_path: Path, former: str) -> None:
    link = tmp_path / "home" / "dagster" / "dagster.yaml"
    link.parent.mkdir(parents=True)
    place = tmp_path / "former" / "dagster.yaml"
    if former == "another":
        place.parent.mkdir()
        place.write_text("telemetry: {enabled: true}")
    if former != "none":
        link.symlink_to(place)
    for _ in range(2):
        assert dagster_home(Settings(home=tmp_path / "home")) == link.parent
        assert link.readlink() == OURS
        assert link.read_text() == OURS.read_text()
    assert [path.name for path in link.parent.iterdir()] == ["dagster.yaml"]


def test_no_tick_is_kept_for_ever() -> None:
    retention = yaml.safe_load(OURS.read_text())["retention"]
    for kind, instigator in (("sensor", InstigatorType.SENSOR), ("schedule", InstigatorType.SCHEDULE)):
        kept = get_tick_retention_settings(retention[kind], get_default_tick_retention_settings(instigator))
        assert all(0 < days <= 90 for days in kept.values())


@pytest.mark.parametrize(
    "url", ["postgres.example", "mongodb://postgres.example/dagster", "postgresql://[::1", "mysql://there/dagster"]
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dagster_postgres", reason="the extra `postgres` is not installed")
    monkeypatch.setenv("ACCEL_POSTGRES_URL", url)
    with pytest.raises(InvalidInput, match="write it as postgresql://USER"):
        dagster_home(Settings(home=tmp_path))


def test_a_file_of_the_user_stays(tmp_path: Path) -> None:
    own = tmp_path / "dagster" / "dagster.yaml"
    own.parent.mkdir()
    own.write_text("telemetry: {enabled: false}")
    dagster_home(Settings(home=tmp_path))
    assert own.read_text() == "telemetry: {enabled: false}"
    assert not own.is_symlink()


@pytest.mark.parametrize("fault", ["no-room", "read-only"])
def test_a_disk_that_fails_dagster_is_named_with_what_to_do(tmp_path: Path, fault: str) -> None:
    settings = Settings(home=tmp_path / "home")
    home = dagster_home(settings)
    if fault == "read-only":
        dg.DagsterInstance.from_config(str(home)).dispose()
    with (
        no_room(2_000) if fault == "no-room" else without_rights(home),
        pytest.raises(StorageUnavailable, match=rf"{home} cannot be used: [^\n]*Free some space"),
    ):
        run_full_pipeline(settings, {}, say=print)
