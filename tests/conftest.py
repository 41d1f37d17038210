"""Fixtures every test may use: an installation in a directory of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from accel_platform.events import EventLog
from accel_platform.settings import Settings

# Set before Great Expectations or a child process is imported or started.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
# Machines that run tests are slow and busy: examples are bounded by number, never by time.
hypothesis_settings.register_profile("accel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("accel")


# A shell has what it starts in the background ignore Ctrl-C, and all children after it: tests send it to some.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An empty installation."""
    return Settings(home=tmp_path / "home")


@pytest.fixture
def log(settings: Settings) -> EventLog:
    return EventLog.open(settings)
