"""Contradictions among answers of a fresh home, by kind, such as a larger batch that is faster.

Each question is asked of all GPUs of the spec sheet at once, with one size or precision changed at a time. A pair of
answers about one device contradicts itself where the one for more work is shorter by more than `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from accel_platform.events import EventLog
from accel_platform.hardware.catalog import catalog
from accel_platform.knowledge import adopt_campaigns
from accel_platform.knowledge.packs import adopt_packs
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from predictor.advisor.advisor import Advisor
from predictor.schemas.requests import RecommendQuery
from predictor.schemas.responses import Interval
from predictor.schemas.serving import ServingOption, ServingQuery

TOLERANCE = 1.05
"""Ratio of the two figures of a pair up to which they do not count as a contradiction."""
SMALLER_THAN = {"bert-base": "bert-large", "vit-base": "vit-large", "whisper-base": "whisper-small"}
MODELS = (*SMALLER_THAN, *SMALLER_THAN.values(), "resnet-50", "gpt2", "t5-small")
PRECISIONS = ("float32", "float16")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LENGTHS = {"sequence_length": (16, 32, 64, 128, 256, 512), "image_size": (64, 128, 224, 320, 448)}
VARYING = {"sequence_length": ("bert-base", "bert-large"), "image_size": ("vit-base", "resnet-50")}
SERVED = (
    "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-235B-A22B",
    "openai/gpt-oss-120b",
)  # fmt: skip
CARDS = (
    "NVIDIA B300 SXM", "NVIDIA B200 SXM", "NVIDIA H200 SXM", "NVIDIA H100 SXM5 80GB", "NVIDIA A100 SXM4 80GB",
    "NVIDIA A100 SXM4 40GB", "NVIDIA L4",
)  # fmt: skip
"""Cards for serving, each better than the next in rates and memory."""
USERS = (1, 4, 16, 64, 256)
PROMPTS = (128, 512, 2048, 8192)
_GPUS_OF_A_QUERY = 64
_RATES = ("peak_fp32_tflops", "peak_fp16_tensor_tflops", "bandwidth_gb_s", "compute_units", "cache_mib", "tdp_w")


@dataclass(frozen=True)
class Answered:
    """A figure about one place, with its provenance."""

    value: float
    provenance: str


@dataclass(frozen=True)
class Contradiction:
    """Two answers about one place, of which that for more work is the shorter."""

    kind: str
    ratio: float
    question: str
    place: str
    less_work: float
    more_work: float


Answers = Mapping[str, Answered]


class Tally:
    """Pairs that were compared, and the contradictions among them, by kind and provenance."""

    def __init__(self) -> None:
        self.pairs: Counter[str] = Counter()
        self.found: dict[str, list[Contradiction]] = defaultdict(list)

    def compare(self, kind: str, question: str, less: Answers, more: Answers, tolerance: float = TOLERANCE) -> None:
        """Compare the answers about each place that both have: those for more work should be no smaller."""
        for place in less.keys() & more.keys():
            one, other = less[place], more[place]
            name = f"{kind}, {one.provenance} then {other.provenance}"
            self.pairs[name] += 1
            ratio = one.value / other.value
            if ratio > tolerance:
                self.found[name].append(Contradiction(name, round(ratio, 2), question, place, one.value, other.value))

    def check_limits(self, question: str, place: str, interval: Interval) -> None:
        """Count an interval whose median lies outside of its limits."""
        self.pairs["limits"] += 1
        low, high = interval.low or interval.p50, interval.high or interval.p50
        if not low <= interval.p50 * (1 + 1e-9) <= high * (1 + 1e-6):
            self.found["limits"].append(Contradiction("limits", low / high, question, place, low, high))


def fresh_advisor(home: Path) -> Advisor:
    """Return an advisor over a new home with the shipped packs."""
    settings = Settings(home=home, log_uri=None)
    log = EventLog.open(settings)
    adopt_campaigns(log)
    adopt_packs(log)
    refresh(settings)
    return Advisor(settings)


def latencies(advisor: Advisor, tally: Tally, **query: Any) -> Answers:
    """Return the latency of one batch on every GPU of the spec sheet and every place that was measured."""
    gpus = [spec.name for spec in catalog() if spec.kind == "gpu" and spec.vendor in ("NVIDIA", "AMD")]
    answers: dict[str, Answered] = {}
    for hardware in (None, *(gpus[i : i + _GPUS_OF_A_QUERY] for i in range(0, len(gpus), _GPUS_OF_A_QUERY))):
        asked = RecommendQuery.model_validate(query | {"hardware": hardware, "limit": None})
        for each in advisor.recommend(asked).recommendations:
            place = f"{each.hardware} {each.backend} {each.device}"
            tally.check_limits(str(query), place, each.latency_ms)
            answers[place] = Answered(each.latency_ms.p50, each.provenance)
    return answers


def ask_for_batches(advisor: Advisor, tally: Tally) -> None:
    """Compare single batches: by size, precision, mode, length and size of the model."""
    asked: dict[tuple[str, str, str, int], Answers] = {}
    for mode, model, precision, batch in itertools.product(("inference", "training"), MODELS, PRECISIONS, BATCHES):
        asked[mode, model, precision, batch] = latencies(
            advisor, tally, model=model, mode=mode, precision=precision, batch_size=batch
        )
    for (mode, model, precision, batch), answers in asked.items():
        question = f"{model}, {precision}, batch {batch}"
        if (larger := asked.get((mode, model, precision, 2 * batch))) is not None:
            tally.compare(f"{mode}: a larger batch is faster", question, answers, larger)
            # Twice the batch should take no longer per item, so it stands for less work here.
            tally.compare(
                f"{mode}: twice the batch has less throughput",
                question,
                {place: Answered(each.value / 2, each.provenance) for place, each in larger.items()},
                answers,
                tolerance=1.15,
            )
        compare_gpus(tally, f"{mode}: a better GPU of its architecture is slower", question, answers)
        if model in SMALLER_THAN:
            larger_model = asked[mode, SMALLER_THAN[model], precision, batch]
            tally.compare(f"{mode}: a larger model is faster", question, answers, larger_model)
        if precision == "float16":
            tally.compare(f"{mode}: float32 is faster", question, answers, asked[mode, model, "float32", batch])
        if mode == "inference":
            tally.compare(
                "training is faster than inference", question, answers, asked["training", model, precision, batch]
            )
    for size, precision, batch in itertools.product(LENGTHS, PRECISIONS, (1, 16)):
        for model in VARYING[size]:
            by_size = [
                latencies(advisor, tally, model=model, precision=precision, batch_size=batch, **{size: value})
                for value in LENGTHS[size]
            ]
            for value, (less, more) in zip(LENGTHS[size], itertools.pairwise(by_size), strict=False):
                tally.compare(f"a larger {size} is faster", f"{model}, {precision}, batch {batch}, {value}", less, more)


@cache
def better_gpus() -> list[tuple[str, str]]:
    """Return pairs of GPUs of one architecture, the first of which is as good as the second in all published rates."""
    gpus = [spec for spec in catalog() if spec.kind == "gpu" and spec.architecture is not None]
    return [
        (one.name, other.name)
        for one, other in itertools.permutations(gpus, 2)
        if one.architecture == other.architecture
        and all((getattr(one, rate) or 0) >= (getattr(other, rate) or 0) for rate in _RATES)
    ]


def compare_gpus(tally: Tally, kind: str, question: str, answers: Answers) -> None:
    """Compare each GPU with those that it is better than."""
    by_gpu = {place.partition("pytorch ")[2]: each for place, each in answers.items() if "pytorch " in place}
    for better, worse in better_gpus():
        if better in by_gpu and worse in by_gpu:
            pair = f"{better} beside {worse}"
            tally.compare(kind, question, {pair: by_gpu[better]}, {pair: by_gpu[worse]})


def serve(advisor: Advisor, tally: Tally, **query: Any) -> dict[str, ServingOption]:
    """Return the options of one copy whose users all fit into memory, by number of devices and device."""
    asked = ServingQuery.model_validate(
        {"mode": "serving", "engine": "vllm", "hardware": list(CARDS), "limit": None, **query}
    )
    options: dict[str, ServingOption] = {}
    for each in advisor.recommend_serving(asked).options:
        place = f"{each.devices} x {each.device}"
        tally.check_limits(str(query), place, each.first_token_ms)
        tally.check_limits(str(query), place, each.output_token_ms)
        if each.copies == each.attention_copies == 1 and each.users <= each.memory.max_users:
            options[place] = each
    return options


def times(options: Mapping[str, ServingOption], figure: str) -> Answers:
    """Return a time of each option."""
    return {place: Answered(getattr(each, figure).p50, each.provenance) for place, each in options.items()}


def ask_for_serving(advisor: Advisor, tally: Tally) -> None:
    """Compare deployments of language models: by users, length of the prompt, card and quantization."""
    for model in SERVED:
        by_users = {users: serve(advisor, tally, model=model, users=users) for users in USERS}
        by_prompt = {tokens: serve(advisor, tally, model=model, users=4, input_tokens=tokens) for tokens in PROMPTS}
        for figure in ("first_token_ms", "output_token_ms", "end_to_end_ms"):
            for kind, asked in (("more users are served faster", by_users), ("a longer prompt is faster", by_prompt)):
                for less, more in itertools.pairwise(asked):
                    question = f"{model}, {less} then {more}"
                    tally.compare(f"{kind}, {figure}", question, times(asked[less], figure), times(asked[more], figure))
            for users, options in by_users.items():
                of_card = {card: _of_card(times(options, figure), card) for card in CARDS}
                for better, worse in itertools.pairwise(CARDS):
                    question = f"{model}, {users} users, {better} then {worse}"
                    tally.compare(f"a better card is slower, {figure}", question, of_card[better], of_card[worse])
        few_bits, many_bits = (
            times(serve(advisor, tally, model=model, quantization=of), "output_token_ms") for of in ("int4", "bfloat16")
        )
        tally.compare("int4 weights are slower for one user", model, few_bits, many_bits)


def _of_card(answers: Answers, card: str) -> Answers:
    """Return the answers about a card, by the number of cards."""
    return {place.partition(" x ")[0]: each for place, each in answers.items() if place.partition(" x ")[2] == card}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        advisor = fresh_advisor(Path(directory))
        ask_for_batches(advisor, tally)
        ask_for_serving(advisor, tally)
    kinds = {kind: sorted(tally.found[kind], key=lambda each: -each.ratio) for kind in sorted(tally.pairs)}
    if arguments.json:
        rows = [
            {
                "kind": kind,
                "pairs": tally.pairs[kind],
                "contradictions": len(found),
                "worst": list(map(asdict, found[:3])),
            }
            for kind, found in kinds.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    for kind, found in kinds.items():
        print(f"{kind}: {len(found)} of {tally.pairs[kind]}")
        for case in found[:3]:
            figures = f"{case.less_work:.4g} -> {case.more_work:.4g}"
            print(f"    {case.ratio:.2f}  {case.question}; {case.place}: {figures}")


if __name__ == "__main__":
    main()
