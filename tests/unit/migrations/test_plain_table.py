"""A user's own table: every column is read, or kept and named; nothing is invented; and `--map` and `--template`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection, require_known
from accel_platform.cli import app
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import RecordQuarantined, ResultRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from migrations.normalize.field_aliases import names_figure, names_token_figure
from migrations.normalize.plain_columns import COLUMNS, FIGURES, parse_map, read_columns, reference_page, template

PAGE = Path(__file__).parents[3] / "docs/reference/plain-table.md"


def imported(
    tmp_path: Path, text: str, *words: str, name: str = "mine.csv"
) -> tuple[dict[str, Any], list[ResultRecorded]]:
    """The one document's report, and all results of the log. No tables are made, which would take most of the time."""
    tmp_path.mkdir(exist_ok=True)
    table = tmp_path / name
    table.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_platform.cli.data.migrate.follow_log", lambda _: None)
        done = CliRunner().invoke(app, ["migrate", str(table), "--home", str(tmp_path / "home"), "--json", *words])
    assert done.exit_code == 0, done.exception
    log = EventLog.open(Settings(home=tmp_path / "home"))
    results = [event.payload for event in log.read(types={"ResultRecorded"})]
    return json.loads(done.stdout)["documents"][0], results  # type: ignore[return-value]


def test_a_device_column_is_the_device_and_no_runtime_is_invented(tmp_path: Path) -> None:
    for name in ("device", "gpu", "GPU Name"):
        _, (result,) = imported(tmp_path / name, f"model,{name},latency_ms\nresnet50,RTX 4090,2.5\n")
        assert (result.device_name, result.hardware, result.backend) == ("RTX 4090", "cuda", "unstated"), name
    # A hardware column beside it takes nothing from it.
    _, (both,) = imported(tmp_path, "model,hardware,device,latency_ms\nresnet50,openvino,Core Ultra 7 155H,2.5\n")
    assert (both.device_name, both.hardware, both.backend) == ("Core Ultra 7 155H", "openvino", "openvino")


def test_an_instance_is_the_hardware_that_it_has(tmp_path: Path) -> None:
    _, (result,) = imported(tmp_path, "model,device,latency_ms\nresnet50,g5.12xlarge,2.5\n")
    assert (result.device_name, result.hardware) == ("g5.12xlarge", "cuda")
    refresh(settings := Settings(home=tmp_path / "home"))
    [cell] = read_cells(Reader(settings), Selection(device="g5.12xlarge"))
    assert cell["device_name"] == "4 x NVIDIA A10G"
    with pytest.raises(NotFound, match="Results of all its devices go by '4 x NVIDIA A10G'"):
        require_known(Reader(settings), Selection(hardware=("g5.12xlarge",)))


def test_a_spreadsheet_with_decimal_commas_is_read_as_one_with_points(tmp_path: Path) -> None:
    head = "model;device;runtime;precision;batch size;framework_version;Latency (ms);throughput"
    commas = (
        f"{head}\nresnet-50;NVIDIA L4;pytorch;float16;8;2.7;12,5 ms;640,25\nvit;NVIDIA L4;pytorch;;1;2.7;1.020,5;0,98\n"
    )
    points = (
        f"{head}\nresnet-50;NVIDIA L4;pytorch;float16;8;2.7;12.5 ms;640.25\nvit;NVIDIA L4;pytorch;;1;2.7;1020.5;0.98\n"
    )
    _, read = imported(tmp_path / "commas", commas)
    _, expected = imported(tmp_path / "points", points)
    assert [result.latency_mean_ms for result in read] == [12.5, 1020.5]
    assert [result.throughput_items_per_s for result in read] == [640.25, 0.98]
    assert [result.original for result in read] == [result.original for result in expected]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("12,5;1.234", "'1.234' of column 'throughput' may be a decimal or thousands"),
        ("12,5;80,5\nresnet-50;NVIDIA L4;12.5;80,5", "'12.5' of column 'latency_ms' may be a decimal or thousands"),
    ],
)
def test_numbers_of_two_meanings_are_refused(tmp_path: Path, row: str, reason: str) -> None:
    report, results = imported(tmp_path, f"model;device;latency_ms;throughput\nresnet-50;NVIDIA L4;{row}\n")
    assert report["outcome"] == "quarantined"
    assert reason in report["reason"]
    assert not results


@pytest.mark.parametrize("cell", ['"12,5"', '"1,25"'])
def test_a_comma_between_columns_leaves_commas_in_numbers_unread(tmp_path: Path, cell: str) -> None:
    report, results = imported(tmp_path, f"model,device,latency_ms\nresnet-50,NVIDIA L4,{cell}\n")
    assert "write it as 12.5" in report["reason"]
    assert not results


def test_size_of_images_and_version_of_the_runtime_are_read(tmp_path: Path) -> None:
    table = "model,device,runtime,framework_version,img_size,latency_ms\nvit,NVIDIA L4,PyTorch,2.4,384,9\n"
    _, (result,) = imported(tmp_path, table)
    assert result.original["image_size"] == 384
    assert result.environment["pytorch"] == "2.4"


def test_rows_with_a_hardware_keep_their_mode_and_runtime(tmp_path: Path) -> None:
    row = {"model": "resnet50", "hardware": "cuda", "device": "NVIDIA L4", "latency_ms": 2.5, "mode": "training"}
    report, (result,) = imported(tmp_path, json.dumps([row | {"runtime": "pytorch"}]), name="list.json")
    assert (report["format"], result.mode, result.backend) == ("plain_table", "training", "pytorch")


def test_no_runtime_is_invented_for_json_with_a_hardware(tmp_path: Path) -> None:
    row = {"model_name": "llama3.1:8b", "hardware": "cuda", "latency": 18.9, "tokens_per_second": 40}
    report, results = imported(tmp_path / "unit", json.dumps([row]), name="list.json")
    assert (report["format"], results) == ("plain_table", []), "18.9 may be seconds"
    del row["latency"]
    _, (result,) = imported(tmp_path, json.dumps([row]), name="list.json")
    assert (result.backend, result.mode, result.throughput_tokens_per_s) == ("unstated", "generation", 40)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.json", '[{{"model": "x", "throughput": 9, "device": "NVIDIA L4"}}, {row}]'),
        ("lines.jsonl", '{{"model": "x", "throughput": 9, "device": "NVIDIA L4"}}\n{row}'),
        ("one.json", "{row}"),
        ("within.json", '{{"results": [{row}]}}'),
    ],
)
def test_flat_json_objects_are_rows(tmp_path: Path, name: str, text: str) -> None:
    row = {"model": "resnet50", "device": "RTX 4090", "batch_size": 8, "latency_ms": 2.5, "team": "search"}
    report, results = imported(tmp_path, text.format(row=json.dumps(row)), name=name)
    assert report["outcome"] == "imported"
    (found,) = (result for result in results if result.latency_mean_ms)
    assert (found.device_name, found.hardware, found.batch_size, found.latency_mean_ms) == ("RTX 4090", "cuda", 8, 2.5)
    assert found.original["stated"] == row


@pytest.mark.parametrize("extra", [{"runs": [1, 2]}, {"device": {"name": "RTX 4090"}}, {"latency_ms": None}])
def test_json_objects_with_parts_or_without_figures_are_no_rows(tmp_path: Path, extra: dict[str, Any]) -> None:
    row = {"model": "resnet50", "device": "RTX 4090", "latency_ms": 2.5, **extra}
    report, results = imported(tmp_path, json.dumps([row]), name="rows.json")
    assert not results
    assert report["outcome"] == "quarantined"


@pytest.mark.parametrize(
    ("given", "place"),
    [((), ("unknown", None)), (("--device", "NVIDIA L4"), ("cuda", "NVIDIA L4"))],
)
def test_a_table_of_one_device_names_it_nowhere_or_by_the_option(
    tmp_path: Path, given: tuple[str, ...], place: tuple[str, str | None]
) -> None:
    report, (result,) = imported(tmp_path, "Model,Size_MB,FPS\nyolov8n.pt,6.25,46.14\n", *given)
    assert (result.hardware, result.device_name, result.throughput_items_per_s) == (*place, 46.14)
    assert ("--device" in report["reason"]) == (not given)


def test_a_device_is_given_to_a_table_that_was_imported_without_one(tmp_path: Path) -> None:
    table = "model,mean_ms,p95_ms\nresnet18,2.5,3.5\n"
    imported(tmp_path, table)
    _, results = imported(tmp_path, table, "--device", "NVIDIA L4")
    assert {(one.hardware, one.latency_mean_ms, one.latency_p95_ms) for one in results} == {
        ("unknown", 2.5, 3.5),
        ("cuda", 2.5, 3.5),
    }


def test_a_runtime_that_says_its_place_gives_the_hardware(tmp_path: Path) -> None:
    rows = "model,backend,avg_latency_ms\nresnet18,PyTorch CPU,48.5\nresnet18,ONNX Runtime,24.5\n"
    _, results = imported(tmp_path, rows)
    assert [one.hardware for one in results] == ["cpu", "unknown"]


def test_what_json_says_once_holds_for_all_its_rows(tmp_path: Path) -> None:
    value = {
        "timestamp": "2026-01-02T03:04:05",
        "device": "RTX 4090",
        "config": {"batch_size": 8, "dtype": "fp16", "input_shape": [8, 3, 224, 224]},
        "system": {"cpu": "Intel Xeon Gold 6338", "platform": "Linux-6.1"},
        "summary": {"avg_latency_ms": 99.0},
        "results": [
            {"model": "resnet18", "median_ms": 2.5, "images_per_sec": 3200},
            {"model": "resnet50", "median_ms": 5.5, "images_per_sec": 1450, "batch_size": 4},
        ],
        "layers": [[1, 2], [3]],
    }
    report, results = imported(tmp_path, json.dumps(value), name="bench.json")
    assert report["format"] == "plain_table"
    assert [(one.model_id, one.device_name, one.batch_size, one.precision) for one in results] == [
        ("resnet-18", "RTX 4090", 8, "float16"),
        ("resnet-50", "RTX 4090", 4, "float16"),
    ]
    assert [(one.latency_p50_ms, one.latency_mean_ms, one.throughput_items_per_s) for one in results] == [
        (2.5, None, 3200),
        (5.5, None, 1450),
    ]
    log = EventLog.open(Settings(home=tmp_path / "home"))
    (kept,) = (e.payload for e in log.read(types={"RecordQuarantined"}) if isinstance(e.payload, RecordQuarantined))
    assert set(json.loads(kept.content)) == {"/layers", "/avg_latency_ms"}
    assert results[0].original["stated"]["system.platform"] == "Linux-6.1"


def test_figures_in_sections_of_one_object_are_one_row(tmp_path: Path) -> None:
    value = {
        "model": {"name": "mobilenet_v2.tflite", "size_mb": 2.2},
        "phases": [{"phase": "load", "seconds": 1.5}],
        "device": {"hostname": "board", "platform": "Linux-6.12-aarch64", "name": "Cortex-A72"},
        "params": {"batch_size": 1, "warmup_runs": 10},
        "latency": {"mean_ms": 122.5, "p95_ms": 128.5},
        "cold_start": {"first_inference_ms": 130.5},
        "throughput": {"fps": 8.25},
    }
    _, (result,) = imported(tmp_path, json.dumps(value), name="one.json")
    assert (result.model_id, result.hardware, result.device_name) == ("mobilenet-v2.tflite", "cpu", "Cortex-A72")
    assert (result.latency_mean_ms, result.latency_p95_ms, result.throughput_items_per_s) == (122.5, 128.5, 8.25)
    assert (result.batch_size, result.warmup_iterations) == (1, 10)
    assert result.original["stated"]["device.platform"] == "Linux-6.12-aarch64"


@pytest.mark.parametrize("name", ["runs", "benchmark_results", "benchmark_runs"])
def test_the_one_table_of_results_in_a_database_is_read(tmp_path: Path, name: str) -> None:
    with closing(sqlite3.connect(tmp_path / "mine.db")) as base, base:
        base.execute(f"CREATE TABLE {name} (id INTEGER, model TEXT, device TEXT, latency_ms REAL)")
        base.execute(f"INSERT INTO {name} VALUES (1, 'resnet18', 'RTX 4090', 2.5)")
        base.execute("CREATE TABLE prompts (id INTEGER, text TEXT)")
        base.execute("INSERT INTO prompts VALUES (1, 'why')")
    done = CliRunner().invoke(app, ["migrate", str(tmp_path / "mine.db"), "--home", str(tmp_path / "home"), "--json"])
    assert "beside the rows, and not read: /prompts" in json.loads(done.stdout)["documents"][0]["reason"]
    log = EventLog.open(Settings(home=tmp_path / "home"))
    (result,) = (e.payload for e in log.read(types={"ResultRecorded"}) if isinstance(e.payload, ResultRecorded))
    assert (result.model_id, result.backend, result.device_name) == ("resnet-18", "unstated", "RTX 4090")


def test_two_lists_of_rows_may_be_of_the_same_runs_and_are_not_read(tmp_path: Path) -> None:
    rows = [{"model": "resnet18", "latency_ms": 2.5}]
    value = {"device": "RTX 4090", "raw": rows, "best": rows}
    report, results = imported(tmp_path, json.dumps(value), name="two.json")
    assert (report["outcome"], results) == ("quarantined", [])


@pytest.mark.parametrize(
    ("head", "row", "latencies"),
    [
        ("latency", "18.5", None),
        ("latency,p95_ms,ttft_s", "18.5,20,0.2", None),
        ("latency", "18.5 s", (18500, None)),
        ("latency_s,p95", "0.5,0.75", (500, 750)),
        ("latency,p95_ms", "18.5,20", (18.5, 20)),
        ("latency,mean_ms,p95_ms", "0.0185,18.5,20", (18.5, 20)),
        ("mean_ms,latency,latency_ms,p95_ms", "18.5,0.0185,18.5,20", (18.5, 20)),
        ("latency_ms_mean,latency_ms_p95", "18.5,20", (18.5, 20)),
    ],
)
def test_a_latency_without_a_unit_is_never_guessed(
    tmp_path: Path, head: str, row: str, latencies: tuple[float, float | None] | None
) -> None:
    report, results = imported(tmp_path, f"model,device,{head}\ndeepseek-r1:8b,RTX 4090,{row}\n")
    assert [(one.latency_mean_ms, one.latency_p95_ms) for one in results] == ([latencies] if latencies else [])
    if latencies is None:
        assert "latency 18.5 may be seconds or milliseconds" in report["reason"]
        _, (result,) = imported(
            tmp_path, f"model,device,{head}\ndeepseek-r1:8b,RTX 4090,{row}\n", "--map", "latency=latency_s"
        )
        assert result.latency_mean_ms == 18500


def test_samples_without_a_unit_are_not_guessed_either(tmp_path: Path) -> None:
    value = {"config": {"model": "alexnet", "backend": "onnx"}, "avg_latency": 0.00115, "latencies": [0.0011, 0.0012]}
    twice = json.dumps(json.dumps(value))
    report, results = imported(tmp_path, twice, name="twice.json")
    assert (report["format"], results) == ("plain_table", [])
    assert "avg_latency 0.00115 may be seconds" in report["reason"]


def test_a_column_by_its_own_name_is_read_before_another_of_its_meaning(tmp_path: Path) -> None:
    table = "model,target,hardware,device,latency_ms\nresnet18,x86-old,cpu,Core i7-9700,2.5\n"
    _, (result,) = imported(tmp_path, table)
    assert (result.hardware, result.device_name) == ("cpu", "Core i7-9700")


def test_figures_of_tokens_make_a_generation(tmp_path: Path) -> None:
    head = "model,gpu,avg_ttft_s,tpot_ms,Tokens/sec,prefill_tps,RAM Usage (GB)"
    _, (result,) = imported(tmp_path, f"{head}\nllama3.1:8b,RTX 4090,0.25,12.5,78.5,2000,-1\n")
    assert (result.mode, result.throughput_items_per_s) == ("generation", None)
    assert (result.time_to_first_token_ms, result.time_per_output_token_ms) == (250, 12.5)
    assert result.throughput_tokens_per_s == 78.5


def test_records_that_break_a_data_rule_are_named(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("model,device,latency_ms\nresnet50,RTX 4090,2.5\nresnet50,RTX 4090,1e300\n")
    command = ["migrate", str(table), "--home", str(tmp_path / "home")]
    out = CliRunner().invoke(app, command, env={"COLUMNS": ""}).stdout
    assert "1 record broke the data rule latency_plausible and went into quarantine, such as in " in out
    assert f"{tmp_path.name}/mine.csv" in out
    table.write_text("model,device,latency_ms\nresnet50,RTX 4090,2.6\n")
    fine = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "other")], env={"COLUMNS": ""}).stdout
    assert "Brought in 1 record" in fine
    assert "data rule" not in fine


def test_no_name_of_a_file_reaches_the_terminal_raw(tmp_path: Path) -> None:
    named = tmp_path / "in" / "\x1b[31mred\nline.csv"
    named.parent.mkdir()
    named.write_text("model,device,latency_ms\nresnet50,RTX 4090,fast\n")
    done = CliRunner().invoke(app, ["migrate", str(named.parent), "--home", str(tmp_path / "home")])
    assert "\\x1b[31mred\\nline.csv" in done.stdout
    assert "file 1 of 1: \\x1b[31mred\\nline.csv" in done.stderr
    assert "\x1b" not in done.output


def test_what_is_not_read_is_kept_and_named(tmp_path: Path) -> None:
    report, (result,) = imported(
        tmp_path,
        "Model,gpu,bs,Latency (ms),framework,team,latancy_max_ms\nbert-base,A100,8,9.5,ONNX Runtime,search,12\n",
    )
    assert (result.batch_size, result.latency_mean_ms, result.backend) == (8, 9.5, "onnxruntime")
    assert result.original["stated"]["team"] == "search"
    assert report["reason"] == (
        "columns read: gpu as device, bs as batch_size, framework as runtime; columns kept, but not read: team, "
        "latancy_max_ms (if it is latency_max_ms: --map latancy_max_ms=latency_max_ms)"
    )


def test_a_precision_that_nobody_knows_is_kept_and_named(tmp_path: Path) -> None:
    words = ("fp16", "amp", "W8A8", "q4_k_m", "nf4", "awq", "torch.bfloat16", "FP7", "fp7", "turbo")
    rows = [f"bert-base,A100,{precision},{ms}" for ms, precision in enumerate(words, 1)]
    report, results = imported(tmp_path, "\n".join(["model,gpu,precision,latency_ms", *rows]))
    assert "3 results of precisions that nobody knows, 'fp7' (2 of them)" in report["reason"]
    assert [(one.precision, one.original["precision"]) for one in results][-3:] == [
        ("fp7", "FP7"), ("fp7", "fp7"), ("turbo", "turbo")
    ]  # fmt: skip
    report, _ = imported(tmp_path / "one", "model,gpu,precision,latency_ms\nbert-base,A100,turbo,1\n")
    assert "1 result of a precision that nobody knows, 'turbo'" in report["reason"]


def test_a_map_says_what_a_column_means_and_lifts_the_table_from_quarantine(tmp_path: Path) -> None:
    table = "net;card;t\nresnet50;RTX 4090;2.5\n"
    assert imported(tmp_path, table)[0]["outcome"] == "quarantined"
    names = ("--map", "card=device,t=latency_ms", "--map", "net=model")
    report, (result,) = imported(tmp_path, table, *names)
    assert (report["outcome"], report["reason"]) == ("imported", None)
    assert (result.model_id, result.device_name, result.latency_mean_ms) == ("resnet-50", "RTX 4090", 2.5)
    again, results = imported(tmp_path, table, *names)
    assert again["already"]
    assert len(results) == 1


def test_a_map_renames_keys_of_json_and_goes_with_a_device(tmp_path: Path) -> None:
    rows = [{"name": "resnet18", "fps": 400, "t": 2.5, "note": 'a "name": of'}, {"name": "resnet50", "t": 5.5}]
    text = json.dumps({"env": {"python": "3.12"}, "results": rows}, indent=1)
    assert "no column is taken for a model or for" in imported(tmp_path, text, name="x.json")[0]["reason"]
    report, results = imported(
        tmp_path, text, "--map", "name=model,t=latency_ms", "--device", "NVIDIA L4", name="x.json"
    )
    assert report["outcome"] == "imported"
    assert [(one.model_id, one.device_name, one.latency_mean_ms) for one in results] == [
        ("resnet-18", "NVIDIA L4", 2.5),
        ("resnet-50", "NVIDIA L4", 5.5),
    ]
    assert results[0].original["stated"]["note"] == 'a "name": of'


def test_a_device_is_given_to_a_table_that_was_mapped_without_one(tmp_path: Path) -> None:
    table = "net;t\nresnet50;2.5\n"
    names = ("--map", "net=model,t=latency_ms")
    imported(tmp_path, table, *names)
    report, results = imported(tmp_path, table, *names, "--device", "NVIDIA L4")
    assert (report["records"], {one.device_name for one in results}) == (1, {None, "NVIDIA L4"})
    assert imported(tmp_path, table, *names, "--device", "NVIDIA L4")[0]["already"]


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("gpu", "expected YOURS=OURS"),
        ("gpu=devise", "Did you mean device"),
        ("gpu=xyz", "Known: model, device"),
        ("nobody=device", "has no column 'nobody'"),
    ],
)
def test_a_wrong_map_is_refused(tmp_path: Path, pair: str, words: str) -> None:
    (tmp_path / "a.csv").write_text("model,gpu,latency_ms\nx,A100,1\n")
    done = CliRunner().invoke(
        app, ["migrate", str(tmp_path / "a.csv"), "--home", str(tmp_path / "home"), "--map", pair]
    )
    assert isinstance(done.exception, InvalidInput)
    assert words in str(done.exception)


def test_a_row_that_names_no_hardware_or_mode_is_kept_with_what_to_do(tmp_path: Path) -> None:
    imported(tmp_path, "model,device,mode,latency_ms\nx,Board 7,inference,1\nx,A100,dreaming,1\nx,A100,train,1\n")
    log = EventLog.open(Settings(home=tmp_path / "home"))
    kept = [event.payload for event in log.read(types={"RecordQuarantined"})]
    reasons = [payload.reason for payload in kept if isinstance(payload, RecordQuarantined)]
    assert [("add a column hardware" in reason, "dreaming" in reason) for reason in reasons] == [
        (True, False),
        (False, True),
    ]


def test_a_row_without_a_readable_figure_is_kept_and_is_no_failure_of_the_hardware(tmp_path: Path) -> None:
    table = (
        "model;device;latency_ms;status;error\nresnet50;T4;fast;;\nresnet50;A100;;;\nresnet50;L4;0;;\n"
        "resnet50;V100;;failed;\nresnet50;P4;;;out of memory\n"
    )
    report, failures = imported(tmp_path, table)
    assert [(r.device_name, r.status) for r in failures] == [("V100", "failed"), ("P4", "failed")]
    assert (report["records"], report["failures"]) == (2, 2)
    log = EventLog.open(Settings(home=tmp_path / "home"))
    refused = [e.payload for e in log.read(types={"RecordQuarantined"}) if isinstance(e.payload, RecordQuarantined)]
    assert [r.rule for r in refused] == ["figure_missing"] * 3
    assert [r.reason.partition(": write it")[0] for r in refused] == [
        "no figure above zero: latency_ms 'fast'",
        "no figure: a run that failed needs status=failed, or an error",
        "no figure above zero: latency_ms '0'",
    ]


def test_the_template_is_read_whole(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["migrate", "--template", "csv"]).stdout
    assert printed == template()
    report, (result,) = imported(tmp_path, printed)
    assert report["reason"] is None, "every column is read"
    assert (result.batch_size, result.precision, result.throughput_items_per_s) == (8, "float16", 2580.0)


def test_every_declared_name_is_understood() -> None:
    names = {alias: name for name, column in COLUMNS.items() for alias in column.aliases}
    assert len(names) == sum(len(column.aliases) for column in COLUMNS.values()), "an alias stands for one column"
    for figure, column in FIGURES.items():
        for name in (figure, *column.aliases):
            assert names_figure(name) or names_token_figure(name), name
            assert parse_map([f"mine={name}"]) == {"mine": name}
    assert read_columns(("Model", "GPU", "P95")).is_result_table


def test_the_documentation_is_as_the_declaration() -> None:
    page = "\n".join(reference_page()) + "\n"
    assert PAGE.read_text() == page, "put the lines of migrations.normalize.plain_columns.reference_page() there"


def test_the_other_import_points_here(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("model,gpu,latency_ms\nx,A100,1\n")
    done = CliRunner().invoke(app, ["bench", "import", str(tmp_path / "a.csv"), "--home", str(tmp_path)])
    assert "accel migrate" in str(done.exception)


def test_a_table_that_lacks_a_column_is_told_which_and_how_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("gpu,what,bs,seq,fp,ms\nNVIDIA A10G,bert-base,1,128,fp16,3.2\n")
    done = CliRunner().invoke(app, ["migrate", str(tmp_path / "mine.csv"), "--home", str(tmp_path / "h"), "--json"])
    [document] = json.loads(done.stdout)["documents"]
    assert document["outcome"] == "quarantined"
    assert "no column is taken for a model; `accel migrate --map YOURS=OURS` says what yours mean" in document["reason"]
    (tmp_path / "other.csv").write_text("city,country\nOslo,Norway\n")
    done = CliRunner().invoke(app, ["migrate", str(tmp_path / "other.csv"), "--home", str(tmp_path / "h"), "--json"])
    assert "--map" not in json.loads(done.stdout)["documents"][0]["reason"], "it is no table of results"
