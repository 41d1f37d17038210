"""Fixtures of the predictor's unit tests."""

from __future__ import annotations

import lzma

import pytest


@pytest.fixture
def compressed_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have predictors compressed at the lowest level, because the highest takes 9 s of a shipped one."""
    compress = lzma.compress
    monkeypatch.setattr(lzma, "compress", lambda data, preset: compress(data, preset=0))
