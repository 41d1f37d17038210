"""OpenVINO's tables of language models on built-in GPUs: times of the first and of later tokens, one file a processor.

Batch 1, one beam, by `llm_bench`. The processor is in the file's name alone: `llm_models_7-155H.csv`. The pages state
an answer of 128 tokens; the latency is that of all of them, the first and 127 later ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.path_hints import parts
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, refuse
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_FIRST, _LATER = "1st latency (ms)", "2nd latency (ms)"
_NEEDED = ("Topology", "Precision", "Input Size", _FIRST, _LATER)
_PROCESSOR = re.compile(r"llm_models_(?P<series>\d)-(?P<number>\d{3}[A-Z]+)")
_SERIES_NAMES = {"7-358H": "X7"}
"""Series of processors that the files name otherwise than Intel does."""
_OUTPUT_TOKENS = 128
_OTHER_MODELS = re.compile(
    r"(?:lcm-|stable-diffusion-|sd-|ltx-|whisper|distil-|flan-t5|t5-|nanollava|internvl|llava|smolvlm|minicpm-[vo]-).*"
    r"|.*-(?:vl|vision|multimodal)-.*"
)
"""Models that do more than read a text and continue it: of images, video and speech, and those with an encoder."""
_OTHER_NAMES = {
    "glm-4-9b-chat-hf": "glm-4-9b-chat",
    "llama-3-8b-instruct": "llama-3-8b",
    "opt-125m": "facebook/opt-125m",
    "qwen-7b-chat": "Qwen/Qwen-7B-Chat",
    "qwen2-7b-instruct": "qwen2-7b",
    "stable-zephyr-3b-dpo": "stabilityai/stablelm-zephyr-3b",
    "tiny-llama-1.1b-chat": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
}
"""Names under which other files have these models."""
_WEIGHTS = ("INT4", "INT8", "FP16")
"""Formats of weights, each twice as wide as the one before."""
_SAME_WEIGHTS_MAX = 2.0
"""Largest ratio of a time per token to the shortest of the same model and weights: a longer prompt adds little."""
_WIDER_WEIGHTS_MAX = 2.5
"""Largest ratio of a time per token to the shortest with weights half as wide: reading them takes twice as long."""
_FIRST_MAX = 2.5
"""Largest ratio of a first token's time to the model's shortest behind a prompt that long, in any weights."""
_LONG_PROMPT = 512
"""Tokens from which on a prompt takes its time to compute, and not to read the weights."""


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, *_NEEDED)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row with figures; refuse those of other models, and those that waited for memory."""
    rows = [(pointer, row) for pointer, row in rows_of(document) if pick(row, "Topology")]
    shortest: dict[tuple[Any, ...], float] = {}
    for _, row in rows:
        for key, column in ((_prompt(row), _FIRST), ((row["Topology"], _weights(row)), _LATER)):
            figure = quantity(pick(row, column)) or math.inf
            shortest[key] = min(figure, shortest.get(key, math.inf))
    for pointer, row in rows:
        first, later = quantity(pick(row, _FIRST)), quantity(pick(row, _LATER))
        length = count(pick(row, "Input Size"), at_least=1)
        if _OTHER_MODELS.fullmatch(row["Topology"]):
            yield refuse(pointer, "other_model", f"{row['Topology']} does more than read a text and continue it", row)
        elif _weights(row) not in _WEIGHTS:
            yield refuse(pointer, "precision_unknown", f"nothing says what {row['Precision']} is", row)
        elif not first or not later or length is None:
            yield refuse(pointer, "figure_missing", "the length of the prompt or a time is missing", row)
        elif _waited(row, length, first, later, shortest):
            yield refuse(
                pointer, "waited_for_memory", "it took several times as long as its other rows let expect", row
            )
        else:
            yield _record(document.source_path, pointer, row, length, first, later)


def _waited(
    row: Mapping[str, Any], length: int, first: float, later: float, shortest: Mapping[tuple[Any, ...], float]
) -> bool:
    """Return whether a model seems not to have fitted into memory; more weights, or a longer prompt, explain less."""
    steps = _WEIGHTS[: _WEIGHTS.index(_weights(row)) + 1][::-1]
    limits = [_SAME_WEIGHTS_MAX, *(_WIDER_WEIGHTS_MAX**number for number in range(1, len(steps)))]
    longest = min(
        limit * shortest.get((row["Topology"], weights), math.inf) for limit, weights in zip(limits, steps, strict=True)
    )
    return later > longest or (length >= _LONG_PROMPT and first > _FIRST_MAX * shortest[_prompt(row)])


def _prompt(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the model and the length of the prompt, which set the time of the first token."""
    return row["Topology"], pick(row, "Input Size"), "prompt"


def _weights(row: Mapping[str, Any]) -> str:
    """Return the format of the weights: `INT4` of `INT4-MIXED`, in which some layers have 8 bits."""
    return (text_of(row["Precision"]) or "").partition("-")[0]


def _record(
    source_path: str, pointer: str, row: Mapping[str, Any], length: int, first: float, later: float
) -> Record | RefusedCell:
    named = _PROCESSOR.fullmatch(parts(source_path)[0])
    series = _SERIES_NAMES.get(f"{named['series']}-{named['number']}", named["series"]) if named else None
    device = f"Intel Core Ultra {series} {named['number']} iGPU" if named else None
    name = row["Topology"].removesuffix("-gptq")
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile((_OTHER_NAMES.get(name, name),), "openvino", precision=_weights(row), runtime="openvino"),
        machine=Machine(device_names={"openvino": device} if device else {}),
        original={"topology": row["Topology"], "scheme": row["Precision"]},
    )
    figures = {
        "mode": "generation",
        "batch_size": 1,
        "sequence_length": length,
        "output_tokens": _OUTPUT_TOKENS,
        "latency_mean_ms": first + (_OUTPUT_TOKENS - 1) * later,
        "time_to_first_token_ms": first,
        "time_per_output_token_ms": later,
    }
    return cell.result("ok", figures, units={"latency": "ms"})
