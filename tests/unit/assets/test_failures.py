"""Foreseeable failures of steps: what Dagster stores of them, and that every step has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import dagster as dg
import pytest

from accel_platform.errors import InvalidInput, NotFound
from assets.definitions import build_defs
from assets.failures import explain_failures
from assets.resources import Installation


def _fail(step: Callable[..., Any]) -> Any:
    op = dg.op(name="step")(explain_failures(step))
    done = dg.GraphDefinition(name="job", node_defs=[op]).to_job().execute_in_process(raise_on_error=False)
    return done.failure_data_for_node("step")


def test_a_foreseeable_failure_is_its_message_and_its_traceback_an_entry() -> None:
    def step() -> None:
        try:
            int("ten")
        except ValueError as error:
            raise InvalidInput("'ten' is no number: write it in digits.") from error

    failure = _fail(step)
    assert failure.user_failure_data.description == "'ten' is no number: write it in digits."
    assert len(failure.error.stack) == 1
    assert failure.error.cause is None
    cause = failure.user_failure_data.metadata["traceback"].value
    assert "ValueError: invalid literal" in cause
    assert "InvalidInput: 'ten'" in cause


def test_a_failure_raised_as_one_stays_what_it_is() -> None:
    def step() -> Iterator[dg.Output[int]]:
        yield dg.Output(1)
        raise dg.Failure("refused", metadata={"job": "17"}, allow_retries=False)

    failure = _fail(step)
    assert failure.user_failure_data.description == "refused"
    assert failure.user_failure_data.metadata["job"].value == "17"
    assert len(failure.error.stack) == 1
    with pytest.raises(dg.Failure) as raised:
        list(explain_failures(step)())
    assert raised.value.allow_retries is False


def test_a_bug_keeps_its_traceback() -> None:
    def step() -> None:
        raise ValueError("a bug")

    failure = _fail(step)
    assert failure.user_failure_data is None
    assert "a bug" in failure.error.cause.message
    assert any("in step" in frame for frame in failure.error.cause.stack)


class _Gone:
    def __getattr__(self, name: str) -> NoReturn:
        raise NotFound("it is not there")


def test_every_step_explains_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_HOST_POOLS", "{}")
    from assets.hosts import build_host_defs

    def gone() -> NoReturn:
        raise NotFound("it is not there")

    monkeypatch.setattr("assets.events.detect", gone)
    steps: dict[str, Any] = {}
    for defs in (build_defs(), build_host_defs({"cpu": "host/cpu"}, Installation())):
        repository = defs.get_repository_def()
        for job in repository.get_all_jobs():
            for node in job.graph.node_defs:
                assert isinstance(node, dg.OpDefinition)
                steps[node.name] = node.compute_fn
    assert len(steps) >= 13
    for compute in steps.values():
        function = compute.decorated_fn
        needs = {"config", "accel"} & function.__annotations__.keys()
        with pytest.raises(dg.Failure, match="it is not there"):
            list(function(_Gone(), **{name: _Gone() for name in needs}) or ())
