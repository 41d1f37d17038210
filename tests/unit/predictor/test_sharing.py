"""Machines that share a log share the predictor that serves: promotions and rollbacks hold on all of them."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tracemalloc
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel_platform.backup import back_up
from accel_platform.cli import app
from accel_platform.events import Event, EventLog
from accel_platform.events.segments import open_store
from accel_platform.events.types import PredictorPromoted
from accel_platform.settings import Settings
from accel_platform.warehouse.disk_use import measure_disk_use
from accel_platform.warehouse.publish import refresh
from predictor.advisor.advisor import Advisor
from predictor.training import artifact, promotion, sharing
from predictor.training.artifact import ArtifactRejected
from predictor.training.manifest import Manifest
from predictor.training.promotion import promotions, remove_old_predictors, roll_back
from predictor.training.train import train
from predictor_world import MODELS, append, result, world

Team = tuple[Settings, Settings]


def _serves(settings: Settings) -> str | None:
    refresh(settings)
    advisor = Advisor(settings)
    advisor.follow_promotions()
    predictor = advisor.state().predictor
    return None if predictor is None else predictor.predictor_id


def _team(prepared: Path, location: str, folder: Path) -> Team:
    """Two machines with a copy of the prepared log at the location; the first is a copy of the prepared machine."""
    shutil.copytree(prepared / "here", folder / "here")
    store = open_store(location, folder / "copies")
    for path in sorted((prepared / "log").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            assert store.publish(str(path.relative_to(prepared / "log")), path.read_bytes())
    return Settings(home=folder / "here"), Settings(home=folder / "there")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a machine and its log: it trained, and it trained once more, on one figure more."""
    once, twice = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("twice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_LOG_URI", str(once / "log"))
        here = world(once / "here")
        train(here, EventLog.open(here))
        shutil.copytree(once, twice, dirs_exist_ok=True)
        patch.setenv("ACCEL_LOG_URI", str(twice / "log"))
        here = Settings(home=twice / "here")
        append(here, [result(MODELS[0], "cpu", 8, provenance="imported")])
        train(here, EventLog.open(here))
    return once, twice


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cleaning delete archives of this minute."""
    monkeypatch.setattr(sharing, "_UNSEEN_S", -60)


@pytest.fixture(params=["directory", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store in a directory or an object storage; other tests compare the kinds of object storages."""
    if request.param == "directory":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('bucket')}/some/prefix"


@pytest.fixture
def team_anywhere(prepared: tuple[Path, Path], location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Two machines with one log at the location; the first has trained."""
    monkeypatch.setenv("ACCEL_LOG_URI", location)
    return _team(prepared[0], location, tmp_path)


@pytest.fixture
def team(prepared: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Two machines with one log in a directory; the first has trained."""
    monkeypatch.setenv("ACCEL_LOG_URI", str(tmp_path / "log"))
    return _team(prepared[0], str(tmp_path / "log"), tmp_path)


@pytest.fixture
def trained_team(prepared: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    """Two machines with one log in a directory; the first has trained twice."""
    monkeypatch.setenv("ACCEL_LOG_URI", str(tmp_path / "log"))
    return _team(prepared[1], str(tmp_path / "log"), tmp_path)


@pytest.mark.slow
def test_what_one_machine_promotes_serves_on_the_other_and_so_does_going_back(team_anywhere: Team) -> None:
    here, there = team_anywhere
    [first] = promotions(EventLog.open(here))
    assert artifact.list_ids(there) == []
    assert _serves(there) == first.predictor_id
    assert artifact.read_files(there, first.predictor_id) == artifact.read_files(here, first.predictor_id)

    append(there, [result(MODELS[0], "cpu", 8, provenance="imported")])
    said: list[str] = []
    second = train(there, EventLog.open(there), progress=said.append)
    assert [change.replaced for change in promotions(EventLog.open(here))] == [None, first.predictor_id]
    assert _serves(here) == second.predictor_id

    # From a machine that never had the first predictor, as a new member of the team.
    newcomer = Settings(home=there.home.parent / "newcomer")
    assert _serves(newcomer) == second.predictor_id
    done = CliRunner().invoke(app, ["predictor", "rollback", "--home", str(newcomer.home), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"predictor_id": first.predictor_id, "replaced": second.predictor_id}
    append(there, [result(MODELS[0], "cpu", 4, provenance="imported")])
    assert (_serves(here), _serves(there)) == (first.predictor_id, first.predictor_id)


@pytest.mark.slow
def test_an_archive_that_was_changed_is_refused_and_the_machine_goes_on(
    team_anywhere: Team, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = team_anywhere
    [first] = promotions(EventLog.open(here))
    key = f"models/{first.predictor_id}.zip"
    store = open_store(here.log_location, tmp_path / "copies")
    whole = store.local_path(key).read_bytes()
    files = sharing._unpack(first.predictor_id, whole)
    for problem, content in {
        "damaged": whole[: len(whole) // 2],
        "is not what was trained": sharing._pack(files | {"inference_cases.parquet": b"other"}),
        "was altered": sharing._pack(files | {"manifest.json": files["manifest.json"] + b" "}),
    }.items():
        store.remove(key)
        store.publish(key, content)
        assert _serves(there) is None
        assert problem in caplog.records[-1].getMessage()
        assert artifact.list_ids(there) == []
    store.remove(key)
    said: list[str] = []
    own = train(there, EventLog.open(there), progress=said.append)
    assert "`accel train` here makes one of this machine's own" in "".join(said)
    assert own.promoted
    assert _serves(there) == own.predictor_id


@pytest.mark.usefixtures("no_grace")
def test_what_was_gone_back_from_before_predictors_were_shared_does_not_return(trained_team: Team) -> None:
    here, _ = trained_team
    log = EventLog.open(here)
    [first, second] = promotions(log)
    sharing.remove_shared(here, log, ())
    artifact.activate(here, first.predictor_id)  # the event of such a rollback is not found by its name
    append(here, [result(MODELS[0], "cpu", 4, provenance="imported")])
    assert _serves(here) == first.predictor_id
    # A rollback of today shares what it goes back to.
    roll_back(here, log, second.predictor_id)
    assert sharing.shared_ids(here, log) == {second.predictor_id}


def test_what_one_machine_went_back_from_another_does_not_promote_again(trained_team: Team) -> None:
    here, there = trained_team
    log = EventLog.open(here)
    [first, second] = promotions(log)
    roll_back(here, log)
    refresh(there)
    again = train(there, EventLog.open(there))
    assert (again.predictor_id, again.promoted) == (second.predictor_id, False)
    assert "accel predictor rollback" in again.reason
    assert artifact.current_id(there) == first.predictor_id


def test_the_last_decision_counts_whatever_the_clocks_say(trained_team: Team) -> None:
    here, there = trained_team
    log = EventLog.open(here)
    [first, second] = promotions(log)
    ahead = Event.of(PredictorPromoted(predictor_id=second.predictor_id, cause="trained", reason="r"), source="test")
    ahead = ahead.model_copy(update={"recorded_at": ahead.recorded_at + timedelta(minutes=10)})
    log.append([ahead], key=f"{sharing.PROMOTIONS}by-a-clock-that-is-ahead")
    # The other machine has not even seen what it goes back from.
    assert roll_back(there, EventLog.open(there), first.predictor_id).replaced == second.predictor_id
    assert (_serves(here), _serves(there)) == (first.predictor_id, first.predictor_id)


def test_an_archive_writes_nowhere_else(team: Team) -> None:
    here, there = team
    [first] = promotions(EventLog.open(here))
    files = artifact.read_files(here, first.predictor_id)
    manifest = json.loads(files["manifest.json"])
    manifest["files"]["../../outside"] = hashlib.sha256(b"x").hexdigest()
    content = artifact._encode(Manifest.model_validate(manifest))
    stranger = files | {"manifest.json": content, "../../outside": b"x"}
    with pytest.raises(ArtifactRejected, match="outside its folder"):
        artifact.store_checked(there, artifact._predictor_id(content), stranger)
    assert not there.models_dir.exists()


def test_an_archive_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_MOST_BYTES", 2**20)
    assert sharing._unpack("lgbm-0", sharing._pack({"trees.txt": bytes(2**20)})) == {"trees.txt": bytes(2**20)}
    with pytest.raises(ArtifactRejected, match="would unpack to 2 MiB"):
        sharing._unpack("lgbm-0", sharing._pack({"one.txt": bytes(2**20), "other.txt": bytes(2**20)}))


def test_an_archive_that_lies_about_its_size_is_read_no_further() -> None:
    whole = sharing._pack({"trees.txt": bytes(2**24)})
    at = whole.rindex(b"PK\x01\x02") + 24  # the size in the directory, after which it is read
    lying = whole[:at] + (10).to_bytes(4, "little") + whole[at + 4 :]
    tracemalloc.start()
    with pytest.raises(ArtifactRejected, match="is damaged"):
        sharing._unpack("lgbm-0", lying)
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("trees.txt", b"trees")
    with pytest.raises(ArtifactRejected, match="in another way"):
        sharing._unpack("lgbm-0", packed.getvalue())


@pytest.mark.usefixtures("no_grace")
def test_a_restore_stores_what_its_promotions_name_next_to_the_log(
    trained_team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = trained_team
    [first, second] = promotions(EventLog.open(here))
    back_up(here, tmp_path / "copy")
    monkeypatch.setenv("ACCEL_LOG_URI", str(tmp_path / "new-log"))
    home = tmp_path / "restored"
    done = CliRunner().invoke(app, ["db", "restore", str(tmp_path / "copy"), "--home", str(home)])
    assert done.exit_code == 0, done.output
    restored = Settings(home=home)
    log = EventLog.open(restored)
    assert sharing.shared_ids(restored, log) == {first.predictor_id, second.predictor_id}
    newcomer = Settings(home=tmp_path / "newcomer")
    assert _serves(newcomer) == second.predictor_id
    assert roll_back(newcomer, EventLog.open(newcomer)).predictor_id == first.predictor_id
    # One that another version wrote is told of, and the others are stored.
    (restored.models_dir / first.predictor_id / "manifest.json").write_bytes(b"{}")
    sharing.remove_shared(restored, log, ())
    said: list[str] = []
    assert promotion.share_promoted(restored, log, said.append) == [second.predictor_id]
    assert len(said) == 1


def test_the_space_that_archives_take_is_told(team: Team) -> None:
    here, _ = team
    used = {use.part: use for use in measure_disk_use(here)}
    assert used["log/models"].files == 1
    assert used["log/models"].size_bytes > 10_000


@pytest.mark.usefixtures("no_grace")
def test_old_archives_go_and_those_that_serve_or_may_again_stay(
    trained_team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = trained_team
    monkeypatch.setattr(promotion, "KEEP_NEWEST", 1)
    log = EventLog.open(here)
    [first, second] = promotions(log)
    log.store.publish("models/lgbm-of-long-ago.zip", b"old")
    remove_old_predictors(here, log)
    assert sharing.shared_ids(here, log) == {first.predictor_id, second.predictor_id}
    roll_back(here, log)


def test_a_log_of_one_machine_holds_no_archives(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    train(settings, log)
    assert sharing.shared_ids(settings, log) == set()
    assert log.store.keys("models") == set()
    assert sharing.follow_promotions(settings) is None
