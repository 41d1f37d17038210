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

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

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


def simulate(pace: Pace, traffic: Traffic) -> RequestTimes:
    """Run the requests through an engine of this pace, and return the times of those after the warm-up."""
    count = len(traffic.input_tokens)
    came, first, last = (np.array(times)[int(_WARM_UP_SHARE * count) :] for times in _run(pace, traffic))
    further = traffic.output_tokens[int(_WARM_UP_SHARE * count) :] - 1
    return RequestTimes(
        1e3 * (first - came), 1e3 * (last - first) / np.maximum(further, 1), 1e3 * (last - came), further
    )


def _run(pace: Pace, traffic: Traffic) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds from the start at which each request came, got its first token and got its last.

    Each turn of the loop is one event: an arrival, a first token or a last one. All state is in local names, and no
    function is called for a comparison, because an answer simulates millions of events: both took twice as long.
    """
    tokens, outputs = (traffic.input_tokens + traffic.output_tokens).tolist(), traffic.output_tokens.tolist()
    lengths = (traffic.input_tokens / float(traffic.input_tokens.mean())).tolist()
    count, apart = len(tokens), pace.prompts_apart
    room_tokens, stall_s, prompt_s = pace.room_tokens, pace.stall_s, pace.prompt_s
    steps_s = [math.inf, *pace.step_s, *itertools.repeat(pace.step_s[-1], count - len(pace.step_s))]
    came_s, first_s, last_s = [0.0] * count, [0.0] * count, [0.0] * count
    # Requests are known by their index in the traffic. These are heaps of pairs of a time and a request:
    # of prompts the time is that of the first token, of running requests the number of the step of the last one.
    arrivals = list(zip(_initial_arrivals_s(pace, traffic), range(count), strict=False))
    prompts, running = list[tuple[float, int]](), list[tuple[float, int]]()
    waiting, next_request, done = deque[int](), len(arrivals), 0
    steps = now_s = held_tokens = stalled_until_s = 0.0
    while done < count:
        from_s = now_s if apart or now_s > stalled_until_s else stalled_until_s
        end_s = math.inf
        if running:
            step_s = steps_s[len(running)]
            left = running[0][0] - steps
            end_s = from_s + left * step_s if left > 0 else from_s
        then_s = arrivals[0][0] if arrivals else math.inf
        first_end_s = prompts[0][0] if prompts else math.inf
        now_s = then_s if then_s < end_s else end_s  # noqa: FURB136  # min() takes three times as long
        now_s = first_end_s if first_end_s < now_s else now_s  # noqa: FURB136
        if running and now_s > from_s:
            steps += (now_s - from_s) / step_s
        if now_s == then_s < end_s:
            i = heappop(arrivals)[1]
            came_s[i] = now_s
            waiting.append(i)
        else:
            if now_s == end_s:
                i = heappop(running)[1]
            else:
                i = heappop(prompts)[1]
                first_s[i] = now_s
                if outputs[i] > 1:
                    heappush(running, (steps + outputs[i] - 1, i))
                    continue
            last_s[i] = now_s
            held_tokens -= tokens[i]
            done += 1
            if next_request < count:
                # Closed loop: the user whose request ended sends the next one at once.
                heappush(arrivals, (now_s, next_request))
                next_request += 1
        # Prompts of waiting requests start in their order, as far as the cache has room.
        while waiting and (not held_tokens or held_tokens + tokens[waiting[0]] <= room_tokens):
            i = waiting.popleft()
            held_tokens += tokens[i]
            start_s = max(now_s, stalled_until_s)
            stalled_until_s = start_s + stall_s * lengths[i]
            heappush(prompts, (start_s + prompt_s * lengths[i], i))
    return came_s, first_s, last_s


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
