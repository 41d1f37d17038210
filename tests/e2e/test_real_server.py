"""`accel bench serve` against a real engine: what it says agrees with what the engine counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers_server import real_engine
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader

pytestmark = pytest.mark.slow
USERS, REQUESTS, OUTPUT_TOKENS = (1, 4), 12, 24


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    pytest.importorskip("openai", reason="`transformers serve` needs openai and accelerate: transformers[serving]")
    with real_engine(tmp_path_factory.mktemp("engine")) as served:
        yield served


def test_a_load_on_a_real_engine_is_measured_and_recorded(engine: tuple[str, str], tmp_path: Path) -> None:
    url, model = engine
    load = ["--concurrency", ",".join(map(str, USERS)), "--requests", str(REQUESTS), "--seed", "1"]
    shape = ["--input-tokens", "64", "--output-tokens", str(OUTPUT_TOKENS)]
    names = ["--device", "Test CPU", "--engine", "transformers", "--engine-version", "5"]
    done = CliRunner().invoke(
        app, ["bench", "serve", url, "--model", model, *load, *shape, *names, "--home", str(tmp_path), "--json"]
    )
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)
    assert [found["max_concurrency"] for found in reports] == list(USERS)
    for found in reports:
        assert (found["completed"], found["failed"], found["errors"]) == (REQUESTS, 0, [])
        assert found["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
        assert found["median_ttft_ms"] > 0
        # Parts of an answer hold a token each, but for letters of several bytes.
        assert found["mean_itl_ms"] == pytest.approx(found["mean_tpot_ms"], rel=0.3)
        assert found["total_input_tokens"] == pytest.approx(REQUESTS * 64, rel=0.1)
    # A batch of four costs less than four of one: continuous batching works, and the client lets it.
    one, four = (found["output_throughput"] for found in reports)
    assert four > 1.3 * one
    rows = Reader(Settings(home=tmp_path)).rows(
        "SELECT status, mode, provenance, device_name, round(time_to_first_token_ms, 3) AS first_ms FROM results "
        "ORDER BY first_ms"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("ok", "generation", "imported", "Test CPU", round(first, 3))
        for first in sorted(found["median_ttft_ms"] for found in reports)
    ]
