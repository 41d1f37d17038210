"""Requests in the queue of a serving engine: a simulation of continuous batching, for percentiles and goodput.

The formula tells what is typical. How far the slowest are from it follows from when requests come and how long they
are: each is played through an engine whose steps take what the formula says. Prompts are computed one after the other
in the order they came, and hold up the steps beside them; a request waits while the cache has no room for it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.serving.work import Array

MIN_REQUESTS = 1500
"""Played at least, so that 15 are beyond the 99th percentile."""
_MOST_REQUESTS = 12_000
_TURNS = 4
"""Requests of each user that are played at least, where users ask again and again."""
_SETTLING_SHARE = 0.2
"""Share of the requests that come first and do not count, because the engine was empty before."""
_NORMAL_P99 = 2.3263
NEARLY = 0.05
"""Share by which lengths without a percentile differ from their mean. Users whose requests are exactly alike fall into
step: their prompts come together, and half of them wait for seven others where a percent of difference would end that.
"""
MOST_SPREAD = math.exp(_NORMAL_P99**2 / 2)
"""The largest ratio of 99th percentile to mean that a lognormal distribution has."""


@dataclass(frozen=True)
class Pace:
    """How long an engine takes, in seconds."""

    step_s: Sequence[float]
    """One decoding step, of one request, of two, ...; the last for all more."""
    prompt_s: float
    """First token of a prompt of mean length that waits for no other."""
    stall_s: float
    """What that prompt holds up others."""
    room_tokens: float
    """Tokens whose keys and values fit at once."""
    prompts_apart: bool = False
    """True where prompts are computed elsewhere: then they hold up each other, and no step."""


@dataclass(frozen=True)
class Traffic:
    """Requests in the order they come."""

    input_tokens: Array
    output_tokens: Array
    arrival_s: Array | None
    """When each comes; None where users ask again when their answer is there."""
    users: int


@dataclass(frozen=True)
class Played:
    """Times of the requests that counted, in ms, in any order."""

    first_token_ms: Array
    output_token_ms: Array
    """Per token after the first, of each request in the mean."""
    end_to_end_ms: Array
    further_tokens: Array
    """Tokens of each after its first."""

    @property
    def of_further_tokens(self) -> Array:
        """`output_token_ms` of the requests that have tokens after the first; of the others it is 0."""
        return self.output_token_ms[self.further_tokens > 0]


def draw_traffic(
    users: int,
    requests_per_s: float | None,
    input_tokens: tuple[float, float | None],
    output_tokens: tuple[float, float | None],
    context: float,
) -> Traffic:
    """Return requests whose lengths have a mean and, where given, a 99th percentile (lognormal), the same each time.

    Without a percentile they are nearly alike (`NEARLY`).

    With `requests_per_s` they come at random (Poisson). Lengths are cut so that both together stay in the context.
    """
    drawn = np.random.default_rng(0)
    count = _count(users)
    inputs, outputs = (lengths(drawn, mean, p99, count) for mean, p99 in (input_tokens, output_tokens))
    if context:
        outputs = np.minimum(outputs, context - 1)
        inputs = np.minimum(inputs, context - outputs)
    arrival = None if requests_per_s is None else np.cumsum(drawn.exponential(1 / requests_per_s, count))
    return Traffic(inputs, outputs, arrival, users)


def traced_traffic(
    users: int, requests_per_s: float | None, requests: Sequence[tuple[float | None, float, float]], copies: int
) -> Traffic:
    """Return the requests of a trace (seconds of arrival, tokens in and out) that one of several copies gets, again
    and again until they are enough. Without arrivals they come at random at a rate, or from users.
    """
    count = _count(users)
    if requests[0][0] is None:
        again = np.resize(np.array([lengths for _, *lengths in requests], dtype=float), (count, 2))
        drawn = np.random.default_rng(0)
        arrival = None if requests_per_s is None else np.cumsum(drawn.exponential(1 / requests_per_s, count))
        return Traffic(again[:, 0], again[:, 1], arrival, users)
    rows = np.array(sorted(requests), dtype=float)
    # A new round begins as long after the last request as requests come apart in the mean.
    period = (rows[-1, 0] - rows[0, 0]) * len(rows) / (len(rows) - 1)
    rounds = -(-count * copies // len(rows))
    shifts = np.repeat(np.arange(rounds) * period, len(rows))
    rows = np.tile(rows, (rounds, 1))
    rows[:, 0] += shifts
    mine = rows[::copies]
    return Traffic(mine[:, 1], mine[:, 2], mine[:, 0] - mine[0, 0], users)


def _count(users: int) -> int:
    return int(min(max(MIN_REQUESTS, _TURNS * users), _MOST_REQUESTS))


def lengths(drawn: np.random.Generator, mean: float, p99: float | None, count: int) -> Array:
    """Return lognormal lengths in whole tokens; all of them nearly the mean where no percentile is given."""
    if p99 is None:
        return np.maximum(1.0, np.round(mean * drawn.uniform(1 - NEARLY, 1 + NEARLY, count)))
    sigma = spread(mean, p99)
    return np.maximum(1.0, np.round(drawn.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)))


def spread(mean: float, p99: float) -> float:
    """Return the standard deviation of the logs of lengths; NaN where no lognormal distribution has both figures.

    The 99th percentile over the mean is exp(2.33 s - s²/2), which grows up to s = 2.33.
    """
    ratio = p99 / mean
    if not 1 <= ratio <= MOST_SPREAD:
        return math.nan
    return _NORMAL_P99 - math.sqrt(_NORMAL_P99**2 - 2 * math.log(ratio))


class _Engine:
    """An engine on its way through the requests; times in seconds since the first came."""

    def __init__(self, pace: Pace, traffic: Traffic) -> None:
        self.inputs, self.outputs = traffic.input_tokens.tolist(), traffic.output_tokens.tolist()
        self.first_s, self.last_s = [0.0] * len(self.inputs), [0.0] * len(self.inputs)
        self._pace, self._mean = pace, float(traffic.input_tokens.mean())
        self._waiting: deque[int] = deque()
        self._prompts: list[tuple[float, int]] = []
        """When each ends."""
        self._running: list[tuple[float, int]] = []
        """The step after which each ends."""
        self._steps = self._now_s = self._held_tokens = self._stalled_until_s = 0.0

    def run_until(self, then_s: float) -> list[int]:
        """Go on until the first requests end, or else to this time; return those that ended."""
        while True:
            prompt_s = self._prompts[0][0] if self._prompts else math.inf
            stalled_until_s = 0.0 if self._pace.prompts_apart else self._stalled_until_s
            end_s, step_s, from_s = math.inf, 0.0, max(self._now_s, stalled_until_s)
            if self._running:
                step_s = self._pace.step_s[min(len(self._running), len(self._pace.step_s)) - 1]
                end_s = from_s + max(self._running[0][0] - self._steps, 0.0) * step_s
            self._now_s = min(then_s, prompt_s, end_s)
            if self._running and self._now_s > from_s:
                self._steps += (self._now_s - from_s) / step_s
            if self._now_s == then_s < end_s:
                return []
            if self._now_s == end_s:
                return self._end(heapq.heappop(self._running)[1])
            _, i = heapq.heappop(self._prompts)
            self.first_s[i] = self._now_s
            if self.outputs[i] <= 1:
                return self._end(i)
            heapq.heappush(self._running, (self._steps + self.outputs[i] - 1, i))

    def add(self, i: int) -> None:
        """Take a request that comes now."""
        self._waiting.append(i)
        self._admit()

    @property
    def now_s(self) -> float:
        return self._now_s

    def _end(self, i: int) -> list[int]:
        self.last_s[i] = self._now_s
        self._held_tokens -= self.inputs[i] + self.outputs[i]
        self._admit()
        return [i]

    def _admit(self) -> None:
        """Begin the prompts of those that wait, in their order, while the cache has room."""
        while self._waiting:
            i = self._waiting[0]
            tokens = self.inputs[i] + self.outputs[i]
            if self._held_tokens and self._held_tokens + tokens > self._pace.room_tokens:
                return
            self._waiting.popleft()
            self._held_tokens += tokens
            longer = self.inputs[i] / self._mean
            start_s = max(self._now_s, self._stalled_until_s)
            self._stalled_until_s = start_s + self._pace.stall_s * longer
            heapq.heappush(self._prompts, (start_s + self._pace.prompt_s * longer, i))


def play(pace: Pace, traffic: Traffic) -> Played:
    """Play the requests through an engine of this pace; those that come first do not count."""
    engine, count = _Engine(pace, traffic), len(traffic.input_tokens)
    arrivals_s = _first_arrivals_s(pace, traffic)
    came_s = [0.0] * count
    coming = list(zip(arrivals_s, range(count), strict=False))
    following, done = len(coming), 0
    while done < count:
        ended = engine.run_until(coming[0][0] if coming else math.inf)
        if not ended:
            came_s[coming[0][1]] = engine.now_s
            engine.add(heapq.heappop(coming)[1])
        done += len(ended)
        if ended and following < count:
            heapq.heappush(coming, (engine.now_s, following))
            following += 1
    counts = slice(int(_SETTLING_SHARE * count), None)
    came, first, last = (np.array(times)[counts] for times in (came_s, engine.first_s, engine.last_s))
    further = traffic.output_tokens[counts] - 1
    return Played(1e3 * (first - came), 1e3 * (last - first) / np.maximum(further, 1), 1e3 * (last - came), further)


def _first_arrivals_s(pace: Pace, traffic: Traffic) -> list[float]:
    """Return when requests come that follow no other: all of them, or the first of each user.

    Users begin at different times within one request, else they would stay in step for ever.
    """
    if traffic.arrival_s is not None:
        return list(map(float, traffic.arrival_s))
    users = min(traffic.users, len(traffic.input_tokens))
    step_s = pace.step_s[min(users, len(pace.step_s)) - 1]
    whole_s = pace.prompt_s + float(traffic.output_tokens.mean()) * step_s
    return sorted(map(float, np.random.default_rng(1).uniform(0, whole_s, users)))


def alike(played: Played, typical: Played, first_token_ms: float, output_token_ms: float) -> Played:
    """Return what was played, scaled so that `typical`, played alike, has these times in the median.

    Where `typical` has no tokens after the first, what was played has the time of these in the median itself.
    """
    first = played.first_token_ms * (first_token_ms / np.median(typical.first_token_ms))
    tokens = typical.of_further_tokens if len(typical.of_further_tokens) else played.of_further_tokens
    token = played.output_token_ms * (output_token_ms / np.median(tokens)) if len(tokens) else played.output_token_ms
    return Played(first, token, first + token * played.further_tokens, played.further_tokens)
