"""Disaggregated serving: measured loads, the formula of its parts, and deployments in answers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput
from accel_platform.hardware.catalog import find_spec
from predictor.advisor.serving.ranking import recommend_serving
from predictor.schemas.requests import validate_query
from predictor.schemas.serving import ServingAnswer, ServingOption, ServingQuery
from predictor.serving.disaggregated import (
    DisaggregatedModel,
    FirstParts,
    first_parts,
    parts_of,
    save,
    shipped_model,
)
from predictor.serving.disaggregated_loads import convert, load_disaggregated, read_configured_deployments
from predictor.serving.fit import fit_disaggregated
from predictor.serving.loads import Deployment, Load, PromptWorkers, Slots
from predictor.serving.measured_loads import MeasuredLoad, load_measured_loads
from predictor.serving.models import find_served_model
from predictor.serving.predictor import shipped_predictor
from predictor.serving.queueing import Pace, draw_traffic, simulate

LOAD = Load(users=32, input_tokens=4096, output_tokens=512)


@pytest.fixture(scope="module")
def measured() -> list[MeasuredLoad]:
    return load_disaggregated()


def deployment(per_copy: Fraction = Fraction(1), **fields: object) -> Deployment:
    decoder, spec = find_served_model("deepseek-v3"), find_spec("B200 SXM")
    assert decoder is not None
    assert spec is not None
    prompts = PromptWorkers(per_copy, devices=4)
    return replace(Deployment(decoder, spec, "sglang", "fp4", devices=8, prompts=prompts), **fields)  # type: ignore[arg-type]  # as the test gives them


def ask(**fields: object) -> ServingAnswer:
    asked = {
        "mode": "serving",
        "model": "deepseek-v3",
        "quantization": "fp4",
        "hardware": ["GB200"],
        "disaggregated": True,
        "users": 64,
        "input_tokens": 8192,
        "output_tokens": 1024,
        "goals": {"max_devices": 16},
        **fields,
    }
    return recommend_serving(validate_query(ServingQuery, asked), [], None)


def apart(answer: ServingAnswer) -> list[ServingOption]:
    return [option for option in answer.options if option.prompt_workers]


def test_measured_loads_count_workers_and_share_the_users(measured: list[MeasuredLoad]) -> None:
    assert len(measured) == 391
    assert len({row.event_id for row in measured}) == 391
    row = next(row for row in measured if row.event_id == "dsr1_h200_trtllm_fp8_disagg_1024x1024_c144_cfg590")
    # One worker for prompts of 8 devices that attend apart; nine copies of 8 devices for 144 users.
    assert row.deployment.prompts == PromptWorkers(Fraction(1, 9), devices=8, attention_copies=8)
    assert (row.deployment.devices, row.deployment.attention_copies) == (8, 1)
    assert row.deployment.slots == Slots(256, copies=9)
    assert row.load == Load(users=16, input_tokens=1024, output_tokens=1024)
    aggregated = load_measured_loads()
    assert not any(row.deployment.prompts for row in aggregated)
    # Only one source's rows are kept for a deployment and load.
    by_source: dict[bool, set[object]] = {True: set(), False: set()}
    for row in measured:
        layout = replace(row.deployment, slots=None, engine_version=None)
        by_source[row.event_id.startswith("inferencex")].add((row.model, layout, row.load))
    assert by_source[True]
    assert not by_source[True] & by_source[False]


ROW = {
    "id": "one", "silicon_data_source": "x; silicon_concurrency=8; measured=2026-01-29T00:00:00", "backend": "trtllm",
    "backend_version": "", "model_path": "deepseek-ai/DeepSeek-V3", "system": "gb200", "precision": "fp4",
    "mode": "disagg", "isl": "1024", "osl": "512", "silicon_ttft_ms": "100.5", "silicon_tpot_ms": "5.25",
    "prefill_num_workers": "2", "prefill_tp_size": "4", "prefill_attention_dp_size": "1",
    "decode_num_workers": "3", "decode_tp_size": "1", "decode_attention_dp_size": "8",
}  # fmt: skip


def test_rows_that_say_too_little_are_left_out() -> None:
    [taken] = convert([ROW], [], [])
    assert (taken["prompt_workers"], taken["prompt_devices"]) == (2, 4)
    assert (taken["token_workers"], taken["token_devices"], taken["token_attention_copies"]) == (3, 8, 8)
    assert taken["token_slots"] == ""
    for lacking in (
        {"prefill_num_workers": ""},
        {"silicon_data_source": "no users"},
        {"mode": "agg"},
        {"model_path": "nobody/knows-this-7b"},
        {"system": "no such device"},
    ):
        assert convert([{**ROW, **lacking}], [], []) == []


def test_a_load_of_the_pack_that_the_table_holds_is_left_out() -> None:
    def event(**fields: object) -> dict[str, str]:
        workers = {
            "prompt_workers": 2, "prompt_devices": 4, "prompt_attention_copies": 1, "token_workers": 3,
            "token_devices": 8, "token_attention_copies": 8,
        }  # fmt: skip
        payload = {
            "device_name": "32 x gb200", "backend": "trtllm", "precision": "fp4", "sequence_length": 1024,
            "output_tokens": 512, "environment": {"trtllm": "image"},
            "original": {
                "model": "deepseek-ai/DeepSeek-R1-0528", "concurrency": 8,
                "configuration": {"mode": "disagg", **workers},
                "stated": {"time_to_first_token_ms": {"mean": 99.0}, "time_per_output_token_ms": {"mean": 5.0}},
                **fields,
            },
        }  # fmt: skip
        return {"event_id": "an-id", "payload": json.dumps(payload)}

    assert [row["source"] for row in convert([ROW], [event()], [])] == ["one"]
    [_, more] = convert([ROW], [event(concurrency=16)], [])
    assert (more["source"], more["users"], more["first_token_ms"]) == ("inferencex an-id", 16, 99.0)
    assert len(convert([ROW], [event(configuration={"mode": "disagg"}, concurrency=16)], [])) == 1


def test_slots_are_those_that_the_configurations_of_the_nearest_day_state(tmp_path: Path) -> None:
    def write(day: str, setting: str, **space: object) -> None:
        entry = {
            "model-prefix": "dsr1", "runner": "gb200", "framework": "dynamo-trt", "precision": "fp4",
            "seq-len-configs": [
                {
                    "isl": 1024, "osl": 512,
                    "search-space": [
                        {"tp": 8, "conc-start": 4},
                        {
                            "spec-decoding": "none", "conc-list": [4, 8],
                            "prefill": {"num-worker": 2, "tp": 4, "dp-attn": False, "additional-settings": [setting]},
                            "decode": {"num-worker": 3, "tp": 8, "dp-attn": True},
                            **space,
                        },
                    ],
                }
            ],
        }  # fmt: skip
        (tmp_path / f"{day}.yaml").write_text(yaml.safe_dump({"dsr1-fp4-gb200-dynamo-trt": entry}))

    def slots() -> object:
        [row] = convert([ROW], [], read_configured_deployments(tmp_path))
        return row["token_slots"]

    write("2026-01-30", "CONFIG_FILE=recipes/ctx2_gen3_dep8_batch32_eplb0_mtp0.yaml")
    write("2026-03-24", "DECODE_MAX_BATCH_SIZE=1")
    assert slots() == 8 * 32  # of each device, whose attention is apart
    write("2026-01-30", "DECODE_MAX_BATCH_SIZE=16", decode={"num-worker": 3, "tp": 8, "dp-attn": False})
    assert slots() == 16
    (tmp_path / "2026-03-24.yaml").unlink()
    for other in (
        {"spec-decoding": "mtp"},
        {"conc-list": [4]},
        {"decode": {"num-worker": 1, "tp": 8, "dp-attn": True}},
    ):
        write("2026-01-30", "DECODE_MAX_BATCH_SIZE=16", **other)
        assert slots() == ""


def test_first_tokens_wait_for_slots_and_for_workers_that_are_always_busy() -> None:
    coefficients, model = shipped_predictor().model.coefficients, shipped_model()

    def first_s(answer_s: float, users: float = 48, slots: Slots | None = None) -> FirstParts:
        parts = parts_of([(deployment(Fraction(1, 4), slots=slots), replace(LOAD, users=users))], coefficients)
        return first_parts(parts, np.array([answer_s]), model.times.first_coefficients)

    free = first_s(10.0)
    assert free.slot_s == 0
    assert first_s(10.0, slots=Slots(1000, copies=4)).slot_s == pytest.approx(0, abs=1e-9)
    # 16 of one copy's 48 requests wait, so that each waits for half an answer.
    half = np.exp(model.times.first_coefficients["slot"]) * 5.0
    assert first_s(10.0, slots=Slots(32, copies=1)).slot_s == pytest.approx(half)
    # Spread by chance over several copies, requests wait at some of them where slots are as many as users.
    assert first_s(10.0, slots=Slots(48, copies=1)).slot_s == pytest.approx(0, abs=1e-6)
    assert first_s(10.0, slots=Slots(48, copies=4)).slot_s > 0.1
    # Workers that are always busy make users wait for what is left of the round of all prompts.
    many = first_s(1.0, users=4096)
    assert many.first_s > many.queue_s - 1.0
    assert first_s(1e4, users=4096).first_s < many.first_s / 2


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 512), st.integers(1, 16_384))
def test_more_workers_for_prompts_shorten_queues_and_leave_steps(few: int, more: int, users: int, into: int) -> None:
    load = Load(users, into, 256)
    cells = [(deployment(Fraction(workers)), load) for workers in (few, few + more)]
    parts = parts_of(cells, shipped_predictor().model.coefficients)
    assert parts.decode_s[0] == parts.decode_s[1] > 0
    first = first_parts(parts, np.array([10.0, 10.0]), shipped_model().times.first_coefficients)
    assert first.alone_s[0] == first.alone_s[1] > 0
    assert first.queue_s[0] > first.queue_s[1] > 0
    assert first.busy[0] > first.busy[1] > 0


@pytest.mark.slow  # it is fitted again
def test_the_shipped_model_is_what_its_rows_teach(measured: list[MeasuredLoad], tmp_path: Path) -> None:
    coefficients = shipped_predictor().model.coefficients
    fitted: DisaggregatedModel = fit_disaggregated(measured, coefficients)
    cells = [(row.deployment, row.load) for row in measured]
    for found, shipped in zip(
        fitted.predict(cells, coefficients), shipped_model().predict(cells, coefficients), strict=True
    ):
        np.testing.assert_allclose(found, shipped, rtol=1e-6)
    assert fitted.first_error == shipped_model().first_error
    assert fitted.token_error == shipped_model().token_error
    assert dict(fitted.times.first_coefficients) == pytest.approx(shipped_model().times.first_coefficients, rel=1e-6)
    token, first, _ = fitted.predict(cells, coefficients)
    errors = np.abs(np.log(token / [row.token_ms for row in measured]))
    assert np.median(errors) < fitted.token_error.half_width / 4
    assert np.median(np.abs(np.log(first / [row.first_ms for row in measured]))) < fitted.first_error.half_width / 2
    for name in ("once", "twice"):
        save(fitted, tmp_path / name)
    assert (tmp_path / "once").read_bytes() == (tmp_path / "twice").read_bytes()


def test_both_kinds_of_deployments_are_told_side_by_side() -> None:
    answer = ask()
    options = apart(answer)
    assert options
    assert not apart(ask(disaggregated=False))
    kinds = Counter((option.device, option.devices, option.prompt_workers > 0) for option in answer.options)
    assert set(kinds.values()) == {1}
    assert {devices for _, devices, _ in kinds} >= {8, 16}
    for option in options:
        of_prompts = option.prompt_workers * option.devices_per_prompt_worker
        assert option.devices == option.copies * option.devices_per_copy + of_prompts <= 16
        assert option.provenance == "predicted"
        assert not option.nearest  # no load of a log is like it
        assert option.first_token_ms.level == option.output_token_ms.level == 0.8
        assert any("disaggregated serving was learned from 391 loads" in caution for caution in option.cautions)
        assert option.usd_per_hour == pytest.approx(
            # GB200 has a price.
            option.devices * answer.options[0].usd_per_hour / answer.options[0].devices  # type: ignore[operator]
        )
        # A step waits for no prompt, so the slowest requests take as long for a token as the others.
        assert option.slow.output_token_ms.p50 == pytest.approx(option.output_token_ms.p50, rel=0.1)


def test_workers_that_cannot_compute_all_prompts_in_time_are_left_out_and_that_is_said() -> None:
    calm = apart(ask(users=None, requests_per_s=2.0))
    busier = apart(ask(users=None, requests_per_s=16.0))
    assert min(option.prompt_workers for option in calm) < min(option.prompt_workers for option in busier)
    busy = ask(users=1024, input_tokens=16_384, output_tokens=16, goals={"max_devices": 8})
    assert busy.options
    assert "that fit keeps up" in _why_not(busy)
    assert "may miss a goal" in _why_not(ask(goals={"max_devices": 8, "percentile": 50, "max_first_token_ms": 1.0}))
    assert "none of these devices is an NVIDIA GPU" in _why_not(ask(hardware=["MI300X"]))


def _why_not(answer: ServingAnswer) -> str:
    assert not apart(answer)
    [said] = [warning for warning in answer.warnings if warning.startswith("No deployment with workers for prompts")]
    return said


def test_nearly_all_deployments_that_kept_up_when_measured_are_kept(measured: list[MeasuredLoad]) -> None:
    times = shipped_predictor().predict([(row.deployment, row.load) for row in measured])
    busy = np.array([each.prompts_busy for each in times], dtype=float)
    assert 0.01 < np.mean(busy > 1) < 0.1


def test_a_prompt_too_short_to_take_time_still_takes_some() -> None:
    decoder, spec = find_served_model("llama-3.1-8b"), find_spec("H100 SXM")
    assert decoder is not None
    assert spec is not None
    one = Deployment(decoder, spec, "vllm", "bfloat16", prompts=PromptWorkers(Fraction(1)))
    [times] = shipped_predictor().predict([(one, Load(8, 1, 16))])
    assert 0 < times.first_token_ms.p50 < np.inf


def test_copies_beside_the_same_workers_for_prompts_wait_no_longer_for_being_more() -> None:
    predictor, load, rate = shipped_predictor(), Load(8, 8192, 1024), 2.0
    spread = []
    for copies in (1, 4):
        way, share = deployment(Fraction(1, copies)), replace(load, users=load.users / copies)
        [times] = predictor.predict([(way, share)])
        pace = predictor.pace(way, share, 96, times, copies)
        played = simulate(pace, draw_traffic(8, rate, (8192, None), (1024, None), context=0))
        spread.append(np.percentile(played.first_token_ms, 99) / np.median(played.first_token_ms))
    assert spread[1] == pytest.approx(spread[0], rel=0.1)


@pytest.mark.parametrize(
    ("engine", "prompts", "copy", "router"),
    [
        (
            "vllm",
            "VLLM_NIXL_SIDE_CHANNEL_HOST=PROMPTS_1 vllm serve",
            "VLLM_NIXL_SIDE_CHANNEL_HOST=COPY_1 vllm serve",
            "vllm-router --vllm-pd-disaggregation --prefill http://PROMPTS_1:",
        ),
        (
            "sglang",
            "0.0.0.0 --disaggregation-mode prefill",
            "0.0.0.0 --disaggregation-mode decode",
            "--decode http://COPY_1:30000",
        ),
        (
            "trtllm",
            "disable_overlap_scheduler: true",
            "copies.yaml --host 0.0.0.0",
            "trtllm-serve disaggregated -c workers.yaml",
        ),
    ],
)
def test_commands_start_each_kind_of_worker_and_the_router(engine: str, prompts: str, copy: str, router: str) -> None:
    option = apart(ask(engine=engine))[0]
    first, second, third = option.launch.splitlines()
    assert prompts in first
    assert copy in second
    assert router in third
    assert third.count("PROMPTS_") == option.prompt_workers
    assert third.count("COPY_") == option.copies
    assert "disable_overlap_scheduler" not in second


def test_prompts_that_are_computed_apart_hold_up_each_other_and_no_step() -> None:
    pace = Pace([0.01] * 64, prompt_s=0.1, stall_s=0.05, room_tokens=100_000)
    traffic = draw_traffic(16, None, (100, None), (50, None), context=0)
    together, separate = simulate(pace, traffic), simulate(replace(pace, prompts_apart=True), traffic)
    assert separate.output_token_ms == pytest.approx(10.0)
    assert np.median(together.output_token_ms) > 11
    assert separate.first_token_ms.min() >= 99.999
    assert separate.first_token_ms.max() > 101  # users that ask at once wait for each other


def test_what_cannot_be_split_says_why() -> None:
    with pytest.raises(InvalidInput, match="two devices at least"):
        ask(goals={"max_devices": 1})
    with pytest.raises(InvalidInput, match=r"llama\.cpp computes prompts where it generates"):
        ask(engine="llama.cpp", model="llama-3.1-8b", quantization="bfloat16")
