"""Closed and open loops of requests: so many users at once, or so many arrivals per second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from accel_platform.bench.load.client import Answer, Target, ask, served_models
from accel_platform.bench.load.http import Server
from accel_platform.errors import InvalidInput

WORDS = ("time", "year", "people", "way", "day", "thing", "life", "child", "world", "school", "state", "hand", "place")
"""Words of which prompts are made: common enough to be one or two tokens for any tokenizer."""
_CALIBRATIONS = 4
_CLOSE = 0.02
"""Share by which a prompt's tokens may differ from those asked for."""


@dataclass(frozen=True)
class Shape:
    """One load: users at once or arrivals per second, and the lengths of requests."""

    input_tokens: int
    output_tokens: int
    requests: int
    """Requests that count, after the warm-up."""
    users: int | None = None
    requests_per_s: float | None = None
    seed: int = 0

    @property
    def warmup(self) -> int:
        """Requests before the first that counts: as many as fill the server."""
        return self.users or min(10, self.requests)


@dataclass
class LoadResult:
    """The answers that count, and how long they took."""

    shape: Shape
    answers: list[Answer] = field(default_factory=list)
    duration_s: float = 0.0
    stopped: bool = False
    """Ended before all requests were answered."""


@dataclass(frozen=True)
class Prompts:
    """Prompts of about one length, each with words of its own, so that no prefix cache knows them."""

    words: int
    generator: random.Random

    def next(self) -> str:
        return " ".join(self.generator.choices(WORDS, k=max(1, self.words)))


async def prepare(server: Server, model: str | None, shape: Shape, *, chat: bool) -> tuple[Target, int, str | None]:
    """Return the target, the words of a prompt of the length asked for, and a remark where lengths cannot be met.

    Raises InvalidInput for a server that serves no such model or answers no request, Unreachable and ServerRefused.
    """
    known = await served_models(server)
    if model is None:
        if len(known) != 1:
            listed = f"it serves {', '.join(known)}" if known else "it does not list its models"
            raise InvalidInput(f"Name the server's model with --model: {listed}.")
        model = known[0]
    elif known and model not in known:
        raise InvalidInput(f"The server has no model {model!r}: it serves {', '.join(known)}.")
    target, words = Target(server, model, chat), shape.input_tokens
    generator = random.Random(shape.seed)  # noqa: S311 - words of prompts keep no secret
    for _ in range(_CALIBRATIONS):
        answer = await ask(target, Prompts(words, generator).next(), 4)
        if answer.problem is not None and target.ignore_end:
            target = replace(target, ignore_end=False)
            answer = await ask(target, Prompts(words, generator).next(), 4)
        if answer.problem is not None:
            raise InvalidInput(f"{server.url} does not answer as a server of language models: {answer.problem}.")
        if answer.prompt_tokens is None:
            return target, words, "the server does not count a prompt's tokens: a word is taken for one"
        if abs(answer.prompt_tokens / shape.input_tokens - 1) <= _CLOSE:
            return target, words, None
        words = max(1, round(words * shape.input_tokens / answer.prompt_tokens))
    return target, words, f"prompts have about {answer.prompt_tokens} tokens, {shape.input_tokens} were asked for"


async def run_load(target: Target, shape: Shape, words: int, *, on_answer: Callable[[int], None]) -> LoadResult:
    """Send the load and return its answers; cancelling it returns those that came.

    Warm-up requests run before, in the same loop. In a closed loop others follow those that count until the last of
    these is answered, so that each of them meets a full server.
    """
    result = LoadResult(shape)
    # Each load has words of its own, because a prefix cache would know those of the load before.
    own = f"{shape.seed}/{shape.users}/{shape.requests_per_s}"
    prompts = Prompts(words, random.Random(own))  # noqa: S311 - as above
    began = time.monotonic()
    try:
        loop = _closed_loop if shape.users is not None else _open_loop
        await loop(target, prompts, result, on_answer)
    except asyncio.CancelledError:
        result.stopped = True
    began = min((answer.due_s for answer in result.answers), default=began)
    result.duration_s = max((answer.ended_s for answer in result.answers), default=began) - began
    return result


async def _closed_loop(target: Target, prompts: Prompts, result: LoadResult, on_answer: Callable[[int], None]) -> None:
    shape = result.shape
    sent, done = 0, asyncio.Event()

    async def user() -> None:
        nonlocal sent
        while not done.is_set():
            number, sent = sent, sent + 1
            answer = await ask(target, prompts.next(), shape.output_tokens)
            if shape.warmup <= number < shape.warmup + shape.requests:
                result.answers.append(answer)
                on_answer(len(result.answers))
                if len(result.answers) == shape.requests:
                    done.set()

    users = [asyncio.create_task(user()) for _ in range(shape.users or 1)]
    all_answered = asyncio.create_task(done.wait())
    try:
        ended, _ = await asyncio.wait({all_answered, *users}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            # A user that ends before has failed, and its error is raised here.
            task.result()
        await done.wait()
    finally:
        await _end([all_answered, *users])


async def _open_loop(target: Target, prompts: Prompts, result: LoadResult, on_answer: Callable[[int], None]) -> None:
    shape = result.shape
    arrivals = random.Random(shape.seed)  # noqa: S311 - as above
    due, pending = time.monotonic(), []

    async def arrive(number: int, due_s: float) -> None:
        answer = await ask(target, prompts.next(), shape.output_tokens, due_s)
        if number >= shape.warmup:
            result.answers.append(answer)
            on_answer(len(result.answers))

    try:
        for number in range(shape.warmup + shape.requests):
            due += arrivals.expovariate(shape.requests_per_s or 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            pending.append(asyncio.create_task(arrive(number, due)))
        await asyncio.gather(*pending)
    finally:
        await _end(pending)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def shapes_of(base: Shape, users: list[int], requests_per_s: list[float]) -> list[Shape]:
    """Return a shape for each number of users or arrivals."""
    return [replace(base, users=n) for n in users] + [replace(base, requests_per_s=rate) for rate in requests_per_s]
