"""Scatter of published figures of one configuration, by runtime."""

from __future__ import annotations

import pytest

from predictor.data.published_scatter import PublishedScatter


def test_each_runtime_counts_the_same_for_one_that_is_not_known() -> None:
    near, far = [i / 1_000 for i in range(1_000)], [2 + i / 100 for i in range(100)]
    scatter = PublishedScatter.of({"near": near, "far": far, "two": [9.0, 9.0]})
    assert scatter.log_factor("near") == pytest.approx(0.9, abs=0.01)
    assert scatter.log_factor("far") == pytest.approx(2.9, abs=0.02)
    # Nine tenths of both together: all that are near, and four fifths of those that are far.
    assert scatter.log_factor("two") == scatter.log_factor("another") == pytest.approx(2.8, abs=0.02)


def test_without_figures_to_compare_nothing_is_known() -> None:
    assert PublishedScatter.of({"one": [0.1] * 39}).log_factor("one") is None
