"""Campaigns whose engine took one request fewer than there were users, by their first tokens."""

from __future__ import annotations

import math
from itertools import product

import pytest

from accel_platform.hardware.catalog import find_spec
from predictor.serving.loads import Deployment, Load
from predictor.serving.measured_loads import MeasuredLoad, load_measured_loads
from predictor.serving.models import find_served_model
from predictor.serving.slot_waits import slot_waits_ms

_TOKEN_MS = 8.0


def _campaign(share: float, version: str, *, batch: bool = False) -> list[MeasuredLoad]:
    """Loads whose first tokens take 50 ms and `share` of the wait for a slot."""
    decoder, device = find_served_model("llama-3.1-8b"), find_spec("H100")
    assert decoder is not None
    assert device is not None
    return [
        MeasuredLoad(
            Deployment(decoder, device, "trtllm", "bfloat16", devices, engine_version=version),
            Load(users, 1024.0, answer, batch=batch),
            model="llama-3.1-8b",
            token_ms=_TOKEN_MS,
            first_ms=50.0 + share * _TOKEN_MS * answer / users,
            event_id="",
        )
        for devices, users, answer in product((1, 2), (4.0, 8.0, 16.0), (128.0, 256.0, 512.0, 1024.0))
    ]


@pytest.mark.parametrize("share", [0.9, 1.0, 1.1])
def test_a_campaign_with_a_slot_too_few_is_known_by_its_answers_lengths(share: float) -> None:
    waiting, quick = _campaign(share, "1.0"), _campaign(0.1, "1.1")
    waits = slot_waits_ms([*waiting, *quick])
    assert waits == [_TOKEN_MS * row.load.output_tokens / row.load.users for row in waiting] + [0.0] * len(quick)


def test_batches_and_few_loads_tell_of_none() -> None:
    assert not any(slot_waits_ms(_campaign(1.0, "1.0", batch=True)))
    assert not any(slot_waits_ms(_campaign(1.0, "1.0")[:4]))


def test_what_ships_has_one_such_campaign_and_learns_its_first_tokens_without_the_wait() -> None:
    rows = [row for row in load_measured_loads() if row.slot_wait_ms]
    assert {(row.model, row.deployment.engine, row.deployment.engine_version) for row in rows} == {
        ("llama-3.1-8b", "trtllm", "1.0.0rc3")
    }
    assert all(row.first_with_slot_ms < row.first_ms or math.isnan(row.first_with_slot_ms) for row in rows)
