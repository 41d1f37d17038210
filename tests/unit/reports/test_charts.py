"""Charts of rows: specifications that Vega-Lite knows, nothing unlike mixed, nothing fetched, nothing hidden."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_platform.analysis.query.cells import group_comparable, read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.summaries.baselines import speedups
from accel_platform.analysis.summaries.efficiency import efficiencies
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.hardware.catalog import find_spec
from accel_platform.reports.charts import curves, fields, ranked, times
from accel_platform.reports.charts.parts import NothingToDraw, figure_with_spread, grouping_key, row_labels
from accel_platform.reports.charts.registry import CHARTS, chart, select_drawable
from accel_platform.reports.charts.render import kind_of, page, render, specification, svg
from accel_platform.reports.charts.theme import BACKGROUND, PALETTE, SHAPES
from accel_platform.warehouse.reader import Reader
from made_cells import HOSTILE, cell
from predictor_world import CPU, MODELS, described, result, verified, world


def marks(chart: Any) -> list[dict[str, Any]]:
    """Every row that a chart draws."""
    found: list[dict[str, Any]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(row for row in value.get("values") or () if isinstance(row, dict))
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    spec = chart.to_dict()  # Altair holds it against the schema
    look({key: value for key, value in spec.items() if key != "config"})
    found += [row for rows in spec.get("datasets", {}).values() for row in rows]
    return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(world(tmp_path_factory.mktemp("drawing")))


@pytest.fixture(scope="module")
def namesakes(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """One model on two processors of one name."""
    events = [
        payload
        for number in (1, 2)
        for hardware in ("cpu", "openvino")
        for payload in (
            result(MODELS[0], hardware, 1, device_id=f"cpu-{number}", scale=number),
            verified(MODELS[0], hardware, 1).model_copy(update={"device_id": f"cpu-{number}"}),
        )
    ]
    return Reader(world(tmp_path_factory.mktemp("namesakes"), [described(MODELS[0]), *events]))


@pytest.mark.parametrize(
    "name",
    [
        "latency",
        "throughput",
        "memory",
        "hardware",
        "family",
        "speedup",
        "heatmap",
        "category",
        "efficiency",
        "roofline",
        "noise",
        "trend",
    ],
)
def test_every_chart_is_of_the_schema_and_says_what_it_rests_on_or_why_it_is_not_there(
    reader: Reader, name: str
) -> None:
    if name in _NOT_THERE:
        with pytest.raises(NothingToDraw, match="accel chart --list"):
            chart(name, reader, Selection())
        return
    drawn = chart(name, reader, Selection())
    assert drawn.to_dict(), "Altair holds it against the schema"
    spec = specification(drawn)
    assert spec["description"].startswith(spec["title"]["text"])
    assert any("result" in line and "measured" in line for line in spec["title"]["subtitle"])
    assert any(line.startswith("Snapshot ") for line in spec["title"]["subtitle"])
    told = [row["tip"] for row in marks(drawn) if "tip" in row]
    assert told
    assert all("run" in tip and ("measured" in tip or "imported" in tip) for tip in told)
    axes = re.findall(r'"title": "([^"]*\([^"]*\))"', json.dumps(spec))
    assert axes or name == "heatmap", "a unit on an axis"


def _competing() -> list[dict[str, Any]]:
    """Rows with the fields that any chart reads, of more lines, places and models than any of them shows."""
    places = [(f"device-{number}", hardware) for number in range(9) for hardware in ("cpu", "cuda", "openvino")]
    at = datetime(2026, 11, 1, tzinfo=UTC)
    return [
        {
            **cell(
                model_id=f"model-{model}",
                model_family=f"family-{model % 9}",
                hardware=hardware,
                device_id=device,
                device_name=f"Name of {device}",
                batch_size=batch,
                latency_ms=1.0 + (number * 7 + model * 3 + batch) % 5,
                modality=("text", "vision")[model % 2],
                checked=None,
                occurred_at=at,
            ),
            "speedup": 2.0,
            "speedup_low": None,
            "speedup_high": None,
            "spread": "spread unknown",
            "baseline": "cpu on the same device",
            "baseline_device_id": device,
            "items_per_j": 3.0,
            "items_per_usd": 4.0,
            **{f"{figure}_{limit}": None for figure in ("items_per_j", "items_per_usd") for limit in ("low", "high")},
            "how": "counted",
            "rent": "1 USD/h",
            "rent_source": "a price list",
            "achieved_flops_per_s": 1e12,
            "intensity_flops_per_byte": 30.0,
            "peak_flops_per_s": None,
            "bandwidth_bytes_per_s": None,
            "share": None,
            "unavailable": f"no peak rate of {device} is published",
            "lacking": f"lack {number % 8}",
            "predicted_ms": 2.0 + number,
            "measured_ms": 2.0,
            "series": number,
            "order": model + 20 * batch,
            "cell": number,
            "cells": len(places),
            "result_id": f"{model:04}-{batch}",
            "run_id": f"run-{model}",
            "commit": None,
            "median_ms": 2.0,
            "low_ms": None,
            "high_ms": None,
            "q25_ms": 1.0,
            "q75_ms": 3.0,
            "level_ms": 2.0,
            "shift_percent": None,
            "shift_p": None,
            "samples_ms": [1.0, 2.0, 3.0],
        }
        for number, (device, hardware) in enumerate(places)
        for model in range(10)
        for batch in (1, 2)
    ]


@pytest.mark.parametrize("name", CHARTS)
def test_equal_rows_make_equal_charts_in_whichever_order_they_come(name: str) -> None:
    rows, drawn = _competing(), set()
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        # Held to the schema only where the test above draws nothing, because that takes half of the time.
        drawn.add(json.dumps(CHARTS[name].draw(rows, []).to_dict(validate=name in _NOT_THERE)))
    assert len(drawn) == 1


def test_what_is_not_shown_is_asked_for_by_filters_not_by_options_of_a_command() -> None:
    notes = [
        line
        for drawing in CHARTS.values()
        for line in specification(drawing.draw(_competing(), []))["title"]["subtitle"]
    ]
    assert sum("filter by" in note for note in notes) > 5
    assert [note for note in notes if "--" in note] == []


def test_of_lines_that_compete_the_fastest_are_drawn() -> None:
    rows = [cell(device_id=f"cpu-{n}", device_name=f"CPU {n}", latency_ms=float(n)) for n in range(20, 0, -1)]
    lines = {row["line"] for row in marks(curves.curves("latency", rows, [])) if "line" in row}
    assert lines == {f"CPU {n}" for n in range(1, len(PALETTE) + 1)}


def test_cells_come_in_one_order_and_name_what_is_the_same_every_time(tmp_path: Path) -> None:
    events = [
        result(MODELS[0], hardware, 1, device=CPU, device_id=f"cpu-{number}", provenance=provenance)
        for number in range(12)
        for hardware in ("cpu", "openvino")
        for provenance in ("measured", "imported")
    ]
    shared = Reader(world(tmp_path, [described(MODELS[0]), *events]))
    cells = read_cells(shared, Selection(), evidence=False)
    places = [(row["hardware"], row["provenance"], row["device_id"]) for row in cells]
    assert places == sorted(places)


def test_what_takes_a_file_apart_is_written_otherwise(tmp_path: Path) -> None:
    rows = [cell(model_id=HOSTILE, device_name=HOSTILE, batch_size=size) for size in (1, 2)]
    drawn = curves.curves("latency", rows, [])
    text = page(drawn)
    assert HOSTILE not in text
    assert "onerror=alert(1)>" not in text.replace("\\u003e", "")
    assert not re.search(r"""(src|href|url\()\s*=?\s*["']?https?:""", text.rpartition("</head>")[2])
    head, _, body = text.rpartition("</head>")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", body)
    assert not re.search(r"<(link|img|iframe)[^>]+(src|href)=", head.partition("<script>")[0])
    assert "<img" not in svg(drawn)
    assert HOSTILE not in svg(drawn)


def test_each_kind_is_what_it_says() -> None:
    drawn = curves.curves("throughput", [cell(), cell(batch_size=4)], [])
    assert json.loads(render(drawn, "json"))["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert render(drawn, "png", "dark").startswith(b"\x89PNG")
    assert render(drawn, "svg").startswith(b"<svg")
    assert b"<title>bert-base, cpu, Test CPU, inference" in render(drawn, "svg"), "marks say their figures"
    assert "currentColor" in svg(drawn), "letters take the colour of the page"
    with pytest.raises(InvalidInput, match=r"\.png"):
        kind_of(Path("x.bmp"))


def test_charts_are_converted_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = [0], [0]

    def watched(convert: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            running[0] += 1
            most[0] = max(most[0], running[0])
            try:
                time.sleep(0.01)
                return convert(*arguments, **options)
            finally:
                running[0] -= 1

        return run

    for name in ("vegalite_to_svg", "vegalite_to_png", "vega_to_scenegraph"):
        monkeypatch.setattr(vl_convert, name, watched(getattr(vl_convert, name)))
    drawn = ranked.hardware([cell(model_id="bert-tiny", hardware="cpu")], [])
    with ThreadPoolExecutor(4) as pool:
        pictures = list(pool.map(lambda kind: render(drawn, kind), ("svg", "png", "svg", "png")))
    assert all(pictures)
    assert most == [1]


def test_texts_keep_the_width_they_are_laid_out_with_in_any_font() -> None:
    """As wide as Arial is: of its em a digit takes 0.556, and at 11 pixels 6.1."""
    rows = [cell(device_name=f"A <wide> name {number} " * 3) for number in range(2)]
    drawn = ET.fromstring(svg(ranked.hardware(rows, [])))
    texts = [element for element in drawn.iter() if element.tag.endswith(("text", "tspan")) and element.text]
    assert any(text.text.startswith("A <wide> name 0") for text in texts)
    widths = {text.text: float(text.attrib["textLength"]) for text in texts}
    assert widths["0"] == 6.1
    assert widths["latency of a batch (ms)"] == 111.3


def test_charts_with_long_names_fit_on_a_page() -> None:
    names = [f"Some Long Vendor's Accelerator of {year}" for year in range(2015, 2027)]
    rows = [
        cell(model_id=model, model_family=model, device_name=name, device_id=name)
        for name in names
        for model in ("bert-base", "vit-base")
    ]
    widths = {
        draw: int(ET.fromstring(svg(draw(rows, []))).attrib["width"]) for draw in (ranked.hardware, fields.heat_map)
    }
    assert widths[ranked.hardware] < 1050
    assert widths[fields.heat_map] < 1250


def test_colors_are_told_apart_by_who_sees_no_red_or_no_green_and_on_either_ground() -> None:
    def linear(colour: str) -> np.ndarray:
        value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)

    def contrast(one: str, other: str) -> float:
        low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
        return (high + 0.05) / (low + 0.05)

    def lab(light: np.ndarray) -> np.ndarray:
        xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        ratio = xyz @ np.clip(light, 0, 1) / [0.9505, 1.0, 1.089]
        f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    # Machado, Oliveira and Fernandes (2009), severity 1: no red, no green.
    seen = (
        np.eye(3),
        np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
        np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    )
    for one in PALETTE:
        assert min(contrast(one, "#ffffff"), contrast(one, BACKGROUND["dark"] or "")) >= 3.0, one
    for one, other in itertools.combinations(PALETTE, 2):
        apart = min(float(np.linalg.norm(lab(view @ linear(one)) - lab(view @ linear(other)))) for view in seen)
        assert apart >= 20, (one, other, apart)
    assert len(set(SHAPES.values())) == len(SHAPES)


_NOT_THERE = ("family", "efficiency", "trend")
"""In that world there is one model of each family, no published device, and no third result of a cell."""
CELLS = st.lists(
    st.builds(
        cell,
        model_id=st.sampled_from(["bert-base", "vit-base"]),
        hardware=st.sampled_from(["cpu", "cuda", "openvino"]),
        device_id=st.sampled_from(["cpu-1", "gpu-1"]),
        precision=st.sampled_from(["float32", "int8", None]),
        batch_size=st.sampled_from([1, 2, 8]),
        sequence_length=st.sampled_from([None, 128]),
        provenance=st.sampled_from(["measured", "imported", "emulated"]),
        latency_ms=st.floats(0.01, 1e4),
        results=st.integers(1, 3),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda c: tuple(
        c[k] for k in ("model_id", "hardware", "device_id", "precision", "batch_size", "sequence_length", "provenance")
    ),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(CELLS)
def test_a_mark_is_one_cell_and_a_line_is_of_one_place_and_provenance(cells: list[dict[str, Any]]) -> None:
    drawn = marks(curves.curves("latency", cells, []))
    by_tip = {row["tip"]: row for row in drawn if "tip" in row}
    values = sorted(row["latency_ms"] for row in cells)
    assert all(row["value"] in values for row in by_tip.values()), "no figure is made of several"
    lines: dict[tuple[str, str], set[str]] = {}
    for tip, row in by_tip.items():
        lines.setdefault((row["group"], tip.split(",")[0]), set()).add(row["provenance"])
    assert all(len(provenances) == 1 for provenances in lines.values())
    for group in group_comparable(cells):
        assert len({grouping_key(row, ("model_id", "mode", "batch_size", "sequence_length")) for row in group}) == 1


def test_what_was_measured_is_drawn_before_what_others_state() -> None:
    others = [
        cell(model_id=f"model-{number}", model_family=f"family-{number}", device_id=device, device_name=device,
             provenance="imported")
        for number in range(30) for device in ("phone", "tablet", "watch")
    ]  # fmt: skip
    own = cell(model_id="own", model_family="own-family", device_id="own-device", device_name="own-device")
    for draw in (ranked.hardware, fields.heat_map):
        drawn = [row for row in marks(draw([*others, own], [])) if "tip" in row]
        assert any("own" in row["tip"] for row in drawn), draw.__name__
        assert any("model-" in row["tip"] for row in drawn), draw.__name__


def test_speed_ups_of_two_precisions_are_told_apart() -> None:
    places = (("cpu", 40.0), ("openvino", 10.0))
    cells = [cell(hardware=h, latency_ms=ms, precision=p) for h, ms in places for p in ("float32", "bfloat16")]
    drawn = marks(ranked.speedup(speedups(cells), []))
    assert {row["name"] for row in drawn if "name" in row} == {"float32", "bfloat16"}


@settings(max_examples=50)
@given(CELLS)
def test_a_speed_up_is_of_cells_alike_but_for_the_hardware(cells: list[dict[str, Any]]) -> None:
    alike = ("model_id", "mode", "precision", "batch_size", "sequence_length", "provenance")
    for pair in speedups(cells):
        assert pair["hardware"] != "cpu"
        against = [
            c
            for c in cells
            if c["hardware"] == "cpu"
            and c["latency_ms"] == pair["baseline_latency_ms"]
            and all(c[name] == pair[name] for name in alike)
        ]
        assert against
        assert pair["speedup"] == pytest.approx(pair["baseline_latency_ms"] / pair["latency_ms"])
        own = [
            c
            for c in cells
            if c["hardware"] == "cpu"
            and c["device_id"] == pair["device_id"]
            and all(c[name] == pair[name] for name in alike)
        ]
        assert not own or pair["baseline_device_id"] == pair["device_id"]


def test_a_spread_is_of_results_or_of_one_results_samples_or_unknown() -> None:
    several = figure_with_spread(cell(results=3, latency_low_ms=18.0, latency_high_ms=24.0), "latency")
    assert (several["low"], several["high"]) == (18.0, 24.0)
    single = figure_with_spread(cell(), "latency")
    assert (single["low"], single["high"], single["spread"]) == (19.0, 21.0, "one standard deviation of the samples")
    rate = figure_with_spread(cell(), "throughput")
    assert rate["low"] == pytest.approx(50 * 20 / 21)
    assert figure_with_spread(cell(latency_std_ms=None), "latency")["low"] is None
    assert figure_with_spread(cell(), "memory")["spread"] == "spread unknown"


def test_what_may_not_be_drawn_is_counted() -> None:
    rows = [
        cell(),
        cell(provenance="suspect", results=4),
        cell(verified=False, results=2),
        cell(provenance="imported", verified=None, device_id=None, device_name=None),
    ]
    kept, told = select_drawable(rows, Selection())
    assert [row["provenance"] for row in kept] == ["measured"]
    assert told == [
        "Left out results: 4 that are suspect, 1 whose file names no device, 2 whose outputs were found wrong."
    ]
    assert len(select_drawable(rows, Selection(provenance="suspect"))[0]) == 2
    [unverified] = select_drawable([cell(verified=None)], Selection())[0]
    assert unverified["checked"] == "outputs not compared"


def test_names_in_a_column_are_never_one_name() -> None:
    rows = [
        cell(device_name="A very long name of a device that nobody can read in one line at all"),
        cell(device_name="A very long name of a device that nobody can read in one line at all, really", batch_size=2),
    ]
    names = row_labels(rows, ["hardware", "device_name"])
    assert len(set(names)) == 2
    assert all(name.count("\n") <= 1 for name in names)


@pytest.mark.parametrize("name", ["latency", "hardware", "heatmap", "speedup", "roofline", "noise"])
def test_devices_of_one_name_are_drawn_apart_by_their_ids(namesakes: Reader, name: str) -> None:
    text = json.dumps(chart(name, namesakes, Selection()).to_dict())
    assert all(f"{CPU} (cpu-{number})" in text for number in (1, 2))
    rows = marks(chart(name, namesakes, Selection(device="cpu-1")))
    assert not any("(cpu-1)" in str(row) for row in rows), "one device alone goes by its name"


def test_a_place_of_the_heat_map_is_one_device(namesakes: Reader) -> None:
    rows = [row for row in marks(chart("heatmap", namesakes, Selection(hardware=("cpu",)))) if "column" in row]
    assert len(rows) == len({row["column"] for row in rows}) == 2


def test_energy_is_counted_or_bounded_by_the_published_power() -> None:
    l4 = find_spec("NVIDIA L4")
    assert l4 is not None
    assert l4.tdp_w
    [bounded] = efficiencies([cell(hardware="cuda", device_name="NVIDIA L4")], lambda _: l4)
    assert bounded["items_per_j"] == pytest.approx(50 / l4.tdp_w)
    assert "at least" in bounded["how"]
    [counted] = efficiencies([cell(energy_j_per_item=0.5)], lambda _: l4)
    assert (counted["items_per_j"], counted["how"]) == (2.0, "counted")
    assert ranked.efficiency([bounded, counted | {"device_id": "other"}], [])


def test_a_roof_is_drawn_as_far_as_it_is_known() -> None:
    point = cell(
        achieved_flops_per_s=4e11,
        intensity_flops_per_byte=30.0,
        peak_flops_per_s=1e12,
        share=0.4,
        bound="compute",
        bandwidth_bytes_per_s=1e11,
        unavailable=None,
    )
    both = marks(fields.roofline([point], []))
    assert {row["roof"] for row in both if "roof" in row} == {"peak and bandwidth"}
    alone = point | {"bandwidth_bytes_per_s": None, "bound": None, "unavailable": "no bandwidth of it is published"}
    assert {row["roof"] for row in marks(fields.roofline([alone], [])) if "roof" in row} == {"peak alone"}
    nothing = point | {"achieved_flops_per_s": None, "unavailable": "what it costs is not on record"}
    with pytest.raises(NothingToDraw, match="What it costs is not on record"):
        fields.roofline([nothing], [])


def test_a_trend_marks_its_shift_with_the_commit() -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    rows = [
        {
            **cell(),
            "series": 0,
            "order": n,
            "run_id": f"run-{n}",
            "commit": "a" * 40,
            "occurred_at": at,
            "median_ms": 20.0 + n,
            "low_ms": 19.0,
            "high_ms": 30.0,
            "level_ms": 20.0,
            "shift_percent": 7.5 if n == 3 else None,
            "shift_p": 1e-6,
        }
        for n in range(1, 6)
    ]
    texts = [row["text"] for row in marks(times.trend(rows, [])) if "text" in row]
    assert texts == ["+8 % aaaaaaaa"]


def test_held_out_cells_stand_in_one_panel_per_mode_and_lack() -> None:
    rows = [
        {**cell(mode=mode), "lacking": "the device", "predicted_ms": 22.0, "measured_ms": 20.0}
        for mode in ("inference", "training")
    ]
    spec = fields.predicted(rows, []).to_dict()
    assert len(spec["concat"]) == 2
    with pytest.raises(NothingToDraw, match="accel train"):
        fields.predicted([], [])


@pytest.mark.parametrize("name", ["hardware", "efficiency"])
def test_a_misspelt_filter_is_told_and_not_taken_for_lack_of_results(reader: Reader, name: str) -> None:
    with pytest.raises(NotFound, match="Did you mean bert-base") as refused:
        chart(name, reader, Selection(model=("bert-bse",)))
    assert not isinstance(refused.value, NothingToDraw)


def test_the_registry_knows_every_chart_and_no_other(reader: Reader) -> None:
    with pytest.raises(NotFound, match="roofline"):
        chart("pie", reader, Selection())
    outside = [{**cell(), "lacking": "nothing", "predicted_ms": 21.0, "measured_ms": 20.0}]
    assert CHARTS["predicted"].read is None
    assert chart("predicted", reader, Selection(), outside={"predicted": lambda: outside})
