"""Documents inside documents: read, accounted for and linked like files, under `path#/json/pointer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accel_platform.events import EventLog
from accel_platform.events.types import DocumentImported, RecordQuarantined, ResultRecorded
from migrations.pipeline import batches
from migrations.pipeline.importer import migrate

DIRECT: dict[str, Any] = {
    "model": "gpt2",
    "hardware": "cpu",
    "batch_results": {"1": {"success": True, "avg_latency_ms": 44.1, "throughput_items_per_second": 22.7}},
}


def batch(*models: str, **data: dict[str, Any]) -> dict[str, Any]:
    runs = {model: {"command": "run", "success": True, "benchmark_data": data.get(model, DIRECT)} for model in models}
    return {"models": list(models), "hardware": "cpu", "results": runs}


def write(path: Path, value: Any, indent: int | None = 2) -> Path:
    path.write_text(json.dumps(value, indent=indent))
    return path


def entries(log: EventLog) -> dict[str, DocumentImported]:
    found = [e.payload for e in log.read(types={"DocumentImported"})]
    return {e.source_path: e for e in found if isinstance(e, DocumentImported)}


def test_an_embedded_document_has_a_ledger_entry_and_results_of_its_own(tmp_path: Path, log: EventLog) -> None:
    path = write(tmp_path / "batch.json", batch("gpt2"))
    report = migrate([path], log)
    inside = f"{path}#/results/gpt2/benchmark_data"
    ledger = entries(log)
    assert set(ledger) == {str(path), inside}
    assert (ledger[str(path)].format, ledger[str(path)].records) == ("batch_benchmarks", 0)
    assert "1 document inside" in (ledger[str(path)].reason or "")
    assert (ledger[inside].format, ledger[inside].outcome, ledger[inside].records) == (
        "direct_benchmark",
        "imported",
        1,
    )
    (result,) = [e.payload for e in log.read(types={"ResultRecorded"})]
    assert isinstance(result, ResultRecorded)
    assert result.source_path == inside
    assert (report.found, report.outcomes, report.embedded, report.records) == (1, {"imported": 1}, {"imported": 1}, 1)


def test_a_copy_of_it_in_a_file_is_a_duplicate_whichever_comes_first(tmp_path: Path, log: EventLog) -> None:
    a, b, c = write(tmp_path / "a.json", DIRECT), write(tmp_path / "b.json", batch("gpt2")), tmp_path / "c.json"
    write(c, DIRECT)
    migrate([a, b, c], log)
    ledger = entries(log)
    assert [ledger[str(a)].outcome, ledger[f"{b}#/results/gpt2/benchmark_data"].outcome, ledger[str(c)].outcome] == [
        "imported",
        "duplicate",
        "duplicate",
    ]
    assert len(list(log.read(types={"ResultRecorded"}))) == 1


def test_nothing_is_read_twice(tmp_path: Path, log: EventLog) -> None:
    path = write(tmp_path / "batch.json", batch("gpt2"))
    migrate([path], log)
    again = migrate([path], log)
    assert (again.events, again.outcomes, again.embedded) == (0, {"already_imported": 1}, {})


def test_an_import_killed_between_the_two_is_taken_up(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "batch.json", batch("gpt2"))
    append = log.append_rows
    appended: list[str] = []

    def killed_at_the_second(rows: Any, *, key: str) -> Any:
        if appended:
            raise KeyboardInterrupt
        appended.append(key)
        return append(rows, key=key)

    monkeypatch.setattr(batches, "MAX_AGE_S", 0.0)
    monkeypatch.setattr(log, "append_rows", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        migrate([path], log)
    monkeypatch.undo()
    assert len(list(log.read())) == 1
    report = migrate([path], log)
    assert (report.outcomes, report.embedded) == ({"imported": 1}, {"imported": 1})
    assert len({event.event_id for event in log.read(types={"ResultRecorded"})}) == 1


def test_what_the_outer_document_claims_holds_inside(tmp_path: Path, log: EventLog) -> None:
    suite = {
        "performance_benchmarks": {"f": {"benchmarks": {"f": {"gpt2": {"mps": _cells(0.0123)}}}}},
        "hardware_detected": {"cpu": True, "mps": False},
    }
    migrate([write(tmp_path / "suite.json", suite)], log)
    (result,) = [e.payload for e in log.read(types={"ResultRecorded"})]
    assert isinstance(result, ResultRecorded)
    assert {s.rule for s in result.suspicions} == {"absent_device"}


def test_an_unknown_document_inside_is_quarantined_whole(tmp_path: Path, log: EventLog) -> None:
    migrate([write(tmp_path / "batch.json", batch("gpt2", gpt2={"what": "is this"}))], log)
    (kept,) = [e.payload for e in log.read(types={"RecordQuarantined"})]
    assert isinstance(kept, RecordQuarantined)
    assert kept.source_path.endswith("#/results/gpt2/benchmark_data")
    assert json.loads(kept.content) == {"what": "is this"}


def _cells(seconds: float) -> dict[str, Any]:
    cell = {"status": "completed", "avg_latency": seconds, "throughput": 1 / seconds}
    return {"status": "completed", "benchmark_results": {"batch_1": cell}}


def test_documents_of_several_shapes_in_one_file_are_all_read(tmp_path: Path, log: EventLog) -> None:
    row = {"model_name": "bert", "hardware_type": "cpu", "batch_size": 1, "average_latency_ms": 5.5}
    card = {"model": "BERT", "hardware": "cuda", "batch_sizes": {"1": {"latency_ms": 3.25}}}
    pipeline = {"metadata": {"model": "bert"}, "results": {}, "performance": {"pipeline_cpu": {"avg_time": 0.0625}}}
    shapes = [row, {**row, "batch_size": 2}, DIRECT, card, pipeline]
    lines = "\n".join(map(json.dumps, shapes))
    texts = {"list": json.dumps(shapes), "lines": lines, "run_together": lines.replace("\n", "")}
    for number, (name, text) in enumerate(texts.items(), start=1):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "all.json").write_text(text.replace("5.5", f"{number}5.5").replace("3.25", f"{number}3.25"))
        report = migrate([folder], log)
        assert (report.outcomes, sum(report.embedded.values())) == ({"imported": 1}, 5), name
    times = {
        r.latency_mean_ms for e in log.read(types={"ResultRecorded"}) if isinstance(r := e.payload, ResultRecorded)
    }
    assert times == {15.5, 25.5, 35.5, 13.25, 23.25, 33.25, 44.1, 62.5}
