"""Figures side by side, and what changed between two snapshots: like with like, and never more than is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection, require_known
from accel_platform.analysis.regressions.snapshot_comparison import compare_cells
from accel_platform.analysis.stats.significance import ratio_interval
from accel_platform.analysis.summaries.comparison import compare_side_by_side
from accel_platform.analysis.summaries.matrix import compatibility_matrix
from accel_platform.analysis.summaries.matrix_history import matrix_history
from accel_platform.cli import app
from accel_platform.cli.results.compare import _missing_shape_reason
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.snapshots import take_snapshot
from accel_platform.events.types import RunFinished, RunStarted
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_as_of
from factories import event, result, verification
from predictor_world import CPU, MODELS, append, measured_grid, verified, world
from predictor_world import result as modelled


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    made = world(tmp_path_factory.mktemp("compare"), measured_grid(MODELS[:3]))
    bert = MODELS[0]
    append(made, [
        modelled(bert, "openvino", 1, provenance="imported"),
        modelled(bert, "cpu", 1, provenance="imported"),
        modelled(bert, "cuda", 1, provenance="imported"),
        modelled(bert, "cpu", 16, provenance="imported"),
    ])  # fmt: skip
    return made


def test_only_equal_shapes_stand_side_by_side_and_only_like_provenance_has_a_ratio(installation: Settings) -> None:
    found = compare_side_by_side(
        Reader(installation), Selection(model=("bert-base",), hardware=("cpu", "openvino")), "hardware"
    )
    assert found.names == ("cpu", "openvino")
    shapes = {(row["batch_size"], row["hardware"], row["provenance"]): row for row in found.rows}
    assert set(shapes) == {
        (1, "cpu", "measured"), (1, "cpu", "imported"), (1, "openvino", "measured"), (1, "openvino", "imported"),
        (4, "cpu", "measured"), (4, "openvino", "measured"),
    }  # fmt: skip
    assert [cell["batch_size"] for cell in found.unpaired] == [16]
    for row in found.rows:
        if row["hardware"] == "openvino":
            first = shapes[row["batch_size"], "cpu", row["provenance"]]
            assert row["ratio"] == row["latency_ms"] / first["latency_ms"]
            assert (row["ratio_low"] is not None) == (row["provenance"] == "measured")
            assert row["results"]
            assert row["evidence"]
    measured = shapes[1, "openvino", "measured"]
    assert measured["ratio_low"] < measured["ratio"] < measured["ratio_high"]
    assert measured["interval_of"] == "samples"


def test_a_figure_of_another_provenance_has_no_ratio_and_says_so(installation: Settings) -> None:
    selection = Selection(model=("bert-base",), hardware=("cuda", "openvino"), batch_size=1)
    found = compare_side_by_side(Reader(installation), selection, "hardware")
    [row] = [row for row in found.rows if row["provenance"] == "measured"]
    assert row["ratio"] is None
    assert row["note"] == "measured, and nothing measured of cuda stands at this shape"


def test_models_stand_side_by_side_on_one_place_and_a_family_is_its_models(installation: Settings) -> None:
    by_name = compare_side_by_side(
        Reader(installation), Selection(model=("bert-base", "t5-small"), hardware=("cpu",)), "model_id"
    )
    by_family = compare_side_by_side(
        Reader(installation), Selection(model=("bert", "t5"), hardware=("cpu",)), "model_id"
    )
    assert by_name == by_family
    assert {row["model_id"] for row in by_name.rows} == {"bert-base", "t5-small"}
    # An image has no length, so nothing of vit stands beside bert.
    alone = compare_side_by_side(
        Reader(installation), Selection(model=("bert-base", "vit-base"), hardware=("cpu",)), "model_id"
    )
    assert alone.rows == []
    assert alone.unpaired
    assert _missing_shape_reason(alone) == "There is none: bert-base reads sequences, vit-base does not."
    other = compare_side_by_side(
        Reader(installation), Selection(model=("bert-base",), hardware=("cpu", "cuda"), batch_size=16), "hardware"
    )
    assert (other.rows, _missing_shape_reason(other)) == ([], None)


def test_what_was_not_measured_is_named_with_its_command_and_what_nothing_knows_is_an_error(
    installation: Settings,
) -> None:
    reader = Reader(installation)
    found = compare_side_by_side(reader, Selection(model=("bert-base",), hardware=("cpu", "jax")), "hardware")
    assert found.lacking == {"jax": "accel bench run --models bert-base --hardware jax"}
    assert found.rows == []
    with pytest.raises(NotFound, match="Did you mean bert-base"):
        compare_side_by_side(reader, Selection(model=("bert-bas",)), "hardware")


def test_wrong_outputs_have_no_ratio(tmp_path: Path) -> None:
    made = world(tmp_path, [
        result(), verification(),
        result(hardware="openvino", backend="openvino"), verification(hardware="openvino", passed=False),
    ])  # fmt: skip
    rows = compare_side_by_side(
        Reader(made), Selection(model=("bert-base",), hardware=("cpu", "openvino")), "hardware"
    ).rows
    assert [(row["hardware"], row["ratio"], row["note"]) for row in rows] == [
        ("cpu", None, None),
        ("openvino", None, "its outputs differ from the reference"),
    ]


def test_what_differs_between_fingerprints_is_told(tmp_path: Path) -> None:
    made = world(tmp_path, [
        result(threads=2), result(threads=8, device_id="other", device_name="Other CPU"),
        result(model_id="roberta-base", threads=4),
    ])  # fmt: skip
    reader = Reader(made)
    rows = compare_side_by_side(reader, Selection(hardware=("cpu",)), "model_id").rows
    assert [row["differs"] for row in rows] == [[], ["threads 4 against 2"]]


def test_devices_of_one_name_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    made = world(tmp_path, [
        payload
        for device, scale in (("slow", 2.0), ("fast", 1.0)) for hardware in ("openvino", "cpu")
        for payload in (
            modelled(MODELS[0], hardware, 1, device_id=device, scale=scale),
            verified(MODELS[0], hardware, 1).model_copy(update={"device_id": device}),
        )
    ])  # fmt: skip
    rows = compare_side_by_side(
        Reader(made), Selection(model=("bert-base",), hardware=("cpu", "openvino")), "hardware"
    ).rows
    assert [(row["hardware"], row["device_id"], row["baseline"]) for row in rows] == [
        ("cpu", "fast", True), ("cpu", "slow", True), ("openvino", "fast", False), ("openvino", "slow", False),
    ]  # fmt: skip
    assert [row["baseline_device_id"] for row in rows] == [row["device_id"] for row in rows]
    assert [row["differs"] for row in rows] == [[], [], [], []]
    words = ["compare", "--model", "bert-base", "--hardware", "cpu", "openvino", "--home", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert all(f"{row['hardware']:8}  {CPU} ({row['device_id']})" in done.stdout for row in rows)
    said = " ".join(done.output.split())
    assert "latency_ms: time of one batch (a forward pass" in said
    assert "ratio: latency over that of cpu on the same device at the same shape" in said
    matrix = compatibility_matrix(Reader(made), by_device=True)
    assert {*matrix["devices"].values()} == {1}
    assert [name for name in matrix["hardware"] if name.startswith("cpu")] == [
        f"cpu · {CPU} (fast)", f"cpu · {CPU} (slow)"
    ]  # fmt: skip
    assert {change.device for change in matrix_history(Reader(made))} == {f"{CPU} (fast)", f"{CPU} (slow)"}
    done = CliRunner().invoke(app, ["trend", "--model", "bert-base", "--home", str(tmp_path)])
    assert all(done.stdout.count(f"{CPU} ({device})") == 2 for device in ("fast", "slow"))


def test_a_ratio_is_to_the_same_device_where_it_has_a_figure_and_the_table_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = MODELS[0]
    made = world(tmp_path, [
        modelled(bert, hardware, 1, device_id=f"cpu-of-a-host-{device}", scale=scale)
        for device, scale, ways in (
            ("e1ab461", 1.0, ("cpu", "openvino", "cpu")),
            ("03b9064", 3.0, ("cpu", "openvino")),
            ("lacking", 9.0, ("openvino",)),
            ("with-no-other", 4.0, ("cpu",)),
        )
        for hardware in ways
    ])  # fmt: skip
    found = compare_side_by_side(
        Reader(made), Selection(model=("bert-base",), hardware=("cpu", "openvino")), "hardware"
    )
    rows = {(row["hardware"], row["device_id"].removeprefix("cpu-of-a-host-")): row for row in found.rows}
    assert {key: row["baseline_device_id"].removeprefix("cpu-of-a-host-") for key, row in rows.items()} == {
        ("cpu", "e1ab461"): "e1ab461", ("openvino", "e1ab461"): "e1ab461",
        ("cpu", "03b9064"): "03b9064", ("openvino", "03b9064"): "03b9064",
        ("openvino", "lacking"): "e1ab461", ("cpu", "with-no-other"): "e1ab461",
    }  # fmt: skip
    assert {key for key, row in rows.items() if row["baseline"]} == {("cpu", "e1ab461"), ("cpu", "03b9064")}
    for key, row in rows.items():
        base = rows["cpu", row["baseline_device_id"].removeprefix("cpu-of-a-host-")]
        assert row["ratio"] == (None if row["baseline"] else row["latency_ms"] / base["latency_ms"]), key
    monkeypatch.setenv("COLUMNS", "100")
    words = ["compare", "--model", "bert-base", "--hardware", "cpu", "openvino", "--home", str(tmp_path)]
    head, _, *lines = CliRunner().invoke(app, words).stdout.splitlines()
    assert {"device", "latency_ms", "ratio", "over"} <= {*head.split()}
    over = [line[head.index("over") :].split("  ")[0].strip() for line in lines]
    assert (over.count("-"), over.count("same device")) == (2, 2)
    assert sum(one.startswith("Test CPU") and one.endswith("e1ab461)") for one in over) == 2


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(processes: int) -> None:
    """For one process it covers the scatter of its samples, for several that of processes."""
    chance, held, rounds = np.random.default_rng(1), 0, 400
    for _ in range(rounds):
        sides = []
        for level in (10e6, 12e6):
            shift = np.exp(chance.normal(0, 0.05, processes)) if processes > 1 else np.ones(1)
            sides.append([tuple((level * s * np.exp(chance.normal(0, 0.1, 25))).astype(int)) for s in shift])
        medians = [np.median([np.median(samples) for samples in side]) for side in sides]
        interval = ratio_interval(medians[1] / medians[0], *sides)
        assert interval is not None
        assert interval.covers == ("samples" if processes == 1 else "processes")
        held += interval.low <= 1.2 <= interval.high
    assert 0.92 <= held / rounds <= 1.0


def test_too_few_samples_give_no_interval() -> None:
    few, many = tuple(range(1, 11)), tuple(range(1, 12))
    assert ratio_interval(1.0, [few], [many]) is None
    assert ratio_interval(1.0, [], [many]) is None
    same = ratio_interval(1.0, [many, many], [many, many])
    assert same is not None
    assert (same.low, same.high) == (1.0, 1.0)


def run(log: EventLog, number: int, *, scale: float = 1.0, **more: Any) -> None:
    """A benchmark run of its own of one cell, with samples around 20 ms times `scale`."""
    noise = np.random.default_rng(number)
    samples = tuple(int(20e6 * scale * math.exp(noise.normal(0, 0.01))) for _ in range(30))
    payloads = [
        RunStarted(kind="benchmark", plan={}, software={}),
        result(samples_ns=samples, **more),
        verification(hardware=more.get("hardware", "cpu")),
        RunFinished(status="succeeded", cells_ok=1, cells_failed=0, cells_skipped=0, duration_s=1.0),
    ]
    log.append([event(payload, run_id=f"run-{number:04d}") for payload in payloads])


def test_what_changed_is_judged_by_the_noise_of_its_series(log: EventLog, settings: Settings) -> None:
    slow, same, few = {"hardware": "cpu"}, {"hardware": "openvino", "backend": "openvino"}, {"hardware": "jax"}
    for number in range(8):
        run(log, number, **slow)
        run(log, 100 + number, **same)
    run(log, 200, **few)
    imported = {"provenance": "imported", "samples_ns": (), "fingerprint": None, "model_id": "gpt2"}
    log.append([Event.of(result(latency_mean_ms=10.0, **imported), source="test")])
    take_snapshot(log, "before")
    for number in range(8, 11):
        run(log, number, scale=1.2, **slow)
        run(log, 100 + number, **same)
    run(log, 208, **few)
    log.append([Event.of(result(latency_mean_ms=30.0, **imported), source="test")])
    refresh(settings)
    before, after = Reader(tables_as_of(settings, "before")), Reader(settings)
    found = compare_cells(before, after, Selection())
    told = {(row["hardware"], row["provenance"]): row for row in found.rows}
    assert {key: row["verdict"] for key, row in told.items()} == {
        ("cpu", "measured"): "slower",
        ("openvino", "measured"): "same",
        ("jax", "measured"): "undecided",
        ("cpu", "imported"): "undecided",
    }
    assert told["cpu", "measured"]["ratio"] == pytest.approx(1.2, rel=0.02)
    assert "noise is unknown" in told["jax", "measured"]["reason"]
    assert told["cpu", "imported"]["ratio"] == 2.0  # the median of 10 and 30 over 10
    assert (found.only_before, found.only_after) == (0, 0)
    only = compare_cells(before, after, Selection(hardware=("openvino",)))
    assert {row["hardware"] for row in only.rows} == {"openvino"}
    assert compare_cells(after, after, Selection()).rows == []


def test_every_cell_is_in_a_row_or_in_one_count(log: EventLog, settings: Settings) -> None:
    run(log, 1, hardware="cpu")
    run(log, 2, hardware="openvino", backend="openvino")
    run(log, 3, hardware="cuda", status="failed", reason="no memory")
    take_snapshot(log, "before")
    run(log, 4, hardware="openvino", backend="openvino")
    run(log, 5, hardware="cuda")
    run(log, 6, hardware="jax", backend="jax")
    refresh(settings)
    before, after = Reader(tables_as_of(settings, "before")), Reader(settings)
    found = compare_cells(before, after, Selection())
    assert {row["hardware"]: row["verdict"] for row in found.rows} == {"openvino": "undecided", "cuda": "works now"}
    assert (found.only_before, found.only_after) == (1, 1), "cpu was not measured again, jax is new"
    back = compare_cells(after, before, Selection())
    assert (back.rows, back.only_before, back.only_after) == ([], 4, 0)


def _import_sizes(log: EventLog, latencies: dict[int, float]) -> None:
    """Import a result of each image size, in pixels, with its latency in ms."""
    claim: dict[str, Any] = {"provenance": "imported", "samples_ns": (), "fingerprint": None, "model_id": "vit-base"}
    log.append(
        [
            Event.of(
                result(latency_mean_ms=latency, original={"image_size": str(size)}, sequence_length=None, **claim),
                source="test",
            )
            for size, latency in latencies.items()
        ]
    )


def test_imported_cells_of_each_image_size_stand_alone_and_are_same_where_none_moved(
    log: EventLog, settings: Settings
) -> None:
    _import_sizes(log, {224: 10.0, 384: 30.0, 512: 50.0, 640: 70.0})
    take_snapshot(log, "before")
    _import_sizes(log, {224: 10.0, 384: 90.0, 512: 50.5})
    refresh(settings)
    before, after = Reader(tables_as_of(settings, "before")), Reader(settings)
    found = compare_cells(before, after, Selection())
    told = {row["image_size"]: (row["verdict"], row["before_ms"], row["after_ms"]) for row in found.rows}
    assert told == {224: ("same", 10, 10), 384: ("undecided", 30, 60), 512: ("same", 50, 50.25)}
    assert (found.only_before, found.only_after) == (1, 0)
    [strict] = [row for row in compare_cells(before, after, Selection(), min_change_percent=0.4).rows
                if row["image_size"] == 512]  # fmt: skip
    assert strict["verdict"] == "undecided"
    shown = CliRunner().invoke(app, ["compare", "--before", "before", "--home", str(settings.home)])
    assert "batch 1, 384 px, float32" in shown.stdout


def test_rows_of_undecided_cells_are_told_apart_and_say_their_reason_once(
    log: EventLog, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imported(milliseconds: float, device: str, length: int) -> None:
        claim: dict[str, Any] = {"provenance": "imported", "samples_ns": (), "fingerprint": None}
        given = {"model_id": "distilbert-base-of-a-long-name", "latency_mean_ms": milliseconds}
        place = {"device_id": device, "device_name": device, "batch_size": 16, "sequence_length": length}
        log.append([Event.of(result(hardware="onnxruntime", **claim, **given, **place), source="test")])

    places = [(f"imported:a-device-of-{end}", length) for end in ("one", "other") for length in (128, 384)]
    for place in places:
        imported(10.0, *place)
    take_snapshot(log, "before")
    for place in places:
        imported(30.0, *place)
    refresh(settings)
    monkeypatch.setenv("COLUMNS", "100")
    words = ["compare", "--before", "before", "--home", str(settings.home)]
    done = CliRunner().invoke(app, words)
    _, _, *rows = done.stdout.splitlines()
    assert len({*rows}) == len(places) == len(rows)
    assert all(f"onnxruntime, batch 16, length {length}, float32" in done.stdout for length in (128, 384))
    said = " ".join(done.output.split())
    assert "change +100.0 %" in said
    assert said.count("no samples of ours say why") == 1
    assert "left out" not in said
    csv = CliRunner().invoke(app, [*words, "--format", "csv"])
    assert csv.stdout.count("no samples of ours say why") == len(places), "files have it in every row"


def test_a_choice_of_hardware_is_a_name_of_its_own(tmp_path: Path) -> None:
    bert = MODELS[0]
    settings = world(tmp_path, measured_grid([bert]))
    append(settings, [modelled(bert, "openvino", 1, provenance="imported", choice="gpu.1"),
                      modelled(bert, "cpu", 1, provenance="imported")])  # fmt: skip
    reader, one = Reader(settings), ("openvino:gpu.1",)
    assert {cell["choice"] for cell in read_cells(reader, Selection(hardware=one))} == {"gpu.1"}
    assert len(read_cells(reader, Selection(hardware=("openvino",)))) > 1
    found = compare_side_by_side(reader, Selection(model=("bert-base",), hardware=("cpu", *one)), "hardware")
    assert found.names == ("cpu", "openvino:gpu.1")
    assert found.lacking == {}
    [held] = [row for row in found.rows if row["hardware"] == "openvino"]
    assert held["choice"] == "gpu.1"
    assert held["ratio"] is not None
    [cells] = compatibility_matrix(reader, Selection(hardware=one))["models"].values()
    assert cells["openvino"]["results_ok"] == 1
    with pytest.raises(InvalidInput, match="not by choice"):
        matrix_history(reader, Selection(hardware=one))
    with pytest.raises(InvalidInput, match="gpu"):
        require_known(reader, Selection(hardware=("openvino:tpu",)))


def test_devices_of_the_spec_sheet_are_compared_by_any_of_their_names(settings: Settings, log: EventLog) -> None:
    claim: Any = {"provenance": "imported", "samples_ns": (), "fingerprint": None, "hardware": "cuda"}
    names = {"h100_sxm": 2.0, "4 x h100_sxm": 1.0, "Nvidia A100 GPU": 6.0}
    log.append(
        [
            event(result(device_name=n, device_id=n, latency_mean_ms=ms, **claim), host_id=None)
            for n, ms in names.items()
        ]
    )
    refresh(settings)
    reader = Reader(settings)
    found = compare_side_by_side(reader, Selection(hardware=("H100", "A100 40GB")), "hardware")
    assert found.names == ("NVIDIA H100 SXM5 80GB", "NVIDIA A100 SXM4 40GB")
    assert [(row["device_name"], row["ratio"]) for row in found.rows] == [(found.names[0], None), (found.names[1], 3.0)]
    assert len(compatibility_matrix(reader, Selection(hardware=("H100",)))["models"]) == 1
    with pytest.raises(NotFound, match="Nothing was measured on or imported of 'NVIDIA L4', which 'L4' names"):
        require_known(reader, Selection(hardware=("L4",)))
    rented = compare_side_by_side(reader, Selection(hardware=("p5.48xlarge", "p5.4xlarge", "p4d.24xlarge")), "hardware")
    assert rented == found, "an instance is one of its devices"
    with pytest.raises(NotFound, match=r"which 'g6\.12xlarge' names\. g6\.12xlarge has 4 x NVIDIA L4; each"):
        require_known(reader, Selection(hardware=("g6.12xlarge",)))
    with pytest.raises(NotFound, match=r"hardware name 'g6\.3xlarge'\. Did you mean g6\.xlarge"):
        require_known(reader, Selection(hardware=("g6.3xlarge",)))
    with pytest.raises(NotFound, match=r"hardware name 'g6f\.xlarge'\. It has a part of a GPU, and figures"):
        require_known(reader, Selection(hardware=("g6f.xlarge",)))
