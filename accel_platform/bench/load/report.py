"""Report of a load, in the form of vLLM's `bench serve`, so that every tool that reads those reads it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

from accel_platform.bench.load.client import Answer, Target
from accel_platform.bench.load.generator import LoadResult
from accel_platform.table_io.values import count_of

P99_REQUESTS = 200
"""Fewest answers for a 99th percentile: two are above it."""
_LATE_SHARE = 0.02
"""Share of the typical time to the first token; a client that sends later than that is reported."""
_S_TO_MS = 1e3


def output_tokens(answer: Answer) -> int:
    """Return the tokens of an answer: the server's count, but that of its parts where it counts fewer."""
    return max(answer.output_tokens or 0, len(answer.token_s))


def first_token_s(answer: Answer) -> float:
    """Return the seconds from when the request was due to its first token."""
    return answer.token_s[0] - answer.due_s


def further_token_s(answer: Answer) -> float | None:
    """Return the seconds per token after the first; None for an answer of one."""
    more = output_tokens(answer) - 1
    return (answer.token_s[-1] - answer.token_s[0]) / more if more > 0 and len(answer.token_s) > 1 else None


def report(result: LoadResult, target: Target, stated: dict[str, Any], remarks: list[str]) -> dict[str, Any]:
    """Return the load with its statistics; `stated` is what the user says of server and device."""
    answers = [answer for answer in result.answers if answer.problem is None]
    problems = Counter(answer.problem for answer in result.answers if answer.problem is not None)
    shape = result.shape
    tokens = [output_tokens(answer) for answer in answers]
    prompts = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    content: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "generated_by": "accel bench serve",
        "endpoint": target.server.url + target.path,
        "model_id": target.model,
        **stated,
        "num_prompts": shape.requests,
        "random_input_len": round(float(np.mean(prompts))) if prompts else shape.input_tokens,
        "random_output_len": round(float(np.mean(tokens))) if tokens else shape.output_tokens,
        "request_rate": "inf" if shape.requests_per_s is None else shape.requests_per_s,
        "max_concurrency": shape.users,
        "seed": shape.seed,
        "duration": result.duration_s,
        "completed": len(answers),
        "failed": len(result.answers) - len(answers),
        "request_throughput": 0.0,
        "output_throughput": 0.0,
        "total_input_tokens": sum(prompts),
        "total_output_tokens": sum(tokens),
        "errors": [f"{count} x {problem}" for problem, count in problems.most_common()],
        "remarks": [*remarks, *_remarks(result, answers)],
    }
    if result.stopped:
        content["stopped"] = f"stopped after {len(result.answers)} of {shape.requests} requests"
    return content | (_figures(answers, result.duration_s) if answers else {})


def _figures(answers: list[Answer], duration_s: float) -> dict[str, Any]:
    """Return rates, statistics and raw times of one or more answers."""
    tokens = [output_tokens(answer) for answer in answers]
    gaps = [np.diff(answer.token_s) for answer in answers]
    series = {
        "ttft": [first_token_s(answer) for answer in answers],
        "tpot": [each for each in map(further_token_s, answers) if each is not None],
        "itl": np.concatenate(gaps).tolist(),
        "e2el": [answer.ended_s - answer.due_s for answer in answers],
    }
    return {
        "request_throughput": len(answers) / duration_s,
        "output_throughput": sum(tokens) / duration_s,
        **{key: value for name, values in series.items() for key, value in _statistics(name, values).items()},
        "ttfts": series["ttft"],
        "itls": [gap.tolist() for gap in gaps],
        "input_lens": [answer.prompt_tokens for answer in answers],
        "output_lens": tokens,
    }


def _statistics(name: str, seconds: list[float]) -> dict[str, float]:
    """Return mean, median, spread and percentiles in milliseconds; the 99th only of enough values."""
    if not seconds:
        return {}
    ms = np.array(seconds) * _S_TO_MS
    found = {"mean": np.mean(ms), "median": np.median(ms), "std": np.std(ms), "p90": np.percentile(ms, 90)}
    if len(seconds) >= P99_REQUESTS:
        found["p99"] = np.percentile(ms, 99)
    return {f"{statistic}_{name}_ms": float(value) for statistic, value in found.items()}


def _remarks(result: LoadResult, answers: list[Answer]) -> list[str]:
    """Return what a reader of the figures has to know: counts that differ, late sending, too few requests."""
    remarks = []
    if 0 < len(answers) < P99_REQUESTS:
        remarks.append(f"no 99th percentile: {count_of(len(answers), 'answer')}, {P99_REQUESTS} are needed")
    uncounted = sum(answer.output_tokens is None for answer in answers)
    if uncounted:
        remarks.append(f"{uncounted} answers came without a count of tokens: their parts were counted")
    wrong = [a for a in answers if a.output_tokens is not None and a.output_tokens < len(a.token_s)]
    if wrong:
        first = wrong[0]
        remarks.append(
            f"{len(wrong)} answers have more parts with text than tokens ({len(first.token_s)} and "
            f"{first.output_tokens}): their parts were counted"
        )
    short = [a for a in answers if output_tokens(a) != result.shape.output_tokens]
    if short:
        remarks.append(
            f"{len(short)} answers have another length than the {result.shape.output_tokens} tokens asked for"
        )
    if answers:
        late = float(np.percentile([a.sent_s - a.due_s for a in answers], 99))
        typical = float(np.median([first_token_s(a) for a in answers]))
        if late > _LATE_SHARE * typical:
            remarks.append(
                f"this client sent up to {late * _S_TO_MS:.3g} ms late, which counts as waiting: run it on a machine "
                "with more to spare"
            )
    return remarks
