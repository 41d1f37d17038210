"""OpenVINO's published tables: which device and input a figure is of, and which figures are passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_platform.hardware.catalog import find_spec
from migrations.detect import detect_format
from migrations.normalize.records import Record, RefusedCell
from migrations.sources.documents import Content, parse

FIXTURES = Path(__file__).parents[2] / "data" / "formats"


def read(name: str, path: str, fixture: str | None = None) -> tuple[dict[str, Record], dict[str, str]]:
    """The records of a fixture as if it lay at `path`, and the rules that refuse its other cells, by pointer."""
    document = parse(Content.of((FIXTURES / (fixture or f"{name}.csv")).read_bytes(), path))
    found = detect_format(document)
    assert found is not None
    assert found.name == name
    cells = list(found.parse(document))
    records = {cell.pointer: cell for cell in cells if isinstance(cell, Record)}
    return records, {cell.pointer: cell.rule for cell in cells if isinstance(cell, RefusedCell)}


class TestBenchmarkData:
    records, refused = read("openvino_benchmark_data", "/old/OV-2024.3-benchmark-data.csv")

    def test_a_latency_is_of_one_request_with_the_input_that_the_pages_state(self) -> None:
        result = self.records["/1/Latency_int8"].result
        assert (result.model_id, result.sequence_length, result.batch_size) == ("bert-large", 384, 1)
        assert (result.hardware, result.backend, result.precision) == ("openvino", "openvino", "int8")
        assert (result.latency_p50_ms, result.throughput_items_per_s) == (25.5, None)
        assert (result.provenance, result.environment["openvino"]) == ("imported", "2024.3.0")

    def test_each_precision_has_a_latency_of_its_own(self) -> None:
        result = self.records["/1/Latency_BF16"].result
        assert (result.precision, result.latency_p50_ms) == ("bfloat16", 31.5)

    @pytest.mark.parametrize(
        ("pointer", "name", "kind"),
        [
            ("/1/Latency_int8", "Intel Xeon Platinum 8480+", "cpu"),
            ("/2/Latency_int8", "Intel Core Ultra 7 165H NPU", "npu"),
            ("/7/Latency_int8", "Intel Core i7-1185G7 iGPU", "gpu"),
            ("/12/Latency_int4", "Intel Data Center GPU Flex 170", "gpu"),
        ],
    )
    def test_the_parts_of_a_processor_are_devices_of_the_catalog(self, pointer: str, name: str, kind: str) -> None:
        assert self.records[pointer].result.device_name == name
        spec = find_spec(name)
        assert spec is not None
        assert spec.kind == kind

    def test_the_size_of_an_image_is_kept(self) -> None:
        assert self.records["/7/Latency_int8"].result.original["image_size"] == 1200

    def test_a_token_has_a_time_and_the_whole_answer_none(self) -> None:
        result = self.records["/12/Latency_int4"].result
        assert (result.mode, result.sequence_length, result.output_tokens) == ("generation", 1024, 128)
        assert (result.time_per_output_token_ms, result.latency_p50_ms) == (25.5, None)
        assert {pointer for pointer in self.records if pointer.startswith("/12/")} == {
            "/12/Latency_int8",
            "/12/Latency_FP16",
            "/12/Latency_int4",
        }

    def test_what_the_table_contradicts_is_refused(self) -> None:
        """7 ms one at a time are 143 a second, where the highest rate is 2.5; two parts of a processor differ."""
        assert self.refused == {
            "/6/Latency_int8": "contradicted_figure",
            "/8/Latency_int8": "copied_figure",
            "/9/Latency_int8": "copied_figure",
            "/15/Latency_int8": "unit_unknown",
            "/15/Latency_FP16": "unit_unknown",
        }

    def test_processor_and_gpu_together_are_passed_over(self) -> None:
        assert not [pointer for pointer in self.records if pointer.startswith("/3/")]


class TestGraphs:
    records, refused = read("openvino_benchmark_data", "/old/graph-data-ov.json", "openvino_graphs.json")

    def test_records_of_json_are_rows_of_the_table(self) -> None:
        result = self.records["/1/Latency_int8"].result
        assert (result.device_name, result.model_id) == ("Intel Core Ultra 9 288V NPU", "resnet-50")
        assert (result.precision, result.latency_p50_ms, result.environment) == ("int8", 0.75, {})

    def test_a_token_with_narrower_weights_does_not_take_longer(self) -> None:
        assert self.refused == {"/2/Latency_int8": "contradicted_figure", "/3/Latency_int8": "unit_unknown"}
        result = self.records["/2/Latency_FP16"].result
        assert (result.mode, result.time_per_output_token_ms) == ("generation", 125)
        assert set(self.records) == {"/1/Latency_int8", "/2/Latency_FP16"}


class TestLlmTable:
    records, refused = read("openvino_llm_table", "/old/llm_models_7-155H.csv")

    def test_a_row_is_a_whole_answer_on_the_built_in_gpu(self) -> None:
        result = self.records["/0"].result
        assert (result.device_name, result.hardware) == ("Intel Core Ultra 7 155H iGPU", "openvino")
        assert (result.mode, result.batch_size) == ("generation", 1)
        assert (result.sequence_length, result.output_tokens) == (1024, 128)
        assert (result.time_to_first_token_ms, result.time_per_output_token_ms) == (1000, 50)
        assert result.latency_mean_ms == 1000 + 127 * 50

    def test_quantized_files_of_a_model_are_that_model(self) -> None:
        names = {pointer: (self.records[pointer].result.model_id, self.records[pointer].result.precision)
                 for pointer in ("/0", "/1")}  # fmt: skip
        assert names == {"/0": ("llama-2-7b", "int4"), "/1": ("llama-2-7b", "int8")}

    def test_rows_that_waited_for_memory_and_other_models_are_refused(self) -> None:
        """60 ms a token where a short prompt has 25; 170 where 8 bits have 40; 2,800 ms where 4 bits have 1,100."""
        assert self.refused == {
            "/3": "waited_for_memory",
            "/5": "waited_for_memory",
            "/6": "waited_for_memory",
            "/7": "other_model",
            "/8": "other_model",
            "/9": "precision_unknown",
            "/10": "figure_missing",
        }

    @pytest.mark.parametrize(
        ("file", "device"),
        [
            ("llm_models_7-358H.csv", "Intel Core Ultra X7 358H iGPU"),
            ("llm_models_7-268V.csv", "Intel Core Ultra 7 268V iGPU"),
            ("table.csv", None),
        ],
    )
    def test_the_processor_is_in_the_name_of_the_file(self, file: str, device: str | None) -> None:
        records, _ = read("openvino_llm_table", f"/old/{file}")
        assert records["/0"].result.device_name == device
        assert device is None or find_spec(device) is not None
