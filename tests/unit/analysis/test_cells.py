"""Results pooled into cells: what a selection leaves, and that unlike things are never averaged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from accel_platform.analysis.query.cells import CELL, read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.analysis.summaries.baselines import speedups
from accel_platform.analysis.summaries.comparison import compare_side_by_side
from accel_platform.events import Event, EventLog
from accel_platform.reports.charts.registry import chart
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from factories import result
from predictor.data.evidence import load_evidence
from predictor_world import world


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(world(tmp_path_factory.mktemp("cells")))


def test_every_cell_is_of_one_shape_device_and_provenance(reader: Reader) -> None:
    cells = read_cells(reader, Selection())
    assert len({tuple(cell[name] for name in CELL) for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert cell["latency_low_ms"] <= cell["latency_ms"] <= cell["latency_high_ms"]
        assert len(cell["evidence"]) == min(cell["results"], 20)


def test_filters_all_have_to_hold_and_know_aliases(reader: Reader) -> None:
    every = read_cells(reader, Selection())
    [some] = [cell for cell in every if cell["model_id"] == every[0]["model_id"]][:1]
    selection = Selection(model=(some["model_id"],), hardware=(some["hardware"],), batch_size=some["batch_size"])
    chosen = read_cells(reader, selection)
    assert some in chosen
    assert {(c["model_id"], c["hardware"], c["batch_size"]) for c in chosen} == {
        (some["model_id"], some["hardware"], some["batch_size"])
    }
    assert read_cells(reader, Selection(model=("bert-base",))) == read_cells(
        reader, Selection(model=("google-bert/bert-base-uncased",))
    )


def test_times_without_a_zone_are_utc_and_until_is_left_out(reader: Reader) -> None:
    newest = max(cell["newest_at"] for cell in read_cells(reader, Selection()))
    assert read_cells(reader, Selection(since=newest))
    assert read_cells(reader, Selection(since=newest.replace(tzinfo=None))) == read_cells(
        reader, Selection(since=newest)
    )
    assert not read_cells(reader, Selection(since=newest, until=newest))


def test_a_filter_of_another_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="batchsize"):
        Selection.model_validate({"batchsize": 1})


def _imported(home: Path, claims: Iterable[dict[str, Any]]) -> Reader:
    """Return a reader of figures that others state of one GPU."""
    settings, same = Settings(home=home), {"provenance": "imported", "samples_ns": (), "weights_source": None}
    place = {"hardware": "cuda", "device_id": "imported:gpu", "device_name": "gpu", "fingerprint": None}
    log = EventLog.open(settings)
    log.append([Event.of(result(**same | place | claim), source="test") for claim in claims])
    refresh(settings)
    return Reader(settings)


_ENGINES = {"vllm": 10.0, "llama.cpp": 90.0, "trtllm": 5.0}


def test_engines_of_one_device_are_cells_of_their_own(tmp_path: Path) -> None:
    shapes = [(batch, tokens) for batch in (1, 16) for tokens in (128, 256)]
    reader = _imported(
        tmp_path,
        [{"backend": backend, "mode": "generation", "batch_size": batch, "output_tokens": tokens,
          "latency_mean_ms": milliseconds * batch + tokens}
         for backend, milliseconds in _ENGINES.items() for batch, tokens in shapes],
    )  # fmt: skip
    cells = read_cells(reader, Selection(), evidence=False)
    assert {(cell["backend"], cell["batch_size"], cell["output_tokens"]): cell["latency_ms"] for cell in cells} == {
        (backend, batch, tokens): milliseconds * batch + tokens
        for backend, milliseconds in _ENGINES.items()
        for batch, tokens in shapes
    }
    assert {cell["runtime"] for cell in with_distinct_runtimes(cells)} == {*_ENGINES}
    summaries = load_evidence(reader).summaries
    told_apart = {(cell.target.backend, cell.batch_size, cell.output_tokens) for cell in summaries}
    assert told_apart == {(cell["backend"], cell["batch_size"], cell["output_tokens"]) for cell in cells}
    for name in ("latency", "hardware"):
        drawn = json.dumps(chart(name, reader, Selection()).to_dict())
        assert all(f"cuda, {backend}" in drawn or f'"{backend}"' in drawn for backend in _ENGINES), name


def test_an_engine_has_one_name_however_its_results_spell_it(tmp_path: Path) -> None:
    spellings = ["trtllm", "tensorrt-llm", "TensorRT-LLM", "tensorrtllm"]
    reader = _imported(tmp_path, [{"backend": name, "latency_mean_ms": 5.0} for name in (*spellings, "genie")])
    counts = {cell["backend"]: cell["results"] for cell in read_cells(reader, Selection())}
    assert counts == {"trtllm": 4, "genie": 1}
    for name in spellings:
        [cell] = read_cells(reader, Selection(backend=name))
        assert cell["results"] == 4


def test_imports_are_cells_by_the_software_and_threads_that_they_state(tmp_path: Path) -> None:
    def stated(number: int, layout: str, version: str = "2.4.0") -> dict[str, Any]:
        environment = {"pytorch": version, "settings": {"layout": layout, "devices": 1}}
        return {"backend": "pytorch", "fingerprint": f"imported-{number}", "environment": environment}

    setups = [stated(1, "nchw"), stated(1, "nchw"), stated(2, "nhwc"), stated(3, "nhwc", "2.9.1"), {"threads": 4}]
    claims = [{**setup, "latency_mean_ms": float(number)} for number, setup in enumerate(setups, 1)]
    cells = with_distinct_runtimes(read_cells(_imported(tmp_path, claims), Selection(), evidence=False))
    assert {cell["runtime"]: (cell["latency_ms"], cell["results"]) for cell in cells} == {
        "pytorch 2.4.0, nchw": (1.5, 2),
        "pytorch 2.4.0, nhwc": (3.0, 1),
        "pytorch 2.9.1, nhwc": (4.0, 1),
        "4 threads": (5.0, 1),
    }
    assert {tuple(cell["software"] or ()) for cell in cells} >= {("pytorch 2.4.0", "nchw"), ()}


def test_own_measurements_under_several_versions_stay_one_cell(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    versions = [result(fingerprint=f"fingerprint-{number}", threads=number + 1) for number in range(2)]
    EventLog.open(settings).append([Event.of(one, source="test") for one in versions])
    refresh(settings)
    [cell] = with_distinct_runtimes(read_cells(Reader(settings), Selection()))
    assert (cell["results"], cell["fingerprints"], cell["setup"], cell["runtime"]) == (2, 2, None, None)


def test_ratios_and_speedups_are_to_the_same_backend_where_it_has_a_figure(tmp_path: Path) -> None:
    places = {"cpu": "imported:cpu", "cuda": "imported:gpu"}
    times = {("cpu", "vllm"): 80.0, ("cpu", "llama.cpp"): 40.0, ("cuda", "vllm"): 4.0, ("cuda", "llama.cpp"): 20.0,
             ("cuda", "trtllm"): 2.0}  # fmt: skip
    reader = _imported(
        tmp_path,
        [{"hardware": hardware, "device_id": places[hardware], "device_name": hardware, "backend": backend,
          "latency_mean_ms": milliseconds} for (hardware, backend), milliseconds in times.items()],
    )  # fmt: skip
    cells = read_cells(reader, Selection())
    assert {row["backend"]: (row["speedup"], row["baseline_backend"]) for row in speedups(cells)} == {
        "vllm": (20.0, "vllm"),
        "llama.cpp": (2.0, "llama.cpp"),
        "trtllm": (20.0, "llama.cpp"),
    }
    found = compare_side_by_side(reader, Selection(model=("bert-base",), hardware=("cpu", "cuda")), "hardware")
    ratios = {row["backend"]: row["ratio"] for row in found.rows if row["hardware"] == "cuda"}
    assert (ratios["vllm"], ratios["llama.cpp"]) == (0.05, 0.5)
    assert ratios["trtllm"] == 0.05, "to the fastest, as its speedup is"
    assert all(row["baseline"] for row in found.rows if row["hardware"] == "cpu" and row["backend"] != "trtllm")


def test_a_baseline_is_the_fastest_of_the_closest_for_ratios_and_speedups(tmp_path: Path) -> None:
    cpu = {"hardware": "cpu", "device_id": "imported:cpu", "device_name": "cpu", "backend": "vllm"}
    slow = [{**cpu, "threads": 1, "latency_mean_ms": milliseconds} for milliseconds in (79.0, 80.0, 81.0)]
    reader = _imported(
        tmp_path,
        [*slow, {**cpu, "threads": 8, "latency_mean_ms": 40.0}, {"backend": "vllm", "latency_mean_ms": 4.0}],
    )
    [pair] = speedups(read_cells(reader, Selection()))
    found = compare_side_by_side(reader, Selection(model=("bert-base",), hardware=("cpu", "cuda")), "hardware")
    [ratio] = [row["ratio"] for row in found.rows if row["hardware"] == "cuda"]
    assert (pair["speedup"], ratio) == (10.0, 0.1)
