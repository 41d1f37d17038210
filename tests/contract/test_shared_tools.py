"""The published results of other people's tools, where the shared data lies beside the repository: all accounted for.

The data is not part of the repository. Every file must be read, known to hold no results, or a copy of another one.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from accel_platform.events import EventLog
from accel_platform.events.types import RecordQuarantined, ResultRecorded
from accel_platform.settings import Settings
from migrations.pipeline.importer import DocumentReport, ImportReport, migrate

SHARED = Path(__file__).parent.parent.parent.parent / "shared" / "data"
# Tables that their authors made for their papers, which no tool writes: no reader of tools' files knows them.
OF_PAPERS = {"llm_pilot", "neusight"}
TOOLS = (
    *sorted(path for path in (SHARED / "perf").glob("*") if path.name not in OF_PAPERS),
    *sorted((SHARED / "legacy").glob("ext-*")),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared data is not at {SHARED}"),
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportReport, EventLog]:
    log = EventLog.open(Settings(home=tmp_path_factory.mktemp("home")))
    return migrate(list(TOOLS), log), log


def rows_by_path(log: EventLog) -> dict[str, list[ResultRecorded]]:
    """The results of every document."""
    found: dict[str, list[ResultRecorded]] = {}
    for event in log.read(log.snapshot(), types={"ResultRecorded"}):
        assert isinstance(event.payload, ResultRecorded)
        found.setdefault(str(event.payload.source_path), []).append(event.payload)
    return found


def test_every_document_is_accounted_for(imported: tuple[ImportReport, EventLog]) -> None:
    report, _ = imported
    assert sum(report.outcomes.values()) == report.found == len(report.documents)
    left = [(d.source_path, d.reason) for d in report.documents if d.outcome == "quarantined"]
    assert left == []


def test_no_document_lost_all_its_figures(imported: tuple[ImportReport, EventLog]) -> None:
    report, log = imported
    rows = rows_by_path(log)

    def has_figures(document: DocumentReport) -> bool:
        return any(
            r.samples_ns or r.latency_mean_ms or r.latency_p50_ms or r.latency_p90_ms or r.throughput_items_per_s
            or r.latency_p99_ms or r.memory_peak_mib or r.memory_device_peak_mib
            for r in rows.get(document.source_path, ())
        )  # fmt: skip

    without = [d.source_path for d in report.documents if d.outcome == "imported" and not has_figures(d)]
    shares_only = [path for path in without if path.endswith("test4_run1.json")]
    assert without == shares_only, "Google Benchmark's own example of a percentage is the only one without a time"


def test_a_success_has_a_figure(imported: tuple[ImportReport, EventLog]) -> None:
    _, log = imported
    empty: Counter[str] = Counter()
    for path, results in rows_by_path(log).items():
        for r in results:
            figures = r.model_dump(exclude_none=True).keys() & {
                name for name in ResultRecorded.model_fields if name.startswith(("latency_", "throughput_", "memory_"))
            }
            if r.status == "ok" and not figures and not r.samples_ns and not r.original.get("stated"):
                empty[path] += 1
    assert not empty


def test_published_figures_are_believed(imported: tuple[ImportReport, EventLog]) -> None:
    report, log = imported
    events = log.read(log.snapshot(), types={"ResultRecorded"})
    results = [event.payload for event in events if isinstance(event.payload, ResultRecorded)]
    copies = [r for r in results if any(doubt.rule == "identical_across_devices" for doubt in r.suspicions)]
    # AI Hub lists a board once more as its proxy.
    assert {r.device_name for r in copies} == {"QCS8275 (Proxy)"}
    assert report.suspects - len(copies) <= report.records / 100


def test_what_was_refused_is_kept(imported: tuple[ImportReport, EventLog]) -> None:
    _, log = imported
    kept = [event.payload for event in log.read(log.snapshot(), types={"RecordQuarantined"})]
    assert {record.rule for record in kept if isinstance(record, RecordQuarantined)} == {"no_time", "other_lines"}
    assert all(record.content for record in kept if isinstance(record, RecordQuarantined))


def test_rows_add_up(imported: tuple[ImportReport, EventLog]) -> None:
    """As many records as rows, for tables of one figure per row."""
    report, _ = imported
    by_name = {Path(d.source_path).name: d.records for d in report.documents}
    for name in ("All_results.csv", "ncnn_benchmark.csv", "silicon_sample.csv", "perf_quic_2026-02-12.csv"):
        (path,) = SHARED.glob(f"perf/*/{name}")
        with path.open(newline="") as file:
            assert by_name[name] == sum(1 for _ in csv.DictReader(file)), name
    (raw,) = SHARED.glob("legacy/ext-llama-bench-jsonl/**/raw_runs.jsonl")
    assert by_name["raw_runs.jsonl"] == sum(bool(json.loads(line)) for line in raw.read_text().splitlines() if line)
