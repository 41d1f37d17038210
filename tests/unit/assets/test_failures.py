"""Foreseeable failures of steps: what Dagster stores of them, and that every step has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import dagster as dg
import pytest

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import RunFailed
from accel_platform.settings import Settings
from assets.definitions import build_defs
from assets.failures import explain_failures
from assets.resources import Installation
from assets.triggers.sensors import failed_runs


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


def test_a_failed_run_of_assets_is_named_by_them(log: EventLog, settings: Settings) -> None:
    resources = {"accel": Installation(home=str(settings.home))}
    job = build_defs(resources=resources).resolve_implicit_global_asset_job_def()
    wanted = [dg.AssetKey("raw_events"), dg.AssetKey("results")]
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, asset_selection=wanted, raise_on_error=False)
        [failure] = [event for event in done.all_events if event.is_job_failure]
        run = instance.get_run_by_id(done.run_id)
        assert run is not None
        context = dg.build_run_status_sensor_context(
            sensor_name="failed_runs",
            dagster_instance=instance,
            dagster_run=run,
            dagster_event=failure,
            resources=resources,
        )
        failed_runs(context.for_run_failure())
    [event] = log.read(types={RunFailed.__name__})
    assert isinstance(event.payload, RunFailed)
    assert event.payload.job == "raw_events, results"
    assert event.payload.failures["raw_events"].startswith("The event log is empty")
    assert "__ASSET_JOB" not in event.payload.reason


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
