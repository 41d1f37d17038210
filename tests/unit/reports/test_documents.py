"""Reports: every kind in every format, what they leave out told, and nothing in them that acts or is fetched."""

from __future__ import annotations

import html.parser
import io
import json
import re
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook
from pages_world import pages_world
from pypdf import PdfReader
from typer.testing import CliRunner

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.summaries.best_configurations import best_configurations
from accel_platform.analysis.summaries.roofline import ItemWork, Rooflines, roofline_limits
from accel_platform.cli import app
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import RegressionFound
from accel_platform.hardware.catalog import find_spec
from accel_platform.reports.documents.kinds import KINDS, report
from accel_platform.reports.documents.model import (
    Finding,
    Findings,
    Picture,
    ReportDocument,
    ReportTable,
    Section,
    Text,
)
from accel_platform.reports.documents.render import as_json, render, tables
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from factories import event
from made_cells import HOSTILE, cell
from predictor_world import CPU, MODELS, append, described, measured_grid, result, verified, world

_RUN = CliRunner()


class _Outside(html.parser.HTMLParser):
    """Addresses that a page would fetch, its headings' ids, and the links within it."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "poster") or (name == "href" and tag != "a"):
                self.fetched.append(str(value))
            if name == "id":
                assert value not in self.ids, f"{value} twice"
                self.ids.add(str(value))
            if name == "href" and tag == "a":
                self.links.append(str(value))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def reader(settings: Settings) -> Reader:
    return Reader(settings)


@pytest.fixture(scope="module")
def everything(reader: Reader) -> ReportDocument:
    return report("comprehensive", reader, Selection())


@pytest.fixture(scope="module")
def page(everything: ReportDocument) -> str:
    return render(everything, "html").decode()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "comprehensive"])
def test_a_report_says_of_what_it_is_and_what_it_lacks(reader: Reader, kind: str) -> None:
    document = report(kind, reader, Selection(hardware=("cpu", "openvino")))
    assert document.facts["Snapshot"] == reader.snapshot_id
    assert document.facts["Filters"] == "hardware cpu, openvino"
    assert "measured" in document.facts["Results"]
    assert document.sections[-1].heading == "Missing, failed, quarantined and doubted"
    assert "in quarantine" in next(p.words for p in document.sections[-1].parts if isinstance(p, Text))
    for part in (part for section in document.sections for part in section.parts):
        assert not isinstance(part, Picture) or part.chart is not None or part.reason


@pytest.mark.slow
def test_a_page_is_one_file_that_fetches_and_runs_nothing(everything: ReportDocument, page: str) -> None:
    seen = _Outside()
    seen.feed(page)
    assert seen.fetched == []
    assert "script" not in seen.tags
    assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", page)
    assert {link.removeprefix("#") for link in seen.links} <= seen.ids, "the contents lead somewhere"
    assert seen.tags.count("h2") == len(everything.sections) + 1
    assert 'lang="en"' in page
    assert "color-scheme: light dark" in page
    assert "@media print" in page


def test_the_formats_hold_the_same_tables(everything: ReportDocument) -> None:
    told = json.loads(render(everything, "json"))
    assert [part["table"] for s in told["sections"] for part in s["parts"] if "table" in part] == [
        part.title for part in tables(everything)
    ]
    charts = [part for s in told["sections"] for part in s["parts"] if "chart" in part]
    assert any(part["specification"] for part in charts)
    assert all(part["specification"] or part["reason"] for part in charts)
    with zipfile.ZipFile(io.BytesIO(render(everything, "csv"))) as archive:
        assert len(archive.namelist()) == len(tables(everything))
    assert len(load_workbook(io.BytesIO(render(everything, "xlsx"))).sheetnames) == len(tables(everything))
    for kind in ("table", "markdown"):
        text = render(everything, kind).decode()  # type: ignore[arg-type]
        assert all(section.heading in text for section in everything.sections)


def test_findings_come_first_then_charts_then_tables(everything: ReportDocument, page: str) -> None:
    first, second, *others = everything.sections
    assert (first.heading, second.heading) == ("Findings", "Charts")
    assert all(isinstance(part, Picture) for part in second.parts)
    assert not [part for section in others for part in section.parts if isinstance(part, Picture | Findings)]
    places = [page.index(f">{name}</h2>") for name in ("Findings", "Charts", "Overview")]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_filter_is_refused_before_anything_is_drawn(reader: Reader, kind: str) -> None:
    said: list[str] = []
    with pytest.raises(NotFound, match="Did you mean openvino"):
        report(kind, reader, Selection(hardware=("openvin",)), say=said.append)
    assert said == []


def _sentences(settings: Settings, kind: str, **filters: Any) -> str:
    return _findings_of(report(kind, Reader(settings), Selection(**filters)))


def _findings_of(document: ReportDocument) -> str:
    [part] = document.sections[0].parts
    assert isinstance(part, Findings)
    assert all(item.evidence.startswith("accel ") for item in part.items)
    return "\n".join(item.words for item in part.items)


def test_findings_are_counted_from_the_figures(settings: Settings, everything: ReportDocument, tmp_path: Path) -> None:
    told = _findings_of(everything)
    counts = "SELECT count(*) AS results, count(DISTINCT model_id) AS models FROM results WHERE provenance = 'measured'"
    [own] = Reader(settings).rows(counts)
    assert f"{own['results']:,} results of {own['models']} models on " in told
    assert "No regression is open." in told
    assert re.search(r"models measured in several places at one shape, (cpu|openvino).* is the fastest", told)
    nothing = _sentences(settings, "performance", provenance="suspect")
    assert "Nothing was measured here." in nothing
    assert "fastest" not in nothing
    pages = pages_world(tmp_path, measured_grid(MODELS[:2], ("cpu", "openvino")))
    slower = _sentences(pages, "performance")
    shift = re.search(r"1 regression is open. The largest: bert-base on cpu at .* is (\d+) % slower, (.+) ms", slower)
    assert shift, slower
    found = next(EventLog.open(pages).read(types={RegressionFound.__name__})).payload
    [newest] = Reader(pages).rows("SELECT max(result_id) AS first_result FROM results")  # else they were gone
    for measure, figures, words in (
        ("memory", {"before_mib": 100.0, "after_mib": 900.0, "change_percent": 800.0, "before_ms": None,
                    "after_ms": None}, "takes 800 % more memory, 900 MiB instead of 100 MiB"),
        ("failures", {"after_ms": None, "change_percent": None}, "fails more often"),
    ):  # fmt: skip
        other = found.model_copy(update={"regression_id": measure, "measure": measure, **newest, **figures})
        EventLog.open(pages).append([event(other)])
        refresh(pages)
        assert words in _sentences(pages, "performance")


def test_devices_of_one_name_have_lines_of_their_own(tmp_path: Path) -> None:
    made = world(tmp_path, [
        payload
        for number, scale in ((1, 1.0), (2, 2.0)) for hardware in ("cpu", "openvino")
        for payload in (
            result(MODELS[0], hardware, 1, device_id=f"cpu-{number}", scale=scale),
            verified(MODELS[0], hardware, 1).model_copy(update={"device_id": f"cpu-{number}"}),
        )
    ])  # fmt: skip
    names = {f"{CPU} (cpu-1)", f"{CPU} (cpu-2)"}
    whole = report("comprehensive", Reader(made), Selection())
    found = {part.title: part.rows for section in whole.sections for part in section.parts
             if isinstance(part, ReportTable)}  # fmt: skip
    assert {row["device"] for row in found["Results by device"]} == names
    assert {row["device"] for row in found["Every cell, the most often run first"]} == names
    assert {row["device"] for row in found["Models on devices, the farthest from the roofline first"]} == names
    assert [row["device"] for row in found["Fastest places"]] == [f"{CPU} (cpu-1)"]


def test_where_no_host_has_measured_nothing_is_said_to_be_complete(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    append(settings, [result(MODELS[0], "cpu", 8, provenance="imported")])
    told = _sentences(settings, "comprehensive")
    assert "No host has measured, so nothing is known to be missing" in told
    assert "ran on all hardware" not in told


def test_the_evidence_of_each_finding_can_be_asked_for(everything: ReportDocument, settings: Settings) -> None:
    [found] = everything.sections[0].parts
    assert isinstance(found, Findings)
    assert len(found.items) > 5
    for item in found.items:
        words = shlex.split(item.evidence)[1:]
        answer = _RUN.invoke(app, [*words, "--home", str(settings.home)])
        assert answer.exit_code == 0, (item.evidence, answer.output, answer.exception)


def test_the_evidence_of_a_finding_is_what_it_counts(tmp_path: Path) -> None:
    """Another model, device and time add to everything that is counted."""
    busy = {"environment": {"contention": {"others_share": 0.5, "waiting_share": 0.5}}}
    odd = {"device_id": "o'hara", "device_name": "O'Hara's $CPU"}
    events = [
        payload
        for model in MODELS[:2]
        for place in ({}, odd)
        for payload in (
            result(model, "cpu", 1, **place, **busy),
            result(model, "cpu", 1, **place),
            result(model, "cpu", 2, **place, **busy),
            result(model, "cpu", 4, samples=0, **place, status="failed", failure_class="out_of_memory", reason="full"),
            result(model, "cpu", 1, provenance="simulated", **place),
        )
    ]
    settings = world(tmp_path, [described(model) for model in MODELS[:2]] + events)
    for selection, count in (
        (Selection(), 4),
        (Selection(model=("bert-base",)), 2),
        (Selection(model=("bert-base",), device="O'Hara's $CPU", since="2026-01-01"), 1),
    ):
        document = report("performance", Reader(settings), selection)
        [findings] = [part for part in document.sections[0].parts if isinstance(part, Findings)]
        queries = {item.words: item.evidence for item in findings.items if "db query" in item.evidence}
        for words, times in (("disturbed", 2), ("failed", 1), ("simulated", 1)):
            [(told, evidence)] = [(told, query) for told, query in queries.items() if words in told]
            assert told.startswith(f"{count * times} ")
            answer = _RUN.invoke(app, [*shlex.split(evidence)[1:], "--json", "--home", str(settings.home)])
            assert len(json.loads(answer.stdout)) == count * times, evidence
        given = [item.evidence for item in findings.items if "db query" not in item.evidence]
        assert all(("--model bert-base" in one) == bool(selection.model) for one in given)
        assert all(("--device" in one) == bool(selection.device) for one in given)
        drawn = next(line for line in render(document, "table").decode().splitlines() if line.startswith("Chart: "))
        assert ("--model bert-base" in drawn) == bool(selection.model)


@pytest.mark.slow
def test_a_pdf_begins_with_the_findings_and_holds_the_tables(everything: ReportDocument) -> None:
    pdf = PdfReader(io.BytesIO(render(everything, "pdf")))
    pages = [page.extract_text() for page in pdf.pages]
    assert pages[0].index("Comprehensive report") < pages[0].index("Findings") < pages[0].index("Snapshot")
    whole = " ".join("".join(pages).replace("\u200b", "").split())
    assert all(section.heading in whole for section in everything.sections)
    assert pdf.trailer["/Root"]["/MarkInfo"]["/Marked"], "screen readers find headings and tables"
    assert pdf.metadata.title == everything.title


def test_a_pdf_without_typst_says_what_to_install(everything: ReportDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(InvalidInput, match="pip install"):
        render(everything, "pdf")


def test_hostile_names_are_text_in_every_format() -> None:
    rows = [{"model": HOSTILE, "reason": "=cmd()|x"}]
    found = Findings([Finding(HOSTILE, HOSTILE)])
    document = ReportDocument(
        "R", {"Filters": HOSTILE}, [Section(HOSTILE, [found, Text(HOSTILE), ReportTable(HOSTILE, rows, HOSTILE)])]
    )
    assert PdfReader(io.BytesIO(render(document, "pdf"))).pages[0].extract_text().count("img") >= 4
    page = render(document, "html").decode()
    seen = _Outside()
    seen.feed(page)
    assert "img" not in seen.tags
    assert "script" not in seen.tags
    assert "<img" not in render(document, "markdown").decode()
    with zipfile.ZipFile(io.BytesIO(render(document, "csv"))) as archive:
        [name] = archive.namelist()
        assert re.fullmatch(r"01-[a-z0-9-]+\.csv", name)
        assert b"'=cmd()" in archive.read(name)


def test_people_see_the_first_rows_of_a_long_table_and_machines_have_all() -> None:
    long = ReportTable("T", [{"n": n} for n in range(1000)], "accel matrix")
    document = ReportDocument("R", {"Results": 1}, [Section("S", [long])])
    for kind in ("table", "markdown", "html"):
        text = render(document, kind).decode()  # type: ignore[arg-type]
        assert "40 of 1,000 rows." in text
        assert "accel matrix" in text
        assert "999" not in text
    assert as_json(document)["sections"][0]["parts"][0]["rows"][-1] == {"n": 999}
    with zipfile.ZipFile(io.BytesIO(render(document, "csv"))) as archive:
        assert archive.read("01-t.csv").splitlines()[-1] == b"999"
    with zipfile.ZipFile(io.BytesIO(render(document, "parquet"))) as archive:
        assert pq.read_table(io.BytesIO(archive.read("01-t.parquet"))).num_rows == 1000
    book = load_workbook(io.BytesIO(render(document, "xlsx")))
    assert [row[0] for row in book.worksheets[0].iter_rows(values_only=True)][-1] == 999


def test_the_best_configuration_is_held_against_the_plainest_of_the_same_silicon() -> None:
    unknown = dict.fromkeys(("share", "bound", "roofline_ms", "unavailable"))
    cells = [
        cell(throughput_items_per_s=10.0, **unknown),
        cell(throughput_items_per_s=15.0, batch_size=8, **unknown),
        cell(throughput_items_per_s=20.0, hardware="openvino", **unknown),
        cell(throughput_items_per_s=50.0, hardware="openvino", precision="int8", batch_size=8, **unknown),
        cell(throughput_items_per_s=900.0, hardware="cuda", device_id="gpu-1", **unknown),
        cell(throughput_items_per_s=999.0, hardware="qnn", provenance="emulated", **unknown),
        cell(throughput_items_per_s=999.0, hardware="openvino", batch_size=16, verified=False, **unknown),
    ]
    cpu, gpu = sorted(best_configurations(cells), key=lambda row: str(row["device_id"]))
    assert cpu["gain"] == 5.0
    assert cpu["changes"] == ["backend cpu -> openvino", "precision float32 -> int8", "batch 1 -> 8"]
    assert cpu["alone"] == {"backend": {"to": "openvino", "gain": 2.0}, "batch": {"to": 8, "gain": 1.5}}
    assert (gpu["gain"], gpu["changes"], gpu["alone"]) == (1.0, [], {})


def test_a_roofline_is_what_the_device_can_do_or_says_what_is_not_known(reader: Reader) -> None:
    l4 = find_spec("NVIDIA L4")
    assert l4 is not None
    assert l4.bandwidth_gb_s
    limits = roofline_limits(ItemWork(1e8, 1e10, 1e7), "float32", 4, l4)
    assert limits is not None
    assert limits.memory_ms == pytest.approx(1e3 * (1e8 * 4 + 1e7 * 4) / (l4.bandwidth_gb_s * 1e9))
    assert limits.bound == ("compute" if (limits.compute_ms or 0) >= limits.memory_ms else "memory")
    assert roofline_limits(ItemWork(1e8, 1e10, 1e7), "amp", 4, l4) is None
    for row in Rooflines(reader).rows(read_cells(reader, Selection())):
        assert (row["share"] is None) <= (row["unavailable"] is not None)
        assert row["share"] is None or row["share"] == pytest.approx(row["roofline_ms"] / row["latency_ms"])


@pytest.mark.slow
def test_the_commands_write_what_they_are_asked_for(settings: Settings, tmp_path: Path) -> None:
    home = str(settings.home)
    page = tmp_path / "r.html"
    done = _RUN.invoke(app, ["report", "compatibility", "--home", home, "--model", "bert", "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "bytes written" in done.stderr
    assert page.read_bytes().startswith(b"<!doctype html>")
    told = _RUN.invoke(app, ["report", "coverage", "--home", home, "--json"])
    assert json.loads(told.stdout)["title"] == "Coverage report"
    drawn = tmp_path / "c.png"
    done = _RUN.invoke(app, ["chart", "latency", "--home", home, "--hardware", "cpu", "openvino", "-o", str(drawn)])
    assert done.exit_code == 0, done.output
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "roofline" in _RUN.invoke(app, ["chart", "--list"]).stdout
    for words, error in (
        (["chart"], InvalidInput),
        (["chart", "latency"], InvalidInput),
        (["chart", "pie", "--json"], NotFound),
        (["chart", "predicted", "--json", "--home", home], NotFound),
        (["report", "coverage", "--home", home, "--format", "xlsx"], InvalidInput),
        (["report", "coverage", "--home", home, "-o", str(tmp_path / "x.doc")], InvalidInput),
    ):
        with pytest.raises(error):
            app(words, standalone_mode=False)
