"""The simulated queue of a serving engine: against queueing theory, and what holds whatever comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.serving.queueing import (
    LENGTH_JITTER,
    MAX_P99_OVER_MEAN,
    Pace,
    Traffic,
    draw_lengths,
    draw_traffic,
    lognormal_sigma,
    replay_trace,
    rescale_to_typical,
    simulate,
)

PACE = Pace(step_s=[0.010 + 0.001 * n for n in range(64)], prompt_s=0.05, stall_s=0.01, room_tokens=100_000)


def same(users: int, requests_per_s: float | None = None, into: float = 100, out: float = 20) -> Traffic:
    return draw_traffic(users, requests_per_s, (into, None), (out, None), context=0)


def test_one_request_at_a_time_waits_as_theory_says() -> None:
    """M/D/1: with service of S seconds and utilization r, the mean wait is r S / (2 (1 - r)) (Pollaczek-Khinchine)."""
    pace = Pace(step_s=[0.01], prompt_s=0.1, stall_s=0.0, room_tokens=120)
    service_s = 0.1 + 19 * 0.01
    drawn = np.random.default_rng(5)
    for utilization in (0.3, 0.6, 0.8):
        arrival = np.cumsum(drawn.exponential(service_s / utilization, 60_000))
        played = simulate(pace, Traffic(np.full(60_000, 100.0), np.full(60_000, 20.0), arrival, users=1))
        waited_s = played.first_token_ms.mean() / 1e3 - 0.1
        assert waited_s == pytest.approx(utilization * service_s / 2 / (1 - utilization), rel=0.08)
        assert played.output_token_ms == pytest.approx(10.0)


def test_users_in_a_closed_loop_get_the_steps_of_so_many_and_the_prompts_of_the_others() -> None:
    for users in (1, 4, 32):
        traffic = same(users, out=400)
        played = simulate(PACE, traffic)
        # A request of 400 tokens spends some of its time at its prompt, so that a few less run.
        step_ms = 1e3 * (PACE.step_s[users - 1] + PACE.stall_s * (users - 1) / 400)
        assert np.median(played.output_token_ms) == pytest.approx(step_ms, rel=0.03)
        shortest = traffic.input_tokens.min() / traffic.input_tokens.mean()
        assert played.first_token_ms.min() >= 49.999 * shortest


def test_users_do_not_fall_into_step_where_prompts_are_much_of_the_work() -> None:
    """Requests that are exactly alike come together, and wait ten times as long as those that nearly are."""
    pace = Pace(step_s=[0.0044 + 0.000064 * n for n in range(250)], prompt_s=0.84, stall_s=0.064, room_tokens=1e9)
    alike_s, spread_s = (
        np.median(simulate(pace, draw_traffic(250, None, (16_000, into), (256, out), 0)).first_token_ms) / 1e3
        for into, out in ((None, None), (48_000, 768))
    )
    assert pace.prompt_s * (1 - LENGTH_JITTER) <= alike_s < 2 * spread_s


def test_what_has_no_room_waits_for_its_turn() -> None:
    roomy, tight = (simulate(Pace(PACE.step_s, 0.05, 0.01, room_tokens=room), same(8)) for room in (10_000, 240))
    assert np.median(tight.first_token_ms) > 3 * np.median(roomy.first_token_ms)
    assert np.median(tight.output_token_ms) < np.median(roomy.output_token_ms)


@given(
    users=st.integers(1, 40), rate=st.none() | st.floats(0.1, 30), into_p99=st.none() | st.floats(1.01, 14),
    out_p99=st.none() | st.floats(1.01, 14), room=st.integers(1, 5000), stall=st.floats(0, 0.05),
)  # fmt: skip
def test_every_request_is_answered_in_order_of_its_own_times(
    users: int, rate: float | None, into_p99: float | None, out_p99: float | None, room: int, stall: float
) -> None:
    traffic = draw_traffic(
        users, rate, (100, into_p99 and 100 * into_p99), (20, out_p99 and 20 * out_p99), context=2000
    )
    traffic = Traffic(
        traffic.input_tokens[:60], traffic.output_tokens[:60],
        None if traffic.arrival_s is None else traffic.arrival_s[:60], users,
    )  # fmt: skip
    assert np.all(traffic.input_tokens + traffic.output_tokens <= 2000)
    played = simulate(Pace(PACE.step_s, 0.05, stall, room_tokens=room), traffic)
    assert len(played.first_token_ms) == 48
    assert np.all(played.first_token_ms > 0)
    assert np.all(played.output_token_ms >= 0)
    assert played.end_to_end_ms == pytest.approx(
        played.first_token_ms + played.output_token_ms * played.further_tokens, rel=1e-9, abs=1e-6
    )
    # No token after the first comes faster than a step of one request.
    several = played.further_tokens >= 1
    assert np.all(played.output_token_ms[several] >= 1e3 * PACE.step_s[0] * (1 - 1e-6))


@given(mean=st.floats(10, 1e5), ratio=st.floats(1.05, MAX_P99_OVER_MEAN - 0.5))
def test_drawn_lengths_have_the_mean_and_the_percentile_asked_for(mean: float, ratio: float) -> None:
    sigma = lognormal_sigma(mean, mean * ratio)
    logs = np.log(mean) - sigma**2 / 2 + sigma * 2.3263
    assert np.exp(logs) == pytest.approx(mean * ratio, rel=1e-6)
    if ratio < 4:
        drawn = draw_lengths(np.random.default_rng(1), mean, mean * ratio, 200_000)
        assert drawn.mean() == pytest.approx(mean, rel=0.05)
        assert np.percentile(drawn, 99) == pytest.approx(mean * ratio, rel=0.1, abs=1.0)
    for impossible in (0.9, MAX_P99_OVER_MEAN + 0.1):
        assert np.isnan(lognormal_sigma(mean, mean * impossible))


def test_a_copy_gets_its_share_of_a_trace_and_the_trace_goes_on() -> None:
    requests = [(float(i), 100.0 + i, 10.0) for i in range(10)]
    whole, half = (replay_trace(1, None, requests, copies) for copies in (1, 2))
    assert whole.arrival_s is not None
    assert half.arrival_s is not None
    assert len(half.input_tokens) >= 1500
    assert np.allclose(np.diff(whole.arrival_s), 1.0)
    assert np.allclose(np.diff(half.arrival_s), 2.0)
    assert half.input_tokens[:6].tolist() == [100, 102, 104, 106, 108, 100]
    again = replay_trace(3, None, [(None, 7.0, 2.0), (None, 9.0, 4.0)], 1)
    assert again.arrival_s is None
    assert again.output_tokens[:3].tolist() == [2, 4, 2]


def test_played_times_are_scaled_to_what_is_typical() -> None:
    typical = simulate(PACE, same(8, out=50))
    spread_out = simulate(PACE, draw_traffic(8, None, (100, 400), (50, 200), context=0))
    scaled = rescale_to_typical(typical, typical, 500.0, 30.0)
    assert np.median(scaled.first_token_ms) == pytest.approx(500)
    assert np.median(scaled.output_token_ms) == pytest.approx(30)
    other = rescale_to_typical(spread_out, typical, 500.0, 30.0)
    ratio = np.percentile(other.first_token_ms, 99) / np.percentile(spread_out.first_token_ms, 99)
    assert ratio == pytest.approx(500 / np.median(typical.first_token_ms))
