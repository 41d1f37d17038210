"""Fixtures every test may use: an installation in a directory of its own."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from object_storages import ACCOUNT, KEY, azurite, google_stand_in, make_container

from accel_platform.events import EventLog
from accel_platform.settings import Settings

# Set before Great Expectations or a child process is imported or started.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
# pytest-xdist states the width of a terminal that is none; output to a pipe is whole.
os.environ.pop("COLUMNS", None)
# Machines that run tests are slow and busy: examples are bounded by number, never by time.
for profile, examples in (("few", 5), ("everyday", 25), ("thorough", 100)):
    hypothesis_settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
hypothesis_settings.load_profile(os.environ.get("ACCEL_TEST_PROFILE", "everyday"))


# A shell has what it starts in the background ignore Ctrl-C, and all children after it: tests send it to some.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing that is imported is garbage: passes over it take a seventh of the time to collect tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()


_running: dict[str, float] = {}
"""When each test began that has not ended, by its name."""
_failed: list[str] = []


def pytest_runtest_logstart(nodeid: str) -> None:
    _running[nodeid] = time.monotonic()


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.pop(nodeid, None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


def _name_running_tests(*_: object) -> None:
    """Say what failed and what runs when time is up, before the end, as with Ctrl-C, waits for what runs."""
    lines = [f"failed: {nodeid}" for nodeid in _failed]
    lines += [f"stopped after {time.monotonic() - began:.0f} s: {nodeid}" for nodeid, began in _running.items()]
    print("", *lines, sep="\n", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


if "PYTEST_XDIST_WORKER" not in os.environ:
    signal.signal(signal.SIGTERM, _name_running_tests)


@pytest.fixture(autouse=True, scope="module")
def imports_out_of_the_collector() -> Iterator[None]:
    """Imports stay, and a full pass of the garbage collector over them takes 0.8 s.

    A service that stops would give them back, and the next one to start would pass over them.
    """
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """A backend sets how this process rounds; the next test finds torch's own settings."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("highest")
        for place, precision in (("", "none"), ("cuda.matmul", "none"), ("cudnn.conv", "tf32"), ("cudnn.rnn", "tf32")):
            attrgetter(".".join(filter(None, ("backends", place))))(torch).fp32_precision = precision


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An empty installation."""
    return Settings(home=tmp_path / "home")


@pytest.fixture
def log(settings: Settings) -> EventLog:
    return EventLog.open(settings)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on a free loopback port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(request: pytest.FixtureRequest, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket's URL; the environment leads to its server."""
    import boto3

    for name, value in {"ENDPOINT_URL": s3_endpoint, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test",
                        "DEFAULT_REGION": "us-east-1", "REGION": "us-east-1"}.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"test-{abs(hash(request.node.name)) % 10**12}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.fixture
def google_bucket(bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket's URL at a stand-in of Google Cloud Storage."""
    with google_stand_in(s3_endpoint) as address:
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "any")
        yield bucket.replace("s3://", "gs://")


@pytest.fixture(scope="session")
def azure_address() -> Iterator[str]:
    """Azure's own emulator, in the user's cache."""
    with azurite(Path.home() / ".cache" / "accel-platform" / "azurite") as address:
        yield address


@pytest.fixture
def azure_container(request: pytest.FixtureRequest, azure_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new container's URL; the environment leads to the emulator."""
    for name, value in {"ENDPOINT": azure_address, "ACCOUNT_NAME": ACCOUNT, "ACCOUNT_KEY": KEY}.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    name = f"test-{abs(hash(request.node.name)) % 10**12}"
    make_container(azure_address, name)
    return f"abfss://{name}@{ACCOUNT}.dfs.core.windows.net"


_PLACES = {"s3": "bucket", "google": "google_bucket", "azure": "azure_container"}


@pytest.fixture(params=["directory", "s3", "google", pytest.param("azure", marks=pytest.mark.slow)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store may be made."""
    if request.param == "directory":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue(_PLACES[request.param])}/some/prefix"
