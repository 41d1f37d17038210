"""The compatibility matrix for people: verdicts kept apart, filters, families, history, and the documented form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.summaries.matrix import compatibility_matrix, group_by_family
from accel_platform.analysis.summaries.matrix_history import matrix_history
from accel_platform.cli import app
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.events.types import ResultSuspected, SuspicionOverruled
from accel_platform.reports.matrix import shape_text
from accel_platform.settings import Settings
from accel_platform.warehouse.compat_matrix import matrix_history_sql
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_at
from factories import event, result, verification
from migrations.pipeline.importer import migrate

DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)


def record(log: EventLog, day: int, *payloads: Any) -> list[Any]:
    """Events as they were recorded on a day."""
    at = DAY + timedelta(days=day)
    events = [event(p).model_copy(update={"recorded_at": at, "occurred_at": at}) for p in payloads]
    log.append(events)
    return events


def works(ms: float, **changes: Any) -> list[Any]:
    keys = ("hardware", "model_id", "precision", "batch_size")
    same = {name: changes[name] for name in keys if name in changes}
    return [result(samples_ns=(int(ms * 1e6),) * 12, **changes), verification(**same)]


def evidence(log: EventLog) -> None:
    """Four days, the last two of which change the mind about an import."""
    other = {"model_id": "roberta-base", "model_family": "bert"}
    record(log, 0, *works(20), *works(20, **other))
    record(log, 1, *works(10, hardware="openvino"), *works(100, hardware="onnxruntime"),
           result(hardware="jax", status="failed", reason="no memory", samples_ns=()),
           result(hardware="webgpu", provenance="emulated", **other))  # fmt: skip
    record(log, 1, *works(8, precision="int8"), *works(4, precision="int8", hardware="openvino"))
    imported = result(hardware="cuda", provenance="imported", samples_ns=(), fingerprint=None, latency_mean_ms=1.0)
    [claim] = record(log, 2, imported)
    doubt = ResultSuspected(
        result_id=claim.event_id, rule="constant", verdict="suspect", evidence="same", confidence=0.9
    )
    record(log, 3, doubt)
    record(log, 4, SuspicionOverruled(result_id=claim.event_id, rule="constant", by="me", reason="it is real"))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = Settings(home=tmp_path_factory.mktemp("matrix"))
    evidence(EventLog.open(settings))
    refresh(settings)
    return settings


@pytest.fixture
def reader(installation: Settings) -> Reader:
    return Reader(installation)


def test_a_figure_is_of_the_fastest_runtime_of_a_device_not_of_several(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    claim: dict[str, Any] = {"provenance": "imported", "samples_ns": (), "hardware": "cuda", "fingerprint": None}
    engines = {"vllm": (10.0, 14.0), "llama.cpp": (90.0,), "trtllm": (13.0,)}
    claims = [{"backend": backend, "latency_mean_ms": one} for backend, found in engines.items() for one in found]
    claims += [{"backend": "vllm", "threads": 8, "latency_mean_ms": 11.0}]
    claims += [{"backend": "vllm", "fingerprint": "imported-2", "latency_mean_ms": 50.0}]
    EventLog.open(settings).append([event(result(**claim | one)) for one in claims])
    refresh(settings)
    [cells] = compatibility_matrix(Reader(settings))["models"].values()
    assert (cells["cuda"]["latency_p50_ms"], cells["cuda"]["results_ok"]) == (11.0, 6)


def test_generations_of_different_lengths_are_different_work(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    claim: dict[str, Any] = {"provenance": "imported", "samples_ns": (), "fingerprint": None, "mode": "generation"}
    times = {("cuda", 32): 100.0, ("cuda", 512): 1_600.0, ("cpu", 512): 3_200.0, ("rocm", 512): 1_600.0}
    EventLog.open(settings).append(
        [event(result(**claim, hardware=hardware, device_id=hardware, output_tokens=out, latency_mean_ms=ms))
         for (hardware, out), ms in times.items()]
    )  # fmt: skip
    refresh(settings)
    matrix = compatibility_matrix(Reader(settings), mode="generation")
    [cells] = matrix["models"].values()
    assert {name: (cell["rating"], cell["latency_p50_ms"], cell["output_tokens"]) for name, cell in cells.items()} == {
        "cuda": ("high", 1_600.0, 512), "cpu": ("medium", 3_200.0, 512), "rocm": ("high", 1_600.0, 512),
    }  # fmt: skip
    [shape] = matrix["shapes"].values()
    assert shape is not None
    assert "512 tokens out" in shape_text(shape)


def test_works_alone_failed_and_untested_are_kept_apart_with_their_reasons(reader: Reader) -> None:
    matrix = compatibility_matrix(reader)
    told = {(m, h): (c["verdict"], c["reason"]) for m, cells in matrix["models"].items() for h, c in cells.items()}
    assert told["bert-base", "cuda"] == ("high", None)
    assert told["bert-base", "openvino"] == ("low", None)  # 0.1 in float32, 1 in int8: the lower of two is their median
    assert told["bert-base", "onnxruntime"] == ("low", None)
    assert told["bert-base", "jax"] == ("failed", "no memory")
    assert told["roberta-base", "cpu"] == ("works", None)
    assert told["roberta-base", "cuda"] == ("untested", None)
    assert matrix["models"]["bert-base"]["cuda"]["provenance"] == ["imported"]
    assert matrix["models"]["bert-base"]["openvino"]["results_ok"] == 2
    assert len(matrix["models"]["bert-base"]["openvino"]["evidence"]) == 2


def test_filters_leave_evidence_out_or_cells(reader: Reader) -> None:
    int8 = compatibility_matrix(reader, Selection(model=("bert-base",), precision="int8"))
    assert {h: c["verdict"] for h, c in int8["models"]["bert-base"].items()} == {"cpu": "medium", "openvino": "high"}
    cpu = compatibility_matrix(reader, Selection(hardware=("cpu",)))
    assert cpu["hardware"] == ["cpu"]
    assert cpu["models"]["bert-base"]["cpu"] == compatibility_matrix(reader)["models"]["bert-base"]["cpu"]
    early = compatibility_matrix(reader, Selection(until=DAY + timedelta(hours=1)))
    assert early["hardware"] == ["cpu"]
    assert compatibility_matrix(reader, Selection(provenance="emulated"))["models"] == {}


def test_columns_say_which_devices_they_mix_and_one_is_compared_within_itself(
    log: EventLog, settings: Settings
) -> None:
    def on(device: str, ms: float, hardware: str) -> list[Any]:
        there = {"device_id": device, "hardware": hardware}
        return [
            result(samples_ns=(int(ms * 1e6),) * 12, device_name=device.upper(), **there),
            verification(**there),
        ]

    cannot = {"status": "failed", "failure_class": "unsupported_operator", "reason": "no erf", "samples_ns": ()}
    record(log, 0, *on("slow", 100, "cpu"), *on("slow", 50, "openvino"), *on("fast", 10, "cpu"))
    record(log, 0, result(hardware="jax", **cannot))
    refresh(settings)
    reader = Reader(settings)
    whole = compatibility_matrix(reader)
    assert whole["devices"] == {"cpu": 2, "jax": 1, "openvino": 1}
    [cells] = whole["models"].values()
    assert {h: (c["verdict"], c["device"]) for h, c in cells.items()} == {
        "cpu": ("high", "FAST"), "jax": ("n/a", "Test CPU"), "openvino": ("low", "SLOW"),
    }  # fmt: skip
    [cells] = compatibility_matrix(reader, Selection(device="slow"))["models"].values()
    assert {h: c["verdict"] for h, c in cells.items()} == {"cpu": "medium", "openvino": "high"}
    apart = compatibility_matrix(reader, by_device=True)
    [cells] = apart["models"].values()
    assert {h: c["latency_p50_ms"] for h, c in cells.items()} == {
        "cpu · FAST": 10, "cpu · SLOW": 100, "jax · Test CPU": None, "openvino · SLOW": 50,
    }  # fmt: skip
    done = CliRunner().invoke(app, ["matrix", "--home", str(settings.home)])
    assert "(here: cpu 2)" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["matrix", "--by-device", "--home", str(settings.home)])
    assert "openvino · SLOW" in done.output
    assert "several devices" not in done.output


def test_figures_of_a_row_are_of_one_shape_and_others_name_theirs(log: EventLog, settings: Settings) -> None:
    def on(hardware: str, ms: float, **of: Any) -> list[Any]:
        there = {"hardware": hardware, **of}
        keys = ("hardware", "precision", "batch_size", "device_id")
        same = {name: there[name] for name in keys if name in there}
        return [result(samples_ns=(int(ms * 1e6),) * 12, **there), verification(**same)]

    int8 = {"precision": "int8", "batch_size": 4}
    record(log, 0, *on("cpu", 20), *on("cpu", 3, **int8), *on("openvino", 10), *on("openvino", 2, **int8))
    record(log, 0, *on("jax", 9), *on("onnxruntime", 5, **int8))
    # The device with the row's shape is shown, although the other one is rated better.
    record(log, 0, *on("cuda", 8, device_id="slow", device_name="SLOW"))
    record(log, 0, *on("cuda", 1, device_id="fast", device_name="FAST", **int8))
    refresh(settings)
    reader = Reader(settings)
    matrix = compatibility_matrix(reader)
    assert matrix["shapes"]["bert-base"] == {
        "precision": "float32", "batch_size": 1, "sequence_length": 128, "output_tokens": None, "image_size": None,
        "processes": None,
    }  # fmt: skip
    [cells] = matrix["models"].values()
    assert {h: (c["latency_p50_ms"], c["precision"], c["batch_size"]) for h, c in cells.items()} == {
        "cpu": (20, "float32", 1), "cuda": (8, "float32", 1), "jax": (9, "float32", 1), "openvino": (10, "float32", 1),
        "onnxruntime": (5, "int8", 4),
    }  # fmt: skip
    assert cells["cuda"]["device"] == "SLOW"
    stored = reader.rows("SELECT hardware, precision, batch_size FROM compat_matrix WHERE device_id = 'fast'")
    assert stored == [{"hardware": "cuda", "precision": "int8", "batch_size": 4}]
    command = ["matrix", "--home", str(settings.home)]
    grid = CliRunner().invoke(app, command).stdout
    assert "bert-base  batch 1, length 128, float32  low 20.0 ms n=2" in grid
    assert "low 5.0 ms (batch 4, length 128, int8) n=1" in grid
    assert grid.count("(batch") == 1
    page = CliRunner().invoke(app, [*command, "--format", "html"]).stdout
    assert "<td>batch 1, length 128, float32</td>" in page
    assert page.count("<small>(batch 4, length 128, int8)</small>") == 1
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert told["shapes"]["bert-base"]["precision"] == "float32"


def test_a_narrow_terminal_gets_a_row_per_tested_cell(
    log: EventLog, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("cpu", "openvino", "onnxruntime", "jax", "cuda", "wasm")
    record(log, 0, *(payload for name in names for payload in works(20, hardware=name)))
    record(log, 0, *works(20, model_id="roberta-base-with-a-longer-name"))
    refresh(settings)
    command = ["matrix", "--home", str(settings.home)]
    monkeypatch.setenv("COLUMNS", "100")
    done = CliRunner().invoke(app, command)
    assert "…" not in done.stdout
    assert "left out" not in done.output
    _, _, *rows = (line.split() for line in done.stdout.splitlines())
    assert {(row[0], row[1]) for row in rows} == {
        *(("bert-base", name) for name in names), ("roberta-base-with-a-longer-name", "cpu")
    }  # fmt: skip
    assert "One row per tested cell" in done.output
    families = CliRunner().invoke(app, [*command, "--family", "--by-device"]).stdout.splitlines()
    assert len(families) == 2 + len(names)
    monkeypatch.setenv("COLUMNS", "300")
    wide = CliRunner().invoke(app, command).stdout.splitlines()
    assert wide[0].split() == ["model", "shape", *sorted(names)]
    assert len(wide) == 4


def test_a_narrow_terminal_names_the_shape_of_each_tested_cell(
    log: EventLog, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(size, length) for size in (1, 16) for length in (128, 384)]
    for number, (size, length) in enumerate(shapes):
        name = f"a-model-whose-name-is-as-long-as-a-name-may-be-{number}"
        for ms, hardware in ((20, "onnxruntime"), (30, "openvino"), (90, "cpu"), (21, "jax")):
            cell: dict[str, Any] = {"model_id": name, "hardware": hardware, "batch_size": size}
            ran = result(samples_ns=(ms * 1_000_000,) * 12, sequence_length=length, **cell)
            record(log, 0, ran, verification(sequence_length=length, **cell))
    refresh(settings)
    monkeypatch.setenv("COLUMNS", "100")
    done = CliRunner().invoke(app, ["matrix", "--home", str(settings.home)])
    head, _, *rows = done.stdout.splitlines()
    assert max(map(len, (head, *rows))) <= 100
    assert {"hardware", "verdict", "latency_ms", "batch", "input"} <= {*head.split()}
    for number, (size, length) in enumerate(shapes):
        there = [row for row in rows if f"may-be-{number} " in row]
        assert len(there) == 4
        assert all(f" {size}  length {length}" in row for row in there)


def test_what_does_not_count_is_the_reason_of_an_untested_cell(log: EventLog, settings: Settings) -> None:
    record(log, 0, *works(20), *works(5, hardware="webgpu"))
    record(
        log,
        0,
        *works(20, model_id="roberta-base"),
        result(model_id="roberta-base", hardware="webgpu", provenance="emulated"),
    )
    refresh(settings)
    cell = compatibility_matrix(Reader(settings))["models"]["roberta-base"]["webgpu"]
    assert (cell["verdict"], cell["reason"]) == ("untested", "results that do not count here: 1 emulated")


def test_a_family_counts_its_models_and_averages_nothing(reader: Reader) -> None:
    families = group_by_family(reader, compatibility_matrix(reader))
    assert families["bert"]["cpu"]["counts"] == {"low": 1, "works": 1}
    assert families["bert"]["cpu"]["verdict"] == "works"
    assert families["bert"]["jax"]["verdict"] == "failed"
    assert set(families["bert"]["jax"]["models"]) == {"bert-base", "roberta-base"}


@pytest.mark.slow
def test_history_is_what_the_tables_said_on_each_day(installation: Settings, reader: Reader) -> None:
    sql = "SELECT * FROM ({}) ORDER BY model_id, hardware, device_id, mode"
    moments = [datetime(2026, 3, 2 + day, tzinfo=UTC) for day in range(5)]
    all_replayed = reader.rows(sql.format(matrix_history_sql()), {"moments": moments, "models": []})
    for moment in moments:
        then = tables_at(installation, EventLog.open(installation).recorded_until(moment - timedelta(microseconds=1)))
        replayed = [{**row} for row in all_replayed if row["moment"] == moment]
        assert all(row.pop("moment") for row in replayed)
        assert replayed == Reader(then).rows(sql.format("FROM compat_matrix"))
    assert replayed == reader.rows(sql.format("FROM compat_matrix"))


def test_history_tells_each_change_with_its_day(reader: Reader) -> None:
    changes = matrix_history(reader, Selection(model=("bert-base",)))
    told = [(c.day.day, c.hardware, c.before, c.after) for c in changes
            if c.hardware in ("cpu", "cuda", "jax") and c.model_id == "bert-base"]  # fmt: skip
    assert told == [
        (1, "cpu", "untested", "works"),
        (2, "cpu", "works", "medium"),
        (2, "jax", "untested", "failed"),
        (3, "cpu", "medium", "low"),
        (3, "cuda", "untested", "high"),
        (4, "cpu", "low", "medium"),
        (4, "cuda", "high", "untested"),
        (5, "cpu", "medium", "low"),
        (5, "cuda", "untested", "high"),
    ]
    assert {c.hardware for c in matrix_history(reader, Selection(hardware=("jax",)))} == {"jax"}
    assert matrix_history(reader, mode="training") == []


def test_the_documented_form_is_read_again_as_derived_figures(installation: Settings, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    file = tmp_path / "old" / "matrix.json"
    done = CliRunner().invoke(app, ["matrix", "--documented", "--output", str(file), "--home", str(installation.home)])
    assert done.exit_code == 0, done.output
    families = json.loads(file.read_text())["model_families"]
    assert families["bert"]["hardware_compatibility"]["jax"]["state"] == "failed"
    other = Settings(home=tmp_path / "other")
    report = migrate([tmp_path / "old"], EventLog.open(other))
    refresh(other)
    rows = Reader(other).rows("SELECT model_id, hardware, latency_mean_ms, provenance FROM results ORDER BY ALL")
    assert report.events
    assert [(r["model_id"], r["hardware"], round(r["latency_mean_ms"], 6)) for r in rows] == [
        ("bert-base", "cpu", 20.0), ("bert-base", "cuda", 1.0), ("bert-base", "onnxruntime", 100.0),
        ("bert-base", "openvino", 10.0), ("roberta-base", "cpu", 20.0),
    ]  # fmt: skip
    assert {row["provenance"] for row in rows} == {"suspect"}
    assert Reader(other).rows("SELECT * FROM compat_matrix") == []


@pytest.mark.parametrize("form", [(), ("--format", "html"), ("--format", "csv"), ("--json",)])
def test_a_matrix_of_nothing_says_what_to_do_in_every_format(installation: Settings, form: tuple[str, ...]) -> None:
    command = ["matrix", "--mode", "training", *form, "--home", str(installation.home)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr.count("No evidence yet: `accel bench run ")) == (1, 1)


def test_an_empty_documented_form_is_told(installation: Settings) -> None:
    command = ["matrix", "--documented", "--mode", "training", "--home", str(installation.home)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["model_families"] == {}
    assert "No evidence yet: `accel bench run --mode training`" in done.stderr


def test_the_documented_form_is_json_alone(installation: Settings) -> None:
    command = ["matrix", "--documented", "--format", "csv", "--home", str(installation.home)]
    with pytest.raises(InvalidInput, match="--documented is JSON: leave out --format csv"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_the_command_gives_grid_page_rows_and_history(reader: Reader, installation: Settings, tmp_path: Path) -> None:
    def asked(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["matrix", *arguments, "--home", str(installation.home)])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "low 10.0 ms n=2" in asked("--model", "bert-base")
    assert "failed (1)" not in asked("--model", "bert-base")
    assert "failed (1 failed, 1 untested)" in asked("--family")
    page = tmp_path / "matrix.html"
    asked("--output", str(page))
    text = page.read_text()
    assert "<summary>low 10 ms</summary>" in text
    assert all(one in text for one in compatibility_matrix(reader)["models"]["bert-base"]["openvino"]["evidence"])
    assert "http" not in text
    assert asked("--format", "csv").count("\n") == 1 + 2 * 5
    assert "2026-03-04" in asked("--history", "--model", "bert-base", "--hardware", "cuda")
    wrong = CliRunner().invoke(app, ["matrix", "--history", "--family", "--home", str(installation.home)])
    assert wrong.exit_code != 0
