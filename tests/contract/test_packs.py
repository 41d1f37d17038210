"""Every shipped knowledge pack: it opens, fits its card, and holds imported results alone, with source and license."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from accel_platform.events import codec
from accel_platform.events.types import ResultRecorded
from accel_platform.knowledge.cards import CARD, card_text
from accel_platform.knowledge.packs import PACKS, RESULTS, Pack, read_pack, shipped_packs
from accel_platform.warehouse.build_layer import broken_rules
from accel_platform.workloads.model_catalog import find_model

_MOST_BYTES = 12_000_000
_LICENSES = {"Apache-2.0", "BSD-3-Clause", "MIT", "CDLA-Permissive-2.0"}
FOLDERS = sorted(path for path in PACKS.iterdir() if (path / CARD).exists())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def pack(request: pytest.FixtureRequest) -> Pack:
    return read_pack(request.param)


def test_all_packs_are_small_and_none_is_refused() -> None:
    assert FOLDERS
    assert [pack for pack in shipped_packs() if not isinstance(pack, Pack)] == []
    assert sum(path.stat().st_size for path in PACKS.rglob("*.*")) <= _MOST_BYTES


def test_its_card_names_source_and_license(pack: Pack) -> None:
    card = pack.card
    assert set(card.license.split(" AND ")) <= _LICENSES
    notice = (Path(__file__).parents[2] / "NOTICE").read_text()
    for text in (card.name, f"{card.repository}, {card.license}", card.copyright):
        assert text in notice, f"NOTICE lacks {text!r}"
    assert (pack.folder / CARD).read_text(encoding="utf-8") == card_text(card)
    assert all(file.sha256 for file in card.files.values())


def test_its_rows_are_imported_results_that_keep_the_data_rules(pack: Pack) -> None:
    table = pack.card.results
    if table is None:
        pytest.skip(f"{pack.card.name} holds kernel times only")
    events = list(codec.from_arrow(pq.read_table(pack.folder / RESULTS).to_batches()))
    results = [event.payload for event in events if isinstance(event.payload, ResultRecorded)]
    assert len(results) == len(events) == table.rows
    assert {event.source for event in events} == {pack.card.source}
    assert {event.recorded_at for event in events} == {pack.card.recorded_at}
    assert len({event.event_id for event in events}) == len(events)
    assert {(result.provenance, result.status) for result in results} == {("imported", "ok")}
    assert all(result.source_path and result.source_path.startswith(pack.card.repository) for result in results)
    models = {result.model_id for result in results}
    assert len(models) == table.models
    # Else results that are imported now, and pages, would miss what the pack has of a model.
    renamed = {model: spec.model_id for model in models if (spec := find_model(model)) and spec.model_id != model}
    assert renamed == {}, "give the catalog's model the name that its results have"
    assert broken_rules(events) == {}
