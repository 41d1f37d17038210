"""Documents as other versions and other runs would write them: renamed keys, other nesting, texts for numbers.

A figure the document has must come out in its unit, whatever its key is called; what nobody can tell stays refused.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from accel_platform.events.types import ResultRecorded
from factories import payloads
from migrations.detect import detect_format
from migrations.normalize.canonical_names import model_named
from migrations.normalize.field_aliases import batch_in, length_in, named_figures
from migrations.normalize.units import RecordedTime, moment
from migrations.pipeline.document_reader import Reading, read_document
from migrations.sources.documents import Content, parse
from migrations.suspicion.claims import NO_CLAIMS


def reading(value: Any, path: str = "/old/made.json") -> Reading:
    text = value if isinstance(value, str) else json.dumps(value)
    return read_document(parse(Content.of(text.encode(), path)), NO_CLAIMS)


def results(value: Any, path: str = "/old/made.json") -> list[ResultRecorded]:
    return [payload for payload in payloads(reading(value, path)) if isinstance(payload, ResultRecorded)]


def all_parts(value: Any) -> list[Any]:
    return list(payloads(reading(value)))


def runner(cell: Any, key: str = "batch_4_seq_128") -> dict[str, Any]:
    entry = {"status": "completed", "benchmark_results": {key: cell}}
    return {"system_info": {}, "benchmarks": {"embedding": {"bert-base-uncased": {"cpu": entry}}}}


class TestRunner:
    @pytest.mark.parametrize(
        ("cell", "latency_ms", "throughput"),
        [
            ({"avg_latency": 0.25, "throughput": 16}, 250, 16),
            ({"success": True, "mean_latency": 0.25}, 250, None),
            ({"status": "success", "latency_ms": 250}, 250, None),
            ({"status": "passed", "latency": {"mean": 0.25, "p95": 0.5}, "throughput": {"mean": 16}}, 250, 16),
            ({"status": "completed", "avg_latency": "0.25", "throughput": "16"}, 250, 16),
            ({"status": "completed", "avg_latency": "250 ms", "throughput": "16 items/s"}, 250, 16),
            ({"status": "completed", "avg_latency": "N/A", "throughput": 16}, None, 16),
        ],
    )
    def test_a_cell_by_other_names(self, cell: Any, latency_ms: float | None, throughput: float | None) -> None:
        (result,) = results(runner(cell))
        assert (result.status, result.latency_mean_ms, result.throughput_items_per_s) == ("ok", latency_ms, throughput)
        assert (result.batch_size, result.sequence_length) == (4, 128)

    def test_a_figure_in_any_notation_is_read_to_the_digit(self) -> None:
        notations = ("0.25", "2.5e-1", "250 ms", "250ms", "250000 µs", "250,000 us", "250000000 ns", "0.25 s",
                     {"mean_s": 0.25}, {"mean_us": 250_000}, {"value": 250, "unit": "ms"})  # fmt: skip
        for latency in notations:
            (result,) = results(runner({"latency": latency, "throughput": "1,234.5"}))
            assert (result.latency_mean_ms, result.throughput_items_per_s) == (250, 1234.5), latency
        rows = [
            {"model_name": "bert", "hardware_type": "cpu", "average_latency_ms": text} for text in ("250", "250 ms")
        ]
        assert [row.latency_mean_ms for row in results(rows)] == [250, 250]

    def test_what_is_no_figure_is_kept_in_quarantine(self) -> None:
        unreadable: tuple[Any, ...] = (-0.25, True, "0,25", "0,25 s", "fast", {"mean": -1}, [0.25, None], [0.25, -1])
        for latency in unreadable:
            cell = runner({"latency": latency, "throughput": 16})
            result, quarantined = all_parts(cell)
            assert (result.status, result.latency_mean_ms, result.throughput_items_per_s) == ("ok", None, 16), latency
            assert (quarantined.rule, json.loads(quarantined.content)["latency"]) == ("unreadable_figure", latency)
            assert "1 cell refused, unreadable_figure" in str(reading(cell).entry.reason)

    def test_a_cell_with_nothing_readable_is_no_failure(self) -> None:
        (quarantined,) = all_parts(runner({"avg_latency": "0,25"}))
        assert "nothing else of the cell is known" in quarantined.reason
        failed, _ = all_parts(runner({"avg_latency": -1, "status": "failed", "error": "no memory"}))
        assert (failed.status, failed.reason) == ("failed", "no memory")
        nothing: tuple[Any, ...] = ("N/A", None, "NaN", "", float("inf"), [], 0)
        for missing in nothing:
            assert len(all_parts(runner({"avg_latency": missing, "throughput": 16}))) == 1, missing

    def test_an_error_without_a_status_is_a_failure(self) -> None:
        (result,) = results(runner({"error": "out of memory"}))
        assert (result.status, result.reason) == ("failed", "out of memory")

    def test_families_may_be_left_out(self) -> None:
        entry = {"status": "completed", "benchmark_results": {"batch_1": {"avg_latency": 0.25}}}
        (result,) = results({"system_info": {}, "benchmarks": {"bert-base-uncased": {"cuda": entry}}})
        assert (result.model_id, result.hardware, result.latency_mean_ms) == ("bert-base", "cuda", 250)

    def test_a_run_of_nothing_is_no_result(self) -> None:
        entry = reading({"system_info": {}, "benchmarks": {}}).entry
        assert (entry.outcome, entry.records) == ("not_results", 0)


def test_a_name_of_any_script_is_a_name_of_its_own() -> None:
    for text, slug in (
        ("Модель №5", "модель-5"),
        ("通义千问-7B", "通义千问-7b"),
        ("modèle_x", "modèle-x"),
        ("my_Net v2", "my-net-v2"),
    ):
        named = model_named(text)
        assert named is not None
        assert named.model_id == slug


class TestOldShapes:
    def test_batch_sizes_as_a_list(self) -> None:
        cells = [{"batch_size": 2, "latency_ms": 12, "throughput": 166}, {"batch_size": 4, "error": "out of memory"}]
        first, second = results({"model": "BERT", "hardware": "CUDA", "batch_sizes": cells})
        assert (first.batch_size, first.latency_mean_ms, first.hardware) == (2, 12, "cuda")
        assert (second.batch_size, second.status, second.reason) == (4, "failed", "out of memory")

    def test_an_error_beside_the_success_of_the_whole_is_a_failure(self) -> None:
        cells = {"1": {"avg_latency_ms": 5.5}, "64": {"error": "out of memory"}}
        small, large = results({"model": "bert", "hardware": "cpu", "success": True, "batch_results": cells})
        assert (small.status, large.status, large.reason) == ("ok", "failed", "out of memory")

    def test_a_batch_size_that_is_none_refuses_its_cell(self) -> None:
        cells = {
            "4": {"avg_latency_ms": 5.5},
            "0": {"avg_latency_ms": 3.5},
            "x": {"avg_latency_ms": 2.5},
            "8": "failed",
        }
        result, *refused = all_parts({"model": "bert", "hardware": "cpu", "batch_results": cells})
        assert (result.batch_size, [part.pointer for part in refused]) == (4, [f"/batch_results/{k}" for k in "0x8"])

    def test_an_outcome_in_words_is_one(self) -> None:
        for word, status in (("yes", "ok"), ("True", "ok"), (1, "ok"), ("no", "failed"), (False, "failed")):
            (result,) = results({"stats": {}, "model_results": {"bert": {"cpu": word}}})
            assert result.status == status, word

    def test_times_with_a_unit_or_below_zero_in_tests_of_seconds(self) -> None:
        times = {"pipeline_cpu": {"avg_time": "50.5 ms"}, "pipeline_cuda": {"avg_time": -1}}
        outcomes = {name: {"success": True} for name in times}
        cpu, cuda, refused = all_parts({"metadata": {"model": "bert"}, "results": outcomes, "performance": times})
        assert (cpu.latency_mean_ms, cuda.latency_mean_ms, refused.rule) == (50.5, None, "unreadable_figure")
        load = runner({"avg_latency": 0.25})
        load["benchmarks"]["embedding"]["bert-base-uncased"]["cpu"]["model_load_time"] = "1500 ms"
        assert [result.load_ms for result in results(load)] == [1500]
        for unread in ("12,5", "-5 ms", "7.5 parsecs", -1):
            test = {"metadata": {"model": "bert"}, "results": {}, "performance": {"pipeline_cpu": {"avg_time": unread}}}
            assert [part.rule for part in all_parts(test)] == ["unreadable_figure"], unread
        examples = [{"platform": "CPU", "elapsed_time": time} for time in ("12.5 ms", 0.25, -1)]
        body = {"status": {"cpu_handler": "Success (REAL)"}, "examples": examples, "metadata": {"model_name": "bert"}}
        *read, refused = all_parts(body)
        assert ([result.latency_mean_ms for result in read], refused.rule) == ([12.5, 250], "unreadable_figure")

    def test_other_figures_of_a_cell_stay_as_stated(self) -> None:
        other = {"tokens_per_second": 80.5, "memory": "512 MB", "total_time_ms": 55, "items_per_minute": 60}
        cell = {"latencyMs": 5.5, **other}
        platform = {"model": "bert", "platform": "webgpu", "metrics": {**cell, "load_time_ms": 9}}
        shapes = (runner({"Latency (ms)": 5.5, **other}), platform,
                  {"model": "bert", "hardware": "cpu", "batch_sizes": {"1": {**cell, "success": True}}},
                  {"model": "bert", "hardware": "cpu", "batch_results": {"1": cell}})  # fmt: skip
        for shape in shapes:
            (result,) = results(shape)
            assert (result.latency_mean_ms, result.original["stated"]) == (5.5, other)

    def test_a_batch_of_none_is_named(self) -> None:
        rows = [{"model_name": "bert", "hardware_type": "cpu", "average_latency_ms": 5.5, "batch_size": size}
                for size in (0, "0", -1, 2.5, "x", 4, "8", None)]  # fmt: skip
        parts = all_parts(rows)
        assert [p.batch_size for p in parts if isinstance(p, ResultRecorded)] == [None] * 5 + [4, 8, None]
        assert sum("batch_size" in p.reason for p in parts if not isinstance(p, ResultRecorded)) == 5

    def test_a_card_of_a_run_that_failed(self) -> None:
        card = {"model": "BERT", "hardware": "ROCm", "batch_sizes": {}, "compatible": False, "error": "no device"}
        (result,) = results(card)
        assert (result.status, result.reason, result.hardware) == ("failed", "no device", "rocm")

    def test_a_direct_benchmark_that_failed_at_once(self) -> None:
        (result,) = results({"model": "gpt2", "hardware": "cuda", "success": False, "error": "no CUDA"})
        assert (result.status, result.reason) == ("failed", "no CUDA")

    def test_a_browser_result_without_status_or_metrics(self) -> None:
        value = {"model": "bert", "platform": "webgpu", "inference_time_ms": 80, "throughput": 12.5, "simulated": True}
        (result,) = results(value)
        assert (result.status, result.latency_mean_ms, result.provenance) == ("ok", 80, "simulated")

    def test_rows_with_other_columns(self) -> None:
        text = "model,hardware,batch_size,latency_p95_ms,throughput,peak_memory_gb\nbert,cuda,1,10.0,100.0,0.5\n"
        (result,) = results(text)
        assert (result.latency_p95_ms, result.throughput_items_per_s, result.memory_peak_mib) == (10, 100, 512)

    def test_the_suites_table_of_a_run_that_worked(self) -> None:
        text = "model_id,hardware,batch_size,sequence_length,avg_latency_ms,fps,error\nbert,cuda,2,16,12.5,160,\n"
        (result,) = results(text)
        assert (result.latency_mean_ms, result.throughput_items_per_s, result.status) == (12.5, 160, "ok")

    def test_a_text_in_place_of_a_family_is_refused(self) -> None:
        families = {"text": "failed", "audio": {"hardware_compatibility": {"cpu": {"compatible": False}}}}
        assert "unexpected_shape" in (reading({"model_families": families}).entry.reason or "")

    def test_times_of_a_skill_test_as_texts(self) -> None:
        body = {"cuda_init": "Success (REAL)", "cuda_generation_time": "0.25", "cuda_tokens_per_second": "40.0"}
        (result,) = results({**body, "metadata": {"model_name": "gpt2"}})
        assert (result.latency_mean_ms, result.throughput_tokens_per_s, result.mode) == (250, 40, "generation")

    def test_how_long_a_failure_took_is_kept_and_is_no_latency(self) -> None:
        example = {"platform": "CUDA", "output": "Error: no kernel", "elapsed_time": 0.25}
        body = {"status": {"cuda_init": "Success"}, "examples": [example], "metadata": {"model_name": "gpt2"}}
        failed = next(result for result in results(body) if result.status == "failed")
        assert (failed.latency_mean_ms, failed.original["stated"]["elapsed_time"]) == (None, 0.25)


class TestFiguresByName:
    @pytest.mark.parametrize(
        ("content", "field", "figure"),
        [
            ({"p95_latency_ms": 3}, "latency_p95_ms", 3),
            ({"latency_90p_s": 0.5}, "latency_p90_ms", 500),
            ({"inference_time_us": 1500}, "latency_mean_ms", 1.5),
            ({"latency": "1,234.5 ms"}, "latency_mean_ms", 1234.5),
            ({"latencies": [0.5, 0.25]}, "samples_ns", (500_000_000, 250_000_000)),
            ({"samples_per_second": "80 samples/s"}, "throughput_items_per_s", 80),
            ({"peak_memory_gb": 2}, "memory_peak_mib", 2048),
            ({"memory_usage_bytes": 1_048_576}, "memory_peak_mib", 1),
            ({"memory_mb": "512 KB"}, "memory_peak_mib", 0.5),
        ],
    )
    def test_units_stand_in_the_key_or_the_text(self, content: Any, field: str, figure: Any) -> None:
        assert named_figures(content, seconds=True) == {field: figure}

    @pytest.mark.parametrize(
        "content",
        [{"latency_ms": 0}, {"latency": "fast"}, {"latency": True}, {"throughput": "3 cups"}, {"latency_budget": 3},
         {"latency_ms": -1}, {"load_latency_ms": 3}, {"latency_ms": "nan"}, {"memory": 512}],
    )  # fmt: skip
    def test_what_is_no_figure_is_none(self, content: Any) -> None:
        assert named_figures(content, seconds=False) == {}

    @pytest.mark.parametrize(
        ("key", "batch", "length"),
        [("batch_4_seq_128", 4, 128), ("batch_size_8", 8, None), ("b4_s128", 4, 128), ("16", 16, None),
         ("batch_2_img_224x224", 2, None), ("batch_8_seq_64_fp16", 8, 64), ("warmup", None, None), ("all", None, None),
         ("batch_0", None, None)],
    )  # fmt: skip
    def test_shapes_stand_in_keys(self, key: str, batch: int | None, length: int | None) -> None:
        assert (batch_in(key), length_in(key)) == (batch, length)


class TestTimes:
    @pytest.mark.parametrize(
        "text",
        ["1741204639123", 1741204639123456789, "2025-03-05T19:57:19.123 UTC", "20250305T195719.123Z"],
    )
    def test_of_a_known_zone(self, text: Any) -> None:
        found = moment(text).at
        assert found is not None
        assert found.replace(microsecond=0) == datetime(2025, 3, 5, 19, 57, 19, tzinfo=UTC)

    @pytest.mark.parametrize(
        "text",
        ["2025/03/05 19:57:19", "2025-03-05_19-57-19", "20250305-195719", "Wed Mar  5 19:57:19 2025"],
    )
    def test_of_no_zone(self, text: str) -> None:
        assert moment(text) == RecordedTime(local=datetime.fromisoformat("2025-03-05T19:57:19"))

    def test_the_form_of_e_mail(self) -> None:
        assert moment("Wed, 05 Mar 2025 19:57:19 GMT").at == datetime(2025, 3, 5, 19, 57, 19, tzinfo=UTC)

    @pytest.mark.parametrize("text", ["03/05/2025 19:57:19", "2025-13-45_10-00-00", "Wed Mar 41 19:57:19 2025", 12, -5])
    def test_what_is_no_time_or_two(self, text: Any) -> None:
        assert not moment(text)


class TestIdentity:
    def test_an_unknown_hub_id_is_not_the_default_of_its_script(self) -> None:
        named = model_named("meta-llama/Llama-2-34b-hf", "hf_llama")
        assert named is not None
        assert (named.model_id, named.family) == ("meta-llama-llama-2-34b-hf", "llama")

    def test_a_word_gives_way_to_a_name_that_is_known(self) -> None:
        named = model_named("my model", "bert-base-uncased")
        assert named is not None
        assert named.model_id == "bert-base"


RUN = {"backend": "vllm", "model_id": "gpt2", "request_throughput": 5.0, "mean_ttft_ms": 20.0, "completed": 9}


class TestCollections:
    @pytest.mark.parametrize(
        ("value", "pointers"),
        [
            ({"results": [RUN, RUN]}, ["/results"]),
            ({"first": RUN, "second": {**RUN, "completed": 8}}, ["/first", "/second"]),
            ({"gpu": "Example", "runs": {"a": {"report": RUN}}}, ["/runs/a/report"]),
        ],
    )
    def test_known_documents_inside_an_unknown_one(self, value: Any, pointers: list[str]) -> None:
        found = reading(value)
        assert found.entry.outcome == "imported"
        assert [part.pointer for part in found.embedded] == pointers

    def test_what_stands_beside_them_is_kept(self) -> None:
        found = reading({"run": RUN, "notes": {"who": "me"}})
        assert "/notes" in (found.entry.reason or "")

    def test_nothing_known_inside_is_no_collection(self) -> None:
        value = {"a": {"b": 1, "c": 2}, "d": [{"e": 1, "f": 2}]}
        assert detect_format(parse(Content.of(json.dumps(value).encode(), "/x"))) is None
