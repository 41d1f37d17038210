"""Simulation of a serving engine with continuous batching, for percentiles of request times and for goodput.

The serving predictor gives the times of a typical request. How much slower the slowest requests are depends on when
requests arrive and how long they are, so each of some thousand requests is simulated:

* a request waits until the key-value cache has room for it, first come, first served;
* prompts are computed one after the other in the order of arrival, and each delays the decoding steps beside it;
* all running requests decode together, one token each per step, and a step takes longer the more of them run.

`draw_traffic` or `replay_trace` makes the requests, `simulate` runs them, and `rescale_to_typical` scales the times so
that their median is what the predictor says.
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
"""Least number of simulated requests: 15 of them are beyond the 99th percentile."""
_MAX_REQUESTS = 12_000
_MIN_REQUESTS_PER_USER = 4
"""Least number of simulated requests per user, in a closed loop."""
_WARM_UP_SHARE = 0.2
"""Share of the requests, the first ones, whose times do not count, because the engine starts empty."""
_NORMAL_P99 = 2.3263
"""99th percentile of the standard normal distribution."""
LENGTH_JITTER = 0.05
"""Largest relative deviation of lengths from their mean, where no percentile is given.

Users with requests of exactly equal length would synchronize: all their prompts would arrive together and wait for
each other. A percent of difference already prevents that.
"""
MAX_P99_OVER_MEAN = math.exp(_NORMAL_P99**2 / 2)
"""Largest ratio of 99th percentile to mean that a lognormal distribution can have."""


@dataclass(frozen=True)
class Pace:
    """Speed of the simulated engine. Times are in seconds."""

    step_s: Sequence[float]
    """Time of one decoding step with 1, 2, ... running requests; the last one holds for any larger number."""
    prompt_s: float
    """Time from the start of a prompt of mean length to its first token; proportional to the length."""
    stall_s: float
    """Time for which that prompt delays what runs beside it: the next prompt, and decoding steps."""
    room_tokens: float
    """Number of tokens whose keys and values fit into the cache at once."""
    prompts_apart: bool = False
    """True if other workers compute the prompts (disaggregated serving): they then delay each other, but no step."""


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival."""

    input_tokens: Array
    output_tokens: Array
    arrival_s: Array | None
    """Arrival of each (open loop); None if a user sends the next request when the last is answered (closed loop)."""
    users: int
    """Users of the closed loop, or those under way on average in the open one."""


@dataclass(frozen=True)
class RequestTimes:
    """Times of simulated requests after the warm-up, one row each, in milliseconds."""

    first_token_ms: Array
    output_token_ms: Array
    """Mean time per token after the first; 0 for a request of one token."""
    end_to_end_ms: Array
    further_tokens: Array
    """Number of tokens after the first."""

    @property
    def known_output_token_ms(self) -> Array:
        """`output_token_ms` of the requests that have tokens after the first."""
        return self.output_token_ms[self.further_tokens > 0]


def draw_traffic(
    users: int,
    requests_per_s: float | None,
    input_tokens: tuple[float, float | None],
    output_tokens: tuple[float, float | None],
    context: float,
) -> Traffic:
    """Return random requests, the same for equal arguments.

    Parameters
    ----------
    requests_per_s
        Rate of Poisson arrivals; None for a closed loop of `users`.
    input_tokens, output_tokens
        Mean, and 99th percentile or None: see `draw_lengths`.
    context
        Longest sequence of the model in tokens, which input and output together are cut to; 0 for no bound.
    """
    random = np.random.default_rng(0)
    count = _request_count(users)
    inputs, outputs = (draw_lengths(random, mean, p99, count) for mean, p99 in (input_tokens, output_tokens))
    if context:
        outputs = np.minimum(outputs, context - 1)
        inputs = np.minimum(inputs, context - outputs)
    arrival = None if requests_per_s is None else np.cumsum(random.exponential(1 / requests_per_s, count))
    return Traffic(inputs, outputs, arrival, users)


def replay_trace(
    users: int, requests_per_s: float | None, requests: Sequence[tuple[float | None, float, float]], copies: int
) -> Traffic:
    """Return the requests of a trace that one of several copies of a model gets, repeated until they are enough.

    Parameters
    ----------
    requests
        Arrival in seconds (None for all, if the trace has no times), input tokens and output tokens of each.
    requests_per_s
        Rate of Poisson arrivals for a trace without times; None for a closed loop of `users`.
    copies
        Number of copies that take turns: this one gets every `copies`-th request.
    """
    count = _request_count(users)
    if requests[0][0] is None:
        lengths = np.resize(np.array([tokens for _, *tokens in requests], dtype=float), (count, 2))
        random = np.random.default_rng(0)
        arrival = None if requests_per_s is None else np.cumsum(random.exponential(1 / requests_per_s, count))
        return Traffic(lengths[:, 0], lengths[:, 1], arrival, users)
    rows = np.array(sorted(requests), dtype=float)
    # The gap between two repetitions is the mean gap between two requests.
    period = (rows[-1, 0] - rows[0, 0]) * len(rows) / (len(rows) - 1)
    rounds = -(-count * copies // len(rows))
    shifts = np.repeat(np.arange(rounds) * period, len(rows))
    rows = np.tile(rows, (rounds, 1))
    rows[:, 0] += shifts
    mine = rows[::copies]
    return Traffic(mine[:, 1], mine[:, 2], mine[:, 0] - mine[0, 0], users)


def _request_count(users: int) -> int:
    return int(min(max(MIN_REQUESTS, _MIN_REQUESTS_PER_USER * users), _MAX_REQUESTS))


def draw_lengths(random: np.random.Generator, mean: float, p99: float | None, count: int) -> Array:
    """Return lognormal lengths in whole tokens; without a percentile uniform ones within LENGTH_JITTER of the mean."""
    if p99 is None:
        return np.maximum(1.0, np.round(mean * random.uniform(1 - LENGTH_JITTER, 1 + LENGTH_JITTER, count)))
    sigma = lognormal_sigma(mean, p99)
    return np.maximum(1.0, np.round(random.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)))


def lognormal_sigma(mean: float, p99: float) -> float:
    """Return the standard deviation of the logs of a lognormal distribution; NaN where none has both figures.

    Its ratio of 99th percentile to mean is exp(2.33 s - s²/2), which has its maximum at s = 2.33. This is the smaller
    of the two solutions.
    """
    ratio = p99 / mean
    if not 1 <= ratio <= MAX_P99_OVER_MEAN:
        return math.nan
    return _NORMAL_P99 - math.sqrt(_NORMAL_P99**2 - 2 * math.log(ratio))


class _Engine:
    """State of the simulated engine between two events. Times are in seconds since the simulation began.

    Requests are known by their index in the traffic. Both heaps hold pairs of an end and a request, the next first.
    """

    def __init__(self, pace: Pace, traffic: Traffic) -> None:
        self.inputs, self.outputs = traffic.input_tokens.tolist(), traffic.output_tokens.tolist()
        self.first_s, self.last_s = [0.0] * len(self.inputs), [0.0] * len(self.inputs)
        self._pace, self._mean = pace, float(traffic.input_tokens.mean())
        self._waiting: deque[int] = deque()
        self._prompts: list[tuple[float, int]] = []
        """Heap of prompts being computed: the time of the first token, and the request."""
        self._running: list[tuple[float, int]] = []
        """Heap of decoding requests: the number of the step that yields the last token, and the request."""
        self._steps = self._now_s = self._held_tokens = self._stalled_until_s = 0.0

    def run_until(self, then_s: float) -> list[int]:
        """Advance to the next end of a request, at most to this time; return the requests that ended."""
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
        """Add a request that arrives now."""
        self._waiting.append(i)
        self._admit()

    @property
    def now_s(self) -> float:
        """Time of the simulation."""
        return self._now_s

    def _end(self, i: int) -> list[int]:
        """End a request, which frees its cache, and return it."""
        self.last_s[i] = self._now_s
        self._held_tokens -= self.inputs[i] + self.outputs[i]
        self._admit()
        return [i]

    def _admit(self) -> None:
        """Start the prompts of waiting requests in their order, as far as the cache has room."""
        while self._waiting:
            i = self._waiting[0]
            tokens = self.inputs[i] + self.outputs[i]
            if self._held_tokens and self._held_tokens + tokens > self._pace.room_tokens:
                return
            self._waiting.popleft()
            self._held_tokens += tokens
            relative_length = self.inputs[i] / self._mean
            start_s = max(self._now_s, self._stalled_until_s)
            self._stalled_until_s = start_s + self._pace.stall_s * relative_length
            heapq.heappush(self._prompts, (start_s + self._pace.prompt_s * relative_length, i))


def simulate(pace: Pace, traffic: Traffic) -> RequestTimes:
    """Run the requests through an engine of this pace, and return the times of those after the warm-up."""
    engine, count = _Engine(pace, traffic), len(traffic.input_tokens)
    came_s = [0.0] * count
    arrivals = list(zip(_initial_arrivals_s(pace, traffic), range(count), strict=False))
    next_request, done = len(arrivals), 0
    while done < count:
        ended = engine.run_until(arrivals[0][0] if arrivals else math.inf)
        if not ended:
            came_s[arrivals[0][1]] = engine.now_s
            engine.add(heapq.heappop(arrivals)[1])
        done += len(ended)
        if ended and next_request < count:
            # Closed loop: the user whose request ended sends the next one at once.
            heapq.heappush(arrivals, (engine.now_s, next_request))
            next_request += 1
    counted = slice(int(_WARM_UP_SHARE * count), None)
    came, first, last = (np.array(times)[counted] for times in (came_s, engine.first_s, engine.last_s))
    further = traffic.output_tokens[counted] - 1
    return RequestTimes(
        1e3 * (first - came), 1e3 * (last - first) / np.maximum(further, 1), 1e3 * (last - came), further
    )


def _initial_arrivals_s(pace: Pace, traffic: Traffic) -> list[float]:
    """Return the arrivals that are known beforehand: all of an open loop, the first of each user in a closed one.

    The users of a closed loop start at random times within the length of one request, so that they do not synchronize.
    """
    if traffic.arrival_s is not None:
        return list(map(float, traffic.arrival_s))
    users = min(traffic.users, len(traffic.input_tokens))
    step_s = pace.step_s[min(users, len(pace.step_s)) - 1]
    whole_s = pace.prompt_s + float(traffic.output_tokens.mean()) * step_s
    return sorted(map(float, np.random.default_rng(1).uniform(0, whole_s, users)))


def rescale_to_typical(
    times: RequestTimes, typical: RequestTimes, first_token_ms: float, output_token_ms: float
) -> RequestTimes:
    """Scale simulated times by the factors that give requests of mean length the predicted times.

    Parameters
    ----------
    typical
        Simulated times of requests of mean length. If they have no tokens after the first, the time per token is
        scaled by the median of `times` instead.
    first_token_ms, output_token_ms
        Predicted median times of requests of mean length.
    """
    first = times.first_token_ms * (first_token_ms / np.median(typical.first_token_ms))
    reference = typical.known_output_token_ms if len(typical.known_output_token_ms) else times.known_output_token_ms
    scale = output_token_ms / np.median(reference) if len(reference) else 1.0
    token = times.output_token_ms * scale
    return RequestTimes(first, token, first + token * times.further_tokens, times.further_tokens)
