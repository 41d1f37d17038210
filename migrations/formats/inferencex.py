"""InferenceX' (InferenceMAX') aggregates: a row per deployment and load, times in seconds, rates per GPU.

Rows with prefill and decoding on separate devices, or with speculative decoding, are marked, because they are no load
of one plain engine. The former have the workers of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.records import Part, refuse
from migrations.normalize.row_access import object_of, pick, rows_of, share_of_rows, strays_of, text_of
from migrations.normalize.units import MS_PER_S, count, quantity, scaled
from migrations.sources.documents import Document
from migrations.tools.load_report import STATISTICS, LoadReport, record

_PER_GPU = ("tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu")
_TIMES = ("ttft", "tpot", "itl", "e2el")
_ENGINES = {"trt": "trtllm"}
"""Engines by names of frameworks. In other files `trt` is TensorRT, which serves no language models by itself."""
_AROUND_ENGINE = re.compile(r"^dynamo-|-disagg$")
"""Parts that the name of a framework of several workers has around the engine's name: `dynamo-trt`, `sglang-disagg`."""
_RUNNER = re.compile(r"-[a-z]+_\d+$")
"""Name of the machine after that of the GPU: `mi355x-amd_0`."""
_MODELS = {"dsr1": "deepseek-ai/DeepSeek-R1-0528", "gptoss": "openai/gpt-oss-120b"}
"""Hub ids of the models that answers of the dashboard name in short."""
_TAG = re.compile(r":v?(\d+(?:\.\w+)*)")
"""Version of the engine at the beginning of an image's tag: `0.5.9` of `lmsysorg/sglang:v0.5.9-rocm700-mi35x`."""
_KINDS = {"prompt": "prefill", "token": "decode"}
"""Kinds of workers of disaggregated serving, as results and as rows name them."""


def detect(document: Document) -> float:
    """Return high confidence where rows have throughput per GPU, by themselves or in their metrics."""
    first = next((row for _, row in rows_of(document)), {})
    per_gpu = _PER_GPU[0] in {**first, **object_of(first.get("metrics"))}
    return 0.95 * share_of_rows(document, "conc", "framework") if per_gpu else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per row."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, row in rows_of(document):
        yield record(_report({**row, **object_of(row.get("metrics"))}), document.source_path, pointer)


def _report(row: Mapping[str, Any]) -> LoadReport:
    devices = _devices(row)
    workers = _workers(row) if _flag(row.get("disagg")) else {}
    copies = (
        count(pick(row, "tp", "decode_tp"), at_least=1)
        if not workers and _flag(pick(row, "dp_attention", "decode_dp_attention"))
        else None
    )
    output_rate = quantity(row.get("output_tput_per_gpu"))
    # Tokens after the first are those of the devices that generate.
    generating = count(row.get("num_decode_gpu")) if _flag(row.get("disagg")) else devices
    framework = text_of(row.get("framework"))
    engine = _AROUND_ENGINE.sub("", framework) if framework else None
    model = _model(row)
    device = text_of(pick(row, "hw", "hardware"))
    return LoadReport(
        model=_MODELS.get(model, model) if model else None,
        # Before 2026 the hardware named the engine, too: `b200-trt`.
        device=_RUNNER.sub("", device.removesuffix(f"-{framework}")) if device else None,
        engine=_ENGINES.get(engine, engine) if engine else None,
        engine_version=_version(text_of(row.get("image"))),
        precision=text_of(row.get("precision")),
        settings={"devices": devices, "data_parallel_size": copies, **workers},
        configuration=_configuration(row, workers),
        answered=count(row.get("completed")),
        concurrency=row.get("conc"),
        input_tokens=quantity(row.get("isl")),
        output_tokens=quantity(row.get("osl")),
        first_token_ms=_statistics(row, "ttft"),
        output_token_ms=_statistics(row, "tpot"),
        whole_ms=_statistics(row, "e2el"),
        output_tokens_per_s=output_rate * generating if output_rate is not None and generating else None,
        stated={
            key: number
            for key, value in row.items()
            if (key in _PER_GPU or key.rpartition("_")[2] in (*_TIMES, "intvty"))
            and (number := quantity(value)) is not None
        },
        times=(row.get("date"),),
    )


def _model(row: Mapping[str, Any]) -> str | None:
    """Return the model's name: the short one where the other is a folder of the machine (`/models/DeepSeek-R1`)."""
    name, short = text_of(row.get("model")), text_of(pick(row, "infmax_model_prefix", "model_prefix"))
    return short if short and (name is None or name.startswith("/")) else name


def _configuration(row: Mapping[str, Any], workers: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the configuration that makes a row no load of one plain engine; None for a plain one."""
    speculation = text_of(pick(row, "spec_decoding", "spec_method"))
    speculative = speculation not in (None, "none")
    for flag in ("disagg", "is_multinode"):
        if _flag(row.get(flag)):
            return {
                "mode": flag.removeprefix("is_"),
                **workers,
                **({"speculative_decoding": speculation} if speculative else {}),
            }
    return {"mode": f"speculative decoding: {speculation}"} if speculative else None


def _workers(row: Mapping[str, Any]) -> dict[str, int]:
    """Return workers, devices of each and attention copies of both kinds of workers; nothing where one is not stated.

    Devices of a worker follow from those of all of them: with attention apart, rows of SGLang state a `decode_tp` of 1.
    """
    found: dict[str, int] = {}
    for kind, theirs in _KINDS.items():
        workers, devices = (count(row.get(name), at_least=1) for name in (f"{theirs}_num_workers", f"num_{theirs}_gpu"))
        if workers is None or devices is None or devices % workers:
            return {}
        each = devices // workers
        found |= {
            f"{kind}_workers": workers,
            f"{kind}_devices": each,
            f"{kind}_attention_copies": each if _flag(row.get(f"{theirs}_dp_attention")) else 1,
        }
    return found


def _version(image: str | None) -> str | None:
    """Return the engine's version that an image states; the whole image where its tag begins with none.

    An image of Dynamo's states the version of Dynamo, so it stays whole.
    """
    found = _TAG.search(image) if image and "dynamo" not in image else None
    return found[1] if found else image


def _statistics(row: Mapping[str, Any], metric: str) -> dict[str, float]:
    names = {name: "median" if name == "p50" else name for name in STATISTICS}
    found = {
        ours: scaled(pick(row, f"{theirs}_{metric}", f"{ours}_{metric}"), MS_PER_S) for ours, theirs in names.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _devices(row: Mapping[str, Any]) -> int | None:
    """Return the devices of a deployment; None if the row does not say.

    One engine has as many as its tensor parallelism: its experts are on the same devices, though answers of the
    dashboard multiply both into `num_decode_gpu`.
    """
    parts = [count(row.get(name)) for name in ("num_prefill_gpu", "num_decode_gpu")]
    if _flag(row.get("disagg")) and all(part is not None for part in parts):
        return sum(part for part in parts if part is not None)
    return count(pick(row, "num_gpus", "tp", "decode_tp", "num_decode_gpu"), at_least=1)


def _flag(value: Any) -> bool:
    return str(value).casefold() in ("true", "1", "yes")
