"""Descriptions of models: the process that prepares a model traces it once, and the run reads that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accel_platform.bench.prepare import description
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.description import (
    describe_model,
    is_described,
    read_description,
    write_description,
)
from accel_platform.workloads.model_catalog import resolve_model

SPEC = resolve_model("bert-tiny")


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path)


def test_what_was_traced_is_read_as_it_was(artifacts: Artifacts) -> None:
    write_description(SPEC, artifacts)
    read, unknown = read_description(SPEC, artifacts)
    assert unknown is None
    assert read == describe_model(SPEC)
    assert read.parameters == 4_385_920


def test_another_usual_length_of_equal_weights_is_described_apart(artifacts: Artifacts) -> None:
    longer = replace(SPEC, sequence_length=256)
    for spec in (SPEC, longer):
        write_description(spec, artifacts)
    (short, _), (long, _) = (read_description(spec, artifacts) for spec in (SPEC, longer))
    assert short.flops_per_item is not None
    assert long.flops_per_item is not None
    assert long.flops_per_item > 1.5 * short.flops_per_item


def test_what_cannot_be_traced_is_named_with_the_reason(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_description(SPEC, artifacts)[1] == "it was not prepared"

    def fail(_: object) -> None:
        raise RuntimeError("its work depends on values")

    monkeypatch.setattr(description, "describe_model", fail)
    write_description(SPEC, artifacts)
    monkeypatch.undo()
    read, unknown = read_description(SPEC, artifacts)
    assert unknown is not None
    assert "depends on values" in unknown
    assert (read.model_id, read.parameters) == ("bert-tiny", None)
    assert not is_described(SPEC, artifacts), "the next run tries again"
    write_description(SPEC, artifacts)
    assert is_described(SPEC, artifacts)
