"""Every suspicion rule: what it must mark, and the honest case beside it that it must not."""

from __future__ import annotations

import json
import random
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.events.types import ResultRecorded
from migrations.detect import detect_format
from migrations.normalize.records import Record
from migrations.sources.documents import Content, parse
from migrations.suspicion.claims import claims_of
from migrations.suspicion.rules import RULES, apply_rules


def judged(value: dict[str, Any]) -> list[ResultRecorded]:
    """The results of a document as the importer would store them."""
    document = parse(Content.of(json.dumps(value).encode(), "/old/made.json"))
    found = detect_format(document)
    assert found is not None
    records = [cell for cell in found.parse(document) if isinstance(cell, Record)]
    return [record.result for record in apply_rules(records, claims_of(document))]


def rules_of(result: ResultRecorded) -> set[str]:
    return {suspicion.rule for suspicion in result.suspicions}


def runner(benchmarks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A hardware-benchmark document: `benchmarks` by model, hardware and cell key, in seconds."""
    return {
        "benchmarks": {
            "family": {
                model: {hw: {"status": "completed", "benchmark_results": cells} for hw, cells in by_hardware.items()}
                for model, by_hardware in benchmarks.items()
            }
        },
        **more,
    }


def cell(seconds: float, batch: int = 1, **more: Any) -> dict[str, Any]:
    return {"status": "completed", "avg_latency": seconds, "throughput": batch / seconds, **more}


def direct(batches: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "gpt2", "hardware": "cpu", "success": True, "batch_results": batches, **more}


def batch(ms: float, size: int = 1, **more: Any) -> dict[str, Any]:
    return {"avg_latency_ms": ms, "throughput_items_per_second": size * 1000 / ms, "batch_size": size, **more}


def test_an_honest_document_stays_imported() -> None:
    results = judged(direct({"1": batch(10.7), "4": batch(31.9, 4)}))
    assert [(r.provenance, r.suspicions) for r in results] == [("imported", ())] * 2


class TestSimulationLabel:
    @pytest.mark.parametrize(
        "label",
        [
            {"is_simulation": True},
            {"simulated": "True"},
            {"implementation_type": "REAL_WEBGPU", "platform_support": {"simulated": True}},
            {"implementation_type": "(MOCK)"},
            {"device_used": "cuda:0 (mock)"},
            {"note": "REAL - simulated for performance testing"},
        ],
    )
    def test_a_label_makes_simulated(self, label: dict[str, Any]) -> None:
        (result,) = judged(direct({"1": batch(10.7)}, **label))
        assert (result.provenance, rules_of(result)) == ("simulated", {"simulation_label"})

    @pytest.mark.parametrize(
        "label",
        [
            {"is_simulation": False},
            {"implementation_type": "REAL"},
            {"note": "not simulated"},
            {"error": "mock object has no attribute 'x'"},
            {"model_note": "hammock-detector"},
        ],
    )
    def test_no_label_no_mark(self, label: dict[str, Any]) -> None:
        (result,) = judged(direct({"1": batch(10.7)}, **label))
        assert result.provenance == "imported"

    def test_a_label_speaks_for_its_own_object_alone(self) -> None:
        real, mocked = judged(direct({"1": batch(10.7), "2": batch(20.9, 2, metrics={"is_simulated": True})}))
        assert (real.provenance, mocked.provenance) == ("imported", "simulated")

    def test_a_label_beside_the_results_goes_no_further_than_their_object(self) -> None:
        document = runner({"gpt2": {"cpu": {"batch_1": cell(0.11)}, "webgpu": {"batch_1": cell(0.08)}}})
        document["benchmarks"]["family"]["gpt2"]["webgpu"]["support"] = {"browser": {"simulated": True}}
        cpu, webgpu = judged(document)
        assert (cpu.provenance, webgpu.provenance) == ("imported", "simulated")

    def test_the_claim_is_not_touched(self) -> None:
        (result,) = judged(direct({"1": batch(10.7)}, is_simulation=True))
        assert (result.status, result.latency_mean_ms) == ("ok", 10.7)


class TestBlanketLabel:
    labels: ClassVar = {
        "simulated_hardware": ["CUDA", "webgpu"],
        "warnings": [{"type": "simulation", "affected_hardware": ["cuda"], "verification_date": "2025-04-10"}],
    }

    def test_it_makes_only_the_listed_hardware_suspect(self) -> None:
        cells = {"cpu": {"batch_1": cell(0.123)}, "cuda": {"batch_1": cell(0.0171)}}
        cpu, cuda = judged(runner({"gpt2": cells}, **self.labels))
        assert (cpu.provenance, cuda.provenance) == ("imported", "suspect")
        (suspicion,) = cuda.suspicions
        assert (suspicion.rule, suspicion.verdict) == ("blanket_label", "suspect")
        assert "2025-04-10" in suspicion.evidence

    def test_it_says_nothing_of_failures(self) -> None:
        (result,) = judged(runner({"gpt2": {"cuda": {"batch_1": {"status": "failed", "error": "x"}}}}, **self.labels))
        assert (result.status, result.suspicions) == ("failed", ())


class TestConstants:
    def test_unlike_models_with_one_figure(self) -> None:
        results = judged(runner({m: {"cuda": {"batch_1": cell(0.05)}} for m in ("gpt2", "t5-small", "bert")}))
        assert all("constant_over_models" in rules_of(r) and r.provenance == "simulated" for r in results)
        assert "bert-base, gpt2, t5-small" in results[0].suspicions[0].evidence

    def test_unlike_models_with_unlike_figures(self) -> None:
        results = judged(runner({"gpt2": {"cuda": {"batch_1": cell(0.05)}}, "t5": {"cuda": {"batch_1": cell(0.0503)}}}))
        assert [r.provenance for r in results] == ["imported"] * 2

    def test_one_latency_for_all_batches(self) -> None:
        results = judged(direct({"1": batch(80.5), "8": batch(80.5, 8), "16": batch(161.3, 16)}))
        assert [rules_of(r) for r in results] == [{"constant_over_batches"}, {"constant_over_batches"}, set()]

    def test_copies_over_hardware(self) -> None:
        cells = {"batch_1": cell(0.0152), "batch_4": cell(0.0311, 4)}
        results = judged(runner({"bert": {"webgpu": cells, "webnn": cells, "rocm": {"batch_1": cell(0.0199)}}}))
        assert ["identical_across_hardware" in rules_of(r) for r in results] == [True] * 4 + [False]

    def test_one_table_under_the_names_of_two_devices(self) -> None:
        def rows(device: str, cells: int, longer: float) -> list[dict[str, Any]]:
            names = {"model": "bert-base", "device": device, "hardware": "cuda", "runtime": "tensorrt"}
            latencies = [1.31 + 0.7 * size for size in range(cells)]
            return [
                {**names, "batch_size": size + 1, "latency_ms": ms * longer, "latency_p95_ms": 1.1 * ms * longer}
                for size, ms in enumerate(latencies)
            ]

        results = judged([*rows("NVIDIA L4", 12, 1), *rows("NVIDIA A30", 12, 1), *rows("NVIDIA T4", 12, 2)])
        assert ["identical_across_devices" in rules_of(r) for r in results] == [True] * 24 + [False] * 12
        assert "NVIDIA A30 and NVIDIA L4" in results[0].suspicions[0].evidence
        proxied = judged([*rows("SA7255P ADP", 12, 1), *rows("QCS8275 (Proxy)", 12, 1)])
        assert ["identical_across_devices" in rules_of(r) for r in proxied] == [False] * 12 + [True] * 12
        few = judged([*rows("NVIDIA L4", 9, 1), *rows("NVIDIA A30", 9, 1)])
        assert all(rules_of(r) == set() for r in few), "some cells agree by chance"

    def test_copied_samples_over_hardware(self) -> None:
        samples = {"batch_1": {"status": "completed", "latencies": [0.1, 0.12, 0.11]}}
        results = judged(runner({"bert": {"mps": samples, "rocm": samples}}))
        assert all(r.provenance == "simulated" for r in results)


class TestRoundFigures:
    @staticmethod
    def card(*cells: tuple[float, float, float]) -> dict[str, Any]:
        names = ("throughput", "latency_ms", "memory_usage_mb")
        sizes = {str(4**i): {**dict(zip(names, c, strict=True)), "success": True} for i, c in enumerate(cells)}
        return {"model": "BERT", "hardware": "WebGPU", "batch_sizes": sizes}

    def test_only_whole_numbers(self) -> None:
        one, four = judged(self.card((75, 15, 112), (300, 30, 148)))
        assert rules_of(one) == {"round_figures"}
        assert rules_of(four) == {"round_figures", "throughput_contradiction"}

    def test_one_fraction_is_enough_for_doubt_to_go(self) -> None:
        results = judged(self.card((66.7, 15, 112), (133.3, 30, 148)))
        assert [r.provenance for r in results] == ["imported"] * 2


class TestThroughput:
    @pytest.mark.parametrize("throughput", [133.0, 70.0])
    def test_it_contradicts_latency_and_batch(self, throughput: float) -> None:
        (result,) = judged(direct({"4": batch(40.3, 4) | {"throughput_items_per_second": throughput}}))
        assert rules_of(result) == {"throughput_contradiction"}
        assert "batch 4 in 40.3 ms" in result.suspicions[0].evidence

    @given(pauses=st.floats(min_value=1.0, max_value=1.15), seconds=st.floats(min_value=1e-4, max_value=100))
    def test_a_runner_that_divides_by_the_total_time_contradicts_nothing(self, pauses: float, seconds: float) -> None:
        samples = [seconds] * 4
        contents = {
            "status": "completed",
            "latencies": samples,
            "total_time": seconds * 4 * pauses,
            "throughput": 8 * 4 / (seconds * 4 * pauses),
        }
        (result,) = judged(runner({"gpt2": {"cpu": {"batch_8": contents}}}))
        assert result.provenance == "imported"


@given(
    ms=st.floats(min_value=0, allow_infinity=False),
    rate=st.floats(min_value=0, allow_infinity=False),
    size=st.integers(),
)
def test_absurd_figures_are_judged_too(ms: float, rate: float, size: int) -> None:
    absurd = {"avg_latency_ms": ms, "throughput_items_per_second": rate, "batch_size": size}
    cells = {"1": absurd, "2": absurd | {"avg_latency_ms": 1.5}}
    assert len(judged(direct(cells))) == len(judged(direct(cells, hardware="cuda"))) == 2


def test_success_without_figures_is_suspect_and_a_failure_is_not() -> None:
    empty, failed = judged(
        runner({"gpt2": {"cpu": {"batch_1": {"status": "completed"}, "batch_2": {"status": "failed"}}}})
    )
    assert (empty.provenance, rules_of(empty)) == ("suspect", {"success_without_figures"})
    assert (failed.status, failed.suspicions) == ("failed", ())


class TestAbsentDevice:
    cells: ClassVar = {"gpt2": {"mps": {"batch_1": cell(0.0123)}, "cpu": {"batch_1": cell(0.2)}}}

    @pytest.mark.parametrize(
        "section", [{"hardware_info": {"cpu": True, "mps": False}}, {"system_info": {"mps_available": False}}]
    )
    def test_figures_for_what_the_host_had_not(self, section: dict[str, Any]) -> None:
        mps, cpu = judged(runner(self.cells, **section))
        assert (rules_of(mps), rules_of(cpu)) == ({"absent_device"}, set())

    @pytest.mark.parametrize("section", [{}, {"hardware_info": {"mps": True}, "system_info": {"mps_available": False}}])
    def test_silence_and_disagreement_are_no_evidence(self, section: dict[str, Any]) -> None:
        assert all(not r.suspicions for r in judged(runner(self.cells, **section)))


class TestRelabelledCpu:
    @staticmethod
    def document(ratio: float, hardware: str = "cuda", cells: int = 6, jitter: float = 0.02) -> dict[str, Any]:
        random_ = random.Random(7)
        own: dict[str, Any] = {"cpu": {}, hardware: {}}
        for i in range(cells):
            base = 0.01 * 1.9**i
            for name, factor in (("cpu", 1.0), (hardware, ratio)):
                samples = [base * factor * random_.uniform(1 - jitter, 1 + jitter) for _ in range(20)]
                own[name][f"batch_{i + 1}"] = {"status": "completed", "latencies": samples}
        return runner({"gpt2": own})

    @pytest.mark.parametrize("hardware", ["cuda", "openvino", "rocm"])
    def test_the_cpu_under_another_name(self, hardware: str) -> None:
        results = judged(self.document(1.006, hardware))
        assert {r.provenance for r in results if r.hardware == "cpu"} == {"imported"}
        assert {r.provenance for r in results if r.hardware == hardware} == {"suspect"}
        assert "median ratio 1.0" in results[-1].suspicions[0].evidence

    @pytest.mark.parametrize(
        ("ratio", "hardware"), [(0.1, "cuda"), (0.62, "openvino"), (1.3, "cuda"), (0.88, "openvino")]
    )
    def test_another_speed_is_another_device(self, ratio: float, hardware: str) -> None:
        assert all(not r.suspicions for r in judged(self.document(ratio, hardware)))

    def test_two_like_cells_prove_nothing_about_a_runtime_on_the_same_cpu(self) -> None:
        assert all(not r.suspicions for r in judged(self.document(1.0, "openvino", cells=2)))

    def test_one_like_cell_is_weak_evidence_about_a_gpu(self) -> None:
        *_, gpu = judged(self.document(1.0, "cuda", cells=1))
        assert gpu.suspicions[0].confidence < 0.7

    def test_many_cells_within_a_third_are_enough_for_a_gpu_and_not_for_a_runtime(self) -> None:
        def document(hardware: str) -> list[ResultRecorded]:
            factors = (0.82, 0.95, 1.003, 1.02, 1.05, 1.2)
            cells = {f"batch_{n + 1}": 0.0123 * 1.9**n for n in range(len(factors))}
            other = {key: seconds * factor for (key, seconds), factor in zip(cells.items(), factors, strict=True)}
            both = {"cpu": cells, hardware: other}
            return judged(
                runner({"gpt2": {hw: {k: cell(s, int(k[6:])) for k, s in c.items()} for hw, c in both.items()}})
            )

        assert {r.provenance for r in document("cuda") if r.hardware == "cuda"} == {"suspect"}
        assert {r.provenance for r in document("openvino") if r.hardware == "openvino"} == {"imported"}

    def test_noise_does_not_hide_it(self) -> None:
        results = judged(self.document(1.0, "cuda", jitter=0.3))
        assert {r.provenance for r in results if r.hardware == "cuda"} == {"suspect"}


class TestLabelsOfOneHardware:
    @staticmethod
    def skill(**more: Any) -> dict[str, Any]:
        return {
            "metadata": {"model_name": "gpt2"},
            "cpu_embedding_time": 0.0123,
            "cuda_embedding_time": 0.00457,
            **more,
        }

    @pytest.mark.parametrize(
        "label",
        [
            {"cuda_init": "Success (MOCK)", "cpu_init": "Success"},
            {"cuda_init": "Success", "cuda_metadata": {"note": {"is_simulated": True}}},
            {"cuda_init": "Success", "details": {"platform": "CUDA", "text": "a mock"}},
            {"cuda_init": "Success", "platform_status": {"cuda": "Ready (REAL) - Simulated"}},
        ],
    )
    def test_a_label_that_names_a_hardware_speaks_for_it_alone(self, label: dict[str, Any]) -> None:
        provenance = {r.hardware: r.provenance for r in judged(self.skill(**label)) if r.latency_mean_ms}
        assert provenance == {"cpu": "imported", "cuda": "simulated"}

    def test_what_a_failure_says_of_mocks_is_no_label(self) -> None:
        results = judged(self.skill(cuda_init="Success", openvino_tests="Error: mock is not defined"))
        assert {r.provenance for r in results if r.hardware != "openvino"} == {"imported"}


class TestTypedFigures:
    @pytest.mark.parametrize("seconds", [0.1, 0.05, 0.25, 1, 0.09])
    def test_a_lone_time_of_two_digits_was_typed(self, seconds: float) -> None:
        (result,) = judged({"cuda_init": "Success", "cuda_generation_time": seconds, "metadata": {"model": "gpt2"}})
        assert rules_of(result) == {"round_time"}

    @pytest.mark.parametrize("seconds", [0.1003, 0.052713, 0.0123])
    def test_a_clock_gives_more(self, seconds: float) -> None:
        (result,) = judged({"cuda_init": "Success", "cuda_generation_time": seconds, "metadata": {"model": "gpt2"}})
        assert result.suspicions == ()

    def test_a_mean_with_its_rate_is_no_lone_time(self) -> None:
        call = {"average_inference_time": 0.05, "throughput": 20.0, "batch_size": 1}
        (result,) = judged({"cuda_init": "Success", "cuda_benchmark": call, "metadata": {"model": "gpt2"}})
        assert result.suspicions == ()

    def test_rounded_milliseconds_of_a_table_are_no_sign(self) -> None:
        row = {"model_name": "gpt2", "hardware_type": "cuda", "average_latency_ms": 5.5}
        (result,) = judged(row)
        assert result.suspicions == ()


class TestInvertedRanking:
    MODELS: ClassVar = {f"model-{number}": 1.7**number for number in range(12)}

    def judged(self, odd: dict[str, float]) -> dict[str, set[str]]:
        """The rules of each hardware's results; all but `tpu` take a time of their own for the models' work."""
        factors = {"cpu": 1.0, "cuda": 0.11, "mps": 0.31, "openvino": 0.57, "qnn": 0.23}
        drawn = random.Random(7)
        benchmarks = {
            model: {
                hardware: {"1": cell(0.001 * factor * work * drawn.uniform(0.7, 1.4))}
                for hardware, factor in factors.items()
            }
            | {"tpu": {"1": cell(odd[model])}}
            for model, work in self.MODELS.items()
        }
        found: dict[str, set[str]] = {}
        for result in judged(runner(benchmarks)):
            found.setdefault(result.hardware, set()).update(rules_of(result))
        return found

    def test_what_is_the_faster_the_more_work_it_has_computed_nothing(self) -> None:
        found = self.judged({model: 0.00913 / work for model, work in self.MODELS.items()})
        assert found.pop("tpu") == {"inverted_ranking"}
        assert not any(found.values())

    @pytest.mark.parametrize("power", [1.0, 0.2])
    def test_what_is_fast_or_waits_for_its_host_is_not_marked(self, power: float) -> None:
        found = self.judged({model: 0.0000913 * work**power for model, work in self.MODELS.items()})
        assert not any(found.values())


@pytest.mark.parametrize(("mean_ms", "rules"), [(1.0, {"mean_contradiction"}), (2.5, set()), (5.0, set())])
def test_the_mean_is_half_the_median_or_more(mean_ms: float, rules: set[str]) -> None:
    row = {"model_name": "gpt2", "hardware_type": "cpu", "batch_size": 8, "latency_p50_ms": 5.0}
    (result,) = judged({**row, "average_latency_ms": mean_ms})
    assert rules_of(result) == rules


@pytest.mark.parametrize(("mean_ms", "rules"), [(1e-300, {"impossible_time"}), (1e-5, set())])
def test_no_batch_takes_less_than_a_clock_tick(mean_ms: float, rules: set[str]) -> None:
    (result,) = judged({"model_name": "gpt2", "hardware_type": "cpu", "batch_size": 8, "average_latency_ms": mean_ms})
    assert rules_of(result) == rules


@pytest.mark.parametrize(("total_s", "rules"), [(152.8, {"total_time_contradiction"}), (15.4, set())])
def test_total_time_must_agree_with_the_latency(total_s: float, rules: set[str]) -> None:
    row = {
        "model_name": "gpt2",
        "hardware_type": "cpu",
        "batch_size": 8,
        "average_latency_ms": 152.8,
        "iterations": 100,
    }
    (result,) = judged({**row, "total_time_seconds": total_s})
    assert rules_of(result) == rules


@pytest.mark.parametrize(
    ("model", "rules"), [("/tmp/bert_test_model", {"stand_in_model"}), ("bert-base-uncased", set())]
)
def test_a_stand_in_is_not_the_model(model: str, rules: set[str]) -> None:
    (result,) = judged({"cpu_init": "Success", "cpu_embedding_time": 0.00123, "metadata": {"model_name": model}})
    assert rules_of(result) == rules


def test_a_derived_figure_is_a_claim() -> None:
    hardware = {"cpu": {"latency_ms": [101.3], "throughput": [9.87]}}
    summary = {"model_families": {"f": {"models_tested": ["gpt2"], "hardware_results": hardware}}}
    (result,) = judged(summary)
    assert (result.provenance, rules_of(result)) == ("suspect", {"derived_figure"})


def test_every_rule_has_a_name_that_its_marks_carry_and_says_what_it_is() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES)
    assert all(rule.__doc__ for rule in RULES)
