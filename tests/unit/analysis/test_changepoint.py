"""Shifts in series: found where they are, and not where they are not, whatever the noise looks like."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_platform.analysis.query.series import read_series
from accel_platform.analysis.regressions.changepoint import RECENT_VALUES, ChangePoint, find_changes, watch_changes
from accel_platform.errors import InvalidInput, NotFound

LABELLED = Path(__file__).parents[4] / "shared" / "data" / "changepoints" / "sap_hana_small_2021" / "data"
Find = Callable[..., list[object]]
finite = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


def noisy(levels: list[tuple[float, int]], *, noise: float = 0.01, seed: int = 0) -> list[float]:
    """Values around one level after the other, with normal noise relative to each."""
    generator = np.random.default_rng(seed)
    return [float(v) for level, n in levels for v in level * (1 + noise * generator.standard_normal(n))]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("after", "direction"), [(105.0, "up"), (95.0, "down")])
def test_a_step_is_found_where_it_is(seed: int, after: float, direction: str) -> None:
    [change] = find_changes(noisy([(100, 40), (after, 30)], seed=seed))
    assert abs(change.index - 40) <= 2
    assert change.direction == direction
    assert change.before == pytest.approx(100, rel=0.01)
    assert change.change_percent == pytest.approx(after - 100, abs=1)
    assert change.p_value < 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_a_watcher_knows_a_large_step_two_values_later(seed: int) -> None:
    [change] = watch_changes(noisy([(100, 30), (120, 30)], seed=seed))
    assert (change.index, change.known_at) == (30, 32)


def test_several_steps_are_each_found_once() -> None:
    values = noisy([(100, 40), (110, 30), (90, 35), (95, 50)])
    expected = [40, 70, 105]
    for find in (find_changes, watch_changes):
        found = [c.index for c in find(values)]
        assert len(found) == 3
        assert all(abs(a - b) <= 2 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("height", "length"), [(110, 20), (90, 20), (130, 6)])
def test_a_shift_that_is_undone_is_found_both_ways(height: float, length: int) -> None:
    found = find_changes(noisy([(100, 40), (height, length), (100, 40)], seed=2))
    assert [c.direction for c in found] == (["up", "down"] if height > 100 else ["down", "up"])
    for change, place in zip(found, (40, 40 + length), strict=True):
        assert abs(change.index - place) <= 1


@pytest.mark.parametrize("seed", range(10))
def test_noise_that_wanders_hides_no_step_of_many_times_its_width(seed: int) -> None:
    generator = np.random.default_rng(seed)
    wander = [0.0]
    for value in generator.standard_normal(29):
        wander.append(0.7 * wander[-1] + value)
    levels = np.where(np.arange(30) < 18, 100.0, 130.0)
    [change] = find_changes(list(levels * (1 + 0.004 * np.asarray(wander))), min_change_percent=3)
    assert abs(change.index - 18) <= 1


@pytest.mark.parametrize("find", [find_changes, watch_changes])
def test_a_step_from_zero_has_no_percent(find: Callable[..., list[ChangePoint]]) -> None:
    [change] = find([0.0] * 20 + [5.0] * 20)
    assert (change.index, change.before, change.after, change.change_percent) == (20, 0, 5, None)


@pytest.mark.parametrize("at", [5, 7])
def test_a_watcher_learns_of_a_step_within_its_first_values(at: int) -> None:
    [change] = watch_changes(noisy([(100, at), (130, 40)], seed=3))
    assert abs(change.index - at) <= 1


@pytest.mark.parametrize("find", [find_changes, watch_changes])
@pytest.mark.parametrize("size", [1.5, 10, 1000])
@pytest.mark.parametrize("width", [1, 2])
def test_a_spike_is_no_change(find: Find, size: float, width: int) -> None:
    for position in (10, 30, 58):
        values = noisy([(100, 60)])
        values[position : position + width] = [100 * size] * width
        assert find(values) == []


def test_the_end_of_a_finished_series_is_looked_at_too() -> None:
    [change] = find_changes(noisy([(100, 30), (130, RECENT_VALUES)]))
    assert change.index == 30


def test_jumping_is_no_news_in_a_series_that_jumps() -> None:
    generator = np.random.default_rng(5)
    values = np.where(generator.random(200) < 0.3, 140.0, 100.0) * (1 + 0.01 * generator.standard_normal(200))
    assert watch_changes(list(values)) == []
    assert find_changes(list(values)) == []


def test_a_small_shift_is_not_reported_below_the_limit() -> None:
    values = noisy([(100, 60), (100.5, 60)], noise=0.001)
    assert find_changes(values) == []
    assert len(find_changes(values, min_change_percent=0.2)) == 1


def test_noise_that_wanders_is_not_a_staircase() -> None:
    generator = np.random.default_rng(1)
    walk = [0.0]
    for step in generator.standard_normal(300):
        walk.append(0.8 * walk[-1] + step)
    assert len(find_changes([100 + 0.5 * w for w in walk])) <= 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("before", "after", "found"), [(100, 109.5, 0), (100, 110.5, 1), (100, 90.5, 0), (100, 89.5, 1)]
)
def test_a_watcher_misses_no_step_that_just_counts(seed: int, before: float, after: float, found: int) -> None:
    """Series whose extremes lie nearer than the smallest change are not watched value by value."""
    values = noisy([(before, 20), (after, 10)], noise=0.0005, seed=seed)
    assert len(watch_changes(values, min_change_percent=10.0)) == found


@pytest.mark.parametrize("find", [find_changes, watch_changes])
def test_short_and_constant_series_have_no_change(find: Find) -> None:
    for values in ([], [1.0], [1.0, 2.0] * 3, [5.0] * 100, [0.0] * 50):
        assert find(values) == []
    with pytest.raises(ValueError, match="value 1"):
        find([1.0, float("nan"), 2.0])


@settings(deadline=None, max_examples=50)
@given(st.lists(finite, max_size=60), st.floats(min_value=0.01, max_value=1000))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    scaled = find_changes([factor * value for value in values])
    assert [c.index for c in scaled] == [c.index for c in find_changes(values)]


@settings(deadline=None, max_examples=50)
@given(st.lists(finite, max_size=60))
def test_a_watcher_never_takes_back_what_it_said(values: list[float]) -> None:
    said = watch_changes(values)
    for end in range(len(values)):
        assert watch_changes(values[:end]) == [c for c in said if c.known_at < end]


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised() -> None:
    generator = np.random.default_rng(7)
    series = [list(100 + 5 * generator.standard_t(4, 100)) for _ in range(150)]
    assert sum(len(find_changes(values)) for values in series) <= 4
    assert sum(len(watch_changes(values)) for values in series[:60]) <= 1


@pytest.mark.skipif(not LABELLED.is_dir(), reason="the labelled series are not here")
def test_labelled_regressions_are_known_within_two_builds_and_nothing_else_is() -> None:
    alerts = {}
    for path in sorted(LABELLED.glob("*.csv")):
        found = watch_changes(read_series(path, value="Measurement", group="GHC").values)
        alerts[path.stem] = [(c.index, c.known_at - c.index, c.direction) for c in found]
    assert {name: found for name, found in alerts.items() if found} == {
        "0002": [(14, 2, "up")],
        "0011": [(93, 2, "up")],
    }


class TestSeries:
    def test_groups(self, tmp_path: Path) -> None:
        path = tmp_path / "s.csv"
        path.write_text("\ufeffbuild; when ; ms\nb;10;4\na;9;1\na;2;3\nc;11;\nb;12;6\n", encoding="utf-8")
        assert read_series(path, value="ms").values == (4, 1, 3, 6)
        assert read_series(path, value="ms").positions == (0, 1, 2, 4)
        grouped = read_series(path, value="ms", group="build")
        assert (grouped.values, grouped.positions) == ((5, 2), (0, 1))

    def test_what_is_wrong_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "s.csv"
        path.write_text("build,latency\na,1\nb,fast\n")
        with pytest.raises(InvalidInput, match=r"line 3: 'fast' is not a number"):
            read_series(path, value="latency")
        with pytest.raises(InvalidInput, match=r"no column 'latncy'. Try latency"):
            read_series(path, value="latncy")
        with pytest.raises(NotFound):
            read_series(tmp_path / "none.csv", value="latency")
        path.write_bytes(b"\xff\xfe\x00binary")
        with pytest.raises(InvalidInput, match="Cannot read"):
            read_series(path, value="latency")


def test_the_command_prints_what_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from accel_platform.__main__ import main

    path = tmp_path / "s.csv"
    path.write_text("n,ms\n" + "".join(f"{n},{v}\n" for n, v in enumerate(noisy([(100, 30), (120, 20)]))))
    for more in ([], ["--online"]):
        monkeypatch.setattr(sys, "argv", ["accel", "regress", "series", str(path), "--value", "ms", "--json", *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        [change] = json.loads(capsys.readouterr().out)
        assert {"index", "direction", "before", "after", "change_percent", "p_value"} <= set(change)
        assert (change["index"], change["direction"]) == (30, "up")
