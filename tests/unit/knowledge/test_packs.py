"""Knowledge packs: building, adopting, removing, and each refusal."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.errors import Conflict, InvalidInput, NotFound
from accel_platform.events import Event, EventLog, codec
from accel_platform.events.types import KnowledgeRemoved, ResultRecorded
from accel_platform.knowledge import packs
from accel_platform.knowledge.cards import CARD, Card, card_text, load_card
from accel_platform.knowledge.packs import RESULTS, add_pack, adopt_packs, pack_states, read_pack, remove_pack
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from migrations.pipeline.pack_builder import build_pack

TABLE = """model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count
resnet50,2000.0,128.0,256,224,25.56
vit_base_patch16_224,900.5,284.3,256,224,86.57
resnet18,,,256,224,11.69
"""
FILE = "mine/benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv"


def write_source(folder: Path, table: str = TABLE, name: str = "mine") -> Path:
    """Write a small source beside the card of its pack, and return the folder of the pack."""
    source, pack = folder / "source", folder / name
    (source / FILE).parent.mkdir(parents=True, exist_ok=True)
    (source / FILE).write_text(table)
    card = Card.model_validate(
        {
            "name": name,
            "title": "Mine",
            "what": 'Two "models", and one row that is broken.',
            "repository": "me/mine",
            "commit": "0" * 40,
            "license": "MIT",
            "copyright": "Copyright 2026 Me",
            "date": "2026-11-01",
            "conversion": "By a test.",
            "files": {FILE: {"path": "results/benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv"}},
        }
    )
    pack.mkdir(exist_ok=True)
    (pack / CARD).write_text(card_text(card))
    return pack


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A built pack of two results."""
    folder = write_source(tmp_path)
    build_pack(folder, tmp_path / "source", folder)
    return folder


@pytest.fixture
def shipped(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pack as the only shipped one."""
    place = tmp_path / "shipped"
    shutil.copytree(pack, place / "mine")
    monkeypatch.setattr(packs, "PACKS", place)
    return place / "mine"


def used(settings: Settings) -> int:
    refresh(settings)
    return len(models(settings))


def models(settings: Settings) -> list[str]:
    rows = Reader(settings).rows("SELECT model_id FROM usable_results ORDER BY ALL")
    return [str(row["model_id"]) for row in rows]


def test_a_second_build_gives_the_same_bytes(pack: Path, tmp_path: Path) -> None:
    built = build_pack(pack, tmp_path / "source", tmp_path / "again")
    assert not built.changed
    assert built.left_out == {"without a figure": 1}
    for name in (CARD, RESULTS):
        assert (tmp_path / "again" / name).read_bytes() == (pack / name).read_bytes()
    events = list(codec.from_arrow(pq.read_table(pack / RESULTS).to_batches()))
    assert [(e.payload.model_id, e.payload.device_name) for e in events if isinstance(e.payload, ResultRecorded)] == [
        ("resnet-50", "RTX 4090"),
        ("vit-base", "RTX 4090"),
    ]


def test_another_source_is_another_version(pack: Path, tmp_path: Path) -> None:
    before = load_card(pack)
    (tmp_path / "source" / FILE).write_text(TABLE.replace("2000.0", "2100.0"))
    built = build_pack(pack, tmp_path / "source", pack)
    assert built.changed
    assert before.results
    assert built.card.results
    assert before.results.version != built.card.results.version


def test_a_source_that_is_missing_or_unknown_is_named(pack: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"rtx4090\.csv of the pack mine cannot be opened: No such file"):
        build_pack(pack, tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "source" / FILE).write_text("one,two\n1,2\n")
    with pytest.raises(InvalidInput, match="cannot be converted: no reader knows this shape"):
        build_pack(pack, tmp_path / "source", tmp_path / "out")


def test_a_shipped_pack_is_adopted_once_and_counts(shipped: Path, log: EventLog, settings: Settings) -> None:
    assert adopt_packs(log) == []
    segments = log.snapshot().segments
    assert adopt_packs(log) == []
    assert log.snapshot().segments == segments
    assert used(settings) == 2
    assert [(state.name, state.used, state.reason) for state in pack_states(log)] == [("mine", True, None)]


def test_a_removed_pack_stays_out_until_it_is_added(shipped: Path, log: EventLog, settings: Settings) -> None:
    adopt_packs(log)
    remove_pack(log, "mine", by="me")
    adopt_packs(log)
    assert used(settings) == 0
    assert [state.reason for state in pack_states(log)] == ["removed by me: `accel knowledge add mine` uses it again"]
    add_pack(log, shipped)
    assert used(settings) == 2
    assert sum(isinstance(event.payload, ResultRecorded) for event in log.read()) == 2


def test_a_newer_version_replaces_the_older(shipped: Path, log: EventLog, settings: Settings, tmp_path: Path) -> None:
    adopt_packs(log)
    (tmp_path / "source" / FILE).write_text(TABLE.replace("2000.0", "2100.0").replace("vit_base", "vit_small"))
    build_pack(shipped, tmp_path / "source", shipped)
    adopt_packs(log)
    assert used(settings) == 2
    assert models(settings) == ["resnet-50", "vit-small"]


def test_a_damaged_shipped_pack_is_left_out_with_its_reason(shipped: Path, log: EventLog) -> None:
    data = bytearray((shipped / RESULTS).read_bytes())
    data[len(data) // 2] ^= 1
    (shipped / RESULTS).write_bytes(data)
    [refused] = adopt_packs(log)
    assert refused.name == "mine"
    assert "is damaged or of another version" in refused.reason
    assert not log.snapshot().segments
    assert [(state.used, state.reason) for state in pack_states(log)] == [(False, refused.reason)]


def rewrite(pack: Path, old: str, new: str) -> None:
    text = (pack / CARD).read_text()
    assert old in text
    (pack / CARD).write_text(text.replace(old, new))


def test_refusals_name_the_reason(pack: Path, log: EventLog) -> None:
    good = (pack / CARD).read_text()
    for old, new, reason in (
        ("schema = 1", "schema = 2", "has layout 2, this program knows 1: upgrade"),
        ('title = "Mine"', "title = Mine", "is no TOML"),
        ('license = "MIT"\n', "", "because of license: Field required"),
        ('name = "mine"', 'name = "yours"', "is of the pack yours, in a folder of another name"),
        ("[results]", "[kernels]", "because of kernels"),
    ):
        (pack / CARD).write_text(good)
        rewrite(pack, old, new)
        with pytest.raises(InvalidInput, match=reason.replace("[", r"\[")):
            add_pack(log, pack)
    (pack / CARD).write_text(good)
    (pack / RESULTS).unlink()
    with pytest.raises(InvalidInput, match=r"Cannot read .*results\.parquet: No such file"):
        add_pack(log, pack)
    with pytest.raises(InvalidInput, match=r"Cannot read the card .*nothing.card\.toml: No such file"):
        add_pack(log, pack / "nothing")
    assert not log.snapshot().segments


def test_a_pack_of_measurements_is_refused(pack: Path, log: EventLog) -> None:
    rows = pq.read_table(pack / RESULTS).select(codec.SCHEMA.names)
    card = load_card(pack)
    assert card.results
    for column, old, new, reason in (
        ("payload", '"imported"', '"measured"', "a result that is measured, not imported"),
        ("source", card.source, "bench", "an event of 'bench', not of 'pack:mine@"),
        ("schema_version", "2", "3", "knows 2: upgrade"),
        ("type", "ResultRecorded", "Strange", "unknown type 'Strange': upgrade"),
    ):
        changed = pc.replace_substring(rows[column].cast("string"), pattern=old, replacement=new)
        number = rows.schema.get_field_index(column)
        forged = rows.set_column(number, codec.SCHEMA.field(column), changed.cast(codec.SCHEMA.field(column).type))
        data = codec.to_parquet(forged, "forged")
        (pack / RESULTS).write_bytes(data)
        table = card.results.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
        (pack / CARD).write_text(card_text(card.model_copy(update={"results": table})))
        with pytest.raises(InvalidInput, match=reason):
            add_pack(log, pack)
    assert not log.snapshot().segments


def test_a_strangers_pack_may_not_take_a_shipped_name(shipped: Path, pack: Path, log: EventLog) -> None:
    with pytest.raises(Conflict, match="The name mine is that of a shipped pack"):
        add_pack(log, pack)


def test_a_strangers_pack_is_used_and_removed(pack: Path, log: EventLog, settings: Settings) -> None:
    add_pack(log, pack)
    shutil.rmtree(pack)
    assert used(settings) == 2
    [state] = [state for state in pack_states(log) if not state.shipped]
    assert state.used
    assert state.card
    assert state.card.copyright == "Copyright 2026 Me"
    remove_pack(log, "mine")
    assert used(settings) == 0
    with pytest.raises(NotFound, match=r"No knowledge pack is called 'yours'. There are .*mine"):
        remove_pack(log, "yours")


def test_an_unread_card_is_read_back_equal(pack: Path) -> None:
    card = read_pack(pack).card
    assert load_card(pack) == card
    assert card.what == 'Two "models", and one row that is broken.'


def accel(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["knowledge", *map(str, arguments)])


def test_the_command_lists_shows_removes_and_adds(shipped: Path, settings: Settings) -> None:
    home = ("--home", settings.home)
    assert "not in this log yet" in accel("list", *home).stdout
    assert accel("add", "mine", *home).stdout == "mine is used: 2 figures.\n"
    [listed] = json.loads(accel("list", "--json", *home).stdout)
    assert listed.pop("devices") == ["RTX 4090"]
    assert listed == {
        "name": "mine", "title": "Mine", "rows": 2, "license": "MIT", "repository": "me/mine", "commit": "0" * 40,
        "date": "2026-11-01", "shipped": True, "used": True, "reason": None,
    }  # fmt: skip
    assert accel("show", "mine", *home).stdout == (shipped / CARD).read_text()
    assert json.loads(accel("show", "mine", "--json", *home).stdout)["card"]["files"].keys() == {FILE}
    assert json.loads(accel("remove", "mine", "--json", *home).stdout) == {"name": "mine", "used": False}
    assert models(settings) == []
    assert accel("add", shipped, *home).exit_code == 0
    assert models(settings) == ["resnet-50", "vit-base"]
    accel("remove", "mine", *home)
    advice = "accel knowledge add --all"
    asked = ["recommend", "bert-base", "--home", str(settings.home)]
    assert advice in CliRunner().invoke(app, asked).stderr
    kept_out = accel("add", "--all", *home)
    assert (kept_out.stdout, models(settings)) == ("", [])
    assert "removed: mine" in kept_out.stderr
    accel("add", "mine", *home)
    assert models(settings) == ["resnet-50", "vit-base"]
    assert advice not in CliRunner().invoke(app, asked).stderr
    for words in ((), ("mine", "--all")):
        assert "Name a pack, or all" in str(accel("add", *words, *home).exception)
    for command in ("show", "remove", "add"):
        unknown = accel(command, "yours", *home)
        assert isinstance(unknown.exception, NotFound)
        assert "mine" in str(unknown.exception)


def test_the_command_builds(pack: Path, tmp_path: Path) -> None:
    options = ("--cards", tmp_path, "--only", "mine", "--out", tmp_path / "out", "--json")
    [built] = json.loads(accel("build", tmp_path / "source", *options).stdout)
    assert built == {
        "pack": "mine", "rows": 2, "bytes": (pack / RESULTS).stat().st_size, "outcome": "as before",
        "left out": {"without a figure": 1},
    }  # fmt: skip
    assert (tmp_path / "out" / "mine" / CARD).read_text() == (pack / CARD).read_text()
    nothing = accel("build", tmp_path, "--cards", tmp_path, "--only", "yours")
    assert isinstance(nothing.exception, InvalidInput)
    assert "holds no card of yours" in str(nothing.exception)


def test_a_pack_of_kernels_alone_is_sealed_and_read(tmp_path: Path, log: EventLog) -> None:
    folder = write_source(tmp_path, name="kernels")
    (folder / CARD).write_text(card_text(load_card(folder).model_copy(update={"files": {}})))
    table = pa.table({"device": ["T4", "A100", "T4"], "latency_ms": [1.0, 2.0, 3.0]})
    pq.write_table(table, folder / packs.KERNELS)
    with pytest.raises(InvalidInput, match="has neither results nor kernels"):
        add_pack(log, folder)
    assert (
        json.loads(accel("build", tmp_path, "--cards", tmp_path, "--only", "kernels", "--json").stdout)[0]["rows"] == 3
    )
    card = add_pack(log, folder).card
    assert (card.devices, card.rows, card.results) == (("A100", "T4"), 3, None)
    assert [state.used for state in pack_states(log) if state.name == "kernels"] == [True]
    (folder / packs.KERNELS).write_bytes(b"no table")
    with pytest.raises(InvalidInput, match="is damaged"):
        add_pack(log, folder)
    assert isinstance(accel("build", tmp_path, "--cards", tmp_path, "--only", "kernels").exception, InvalidInput)


def test_a_start_adopts_the_packs_and_names_damaged_ones(
    shipped: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    adopt_shipped(settings, only_into_empty_log=True)
    assert models(settings) == ["resnet-50", "vit-base"]
    (shipped / RESULTS).write_bytes(b"PAR1")
    adopt_shipped(settings)
    assert "The knowledge pack mine is not used" in capsys.readouterr().err
    assert models(settings) == ["resnet-50", "vit-base"]


def test_serving_adopts_into_an_empty_log_only(shipped: Path, log: EventLog, settings: Settings) -> None:
    assert shipped.exists()
    log.append([Event.of(KnowledgeRemoved(pack="other", by="me"), source="knowledge")])
    adopt_shipped(settings, only_into_empty_log=True)
    assert [state.used for state in pack_states(log) if state.name == "mine"] == [False]
