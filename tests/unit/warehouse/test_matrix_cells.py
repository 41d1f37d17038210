"""The matrix and the counts of an increment are those of a computation from all results."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from accel_platform.events import Event, EventLog
from accel_platform.events.types import (
    KnowledgeAdded,
    KnowledgeRemoved,
    ResultSuspected,
    RunFinished,
    Suspicion,
    SuspicionOverruled,
)
from accel_platform.settings import Settings
from accel_platform.warehouse import build_layer, publish
from accel_platform.warehouse.layers import Projection, current
from factories import event, result, verification

_SHAPES: Any = {
    "model_id": st.sampled_from(["bert-base", "vit-base"]),
    "hardware": st.sampled_from(["cpu", "openvino"]),
    "device_id": st.sampled_from(["d1", "d2"]),
    "batch_size": st.sampled_from([1, 4]),
}
_samples = st.integers(1, 10**9).map(lambda ns: tuple(ns + 1000 * n for n in range(12)))
_disturbed = st.sampled_from([{}, {"contention": {"others_share": 0.5, "waiting_share": 0.5}}])
_results = st.one_of(
    st.builds(result, **_SHAPES, fingerprint=st.sampled_from(["old", "new"]), samples_ns=_samples,
              environment=_disturbed),
    st.builds(result, **_SHAPES, status=st.just("failed"), reason=st.sampled_from(["out of memory", None]),
              failure_class=st.sampled_from([None, "unsupported_precision"]), samples_ns=st.just(())),
    st.builds(result, **_SHAPES, provenance=st.just("imported"), samples_ns=st.just(()),
              latency_mean_ms=st.integers(1, 100).map(float)),
    st.builds(result, **_SHAPES, provenance=st.just("suspect"), samples_ns=st.just(()),
              latency_mean_ms=st.just(3.0),
              suspicions=st.just((Suspicion(rule="r", verdict="suspect", evidence="e", confidence=0.9),))),
)  # fmt: skip
_verifications = st.builds(verification, **_SHAPES, passed=st.booleans())
_said_of_results = st.one_of(
    st.builds(ResultSuspected, result_id=st.integers(0, 9).map(lambda n: UUID(int=n)), rule=st.sampled_from("rs"),
              verdict=st.sampled_from(["suspect", "simulated"]), evidence=st.just("e"), confidence=st.just(0.9)),
    st.builds(SuspicionOverruled, result_id=st.integers(0, 9).map(lambda n: UUID(int=n)), rule=st.sampled_from("rs"),
              by=st.just("b"), reason=st.just("why")),
    st.builds(KnowledgeAdded, pack=st.just("p"), version=st.sampled_from("12"), card=st.just({})),
    st.builds(KnowledgeRemoved, pack=st.just("p"), by=st.just("b")),
)  # fmt: skip


@st.composite
def _histories(draw: st.DrawFn) -> list[list[Event]]:
    """Batches of events, the first so large that its layer stays below the others."""

    def events(payloads: list[Any]) -> list[Event]:
        runs, sources = st.sampled_from(["r1", "r2", None]), st.sampled_from(["test", "pack:p@1"])
        return [event(payload, run_id=draw(runs), source=draw(sources)) for payload in payloads]

    first = events(draw(st.lists(st.one_of(_results, _verifications), min_size=30, max_size=40)))
    # Ids that later events can name.
    first = [one.model_copy(update={"event_id": UUID(int=n)}) if n < 10 else one for n, one in enumerate(first)]
    anything = st.one_of(_results, _verifications, _said_of_results)
    return [first, *(events(draw(st.lists(anything, min_size=1, max_size=2))) for _ in range(draw(st.integers(1, 3))))]


def _stored_and_computed(projection: Projection) -> tuple[list[str], list[str]]:
    with projection.open() as con:
        return tuple(  # type: ignore[return-value]
            sorted(map(repr, con.execute(sql).fetchall()))
            for sql in ("FROM compat_matrix", build_layer.table_sql("compat_matrix"))
        )


def _counted_and_stored(projection: Projection) -> tuple[list[Any], list[Any]]:
    """Return the numbers of results by run and by model: counted in `results`, and as `runs` and `models` have them."""
    with projection.open() as con:
        return tuple(  # type: ignore[return-value]
            [sorted(con.execute(sql.format(*of)).fetchall()) for of in (("run_id", "runs"), ("model_id", "models"))]
            for sql in (
                "SELECT {0}, count(*) FROM results WHERE {0} IS NOT NULL GROUP BY ALL",
                "SELECT {0}, results FROM {1} WHERE results > 0",
            )
        )


@pytest.mark.slow
@given(st.data())
@hypothesis_settings(max_examples=8, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_an_increment_gives_the_matrix_and_counts_of_all_results(data: st.DataObject) -> None:
    history = data.draw(_histories())
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(home=Path(directory))
        for number, batch in enumerate(history):
            EventLog.open(settings).append(batch, key=f"batch-{number}")
            if data.draw(st.booleans()):
                projection = publish.refresh(settings).projection
            else:
                staged = publish.stage(settings)
                publish.publish(settings, staged)
                projection = staged.projection
            stored, computed = _stored_and_computed(projection)
            assert stored == computed
            counted, stored_counts = _counted_and_stored(projection)
            assert stored_counts == counted
        assert len(projection.layers) > 1


def test_only_touched_cells_are_computed_anew(settings: Settings, log: EventLog) -> None:
    """A cell in service stays as it is, even if wrong, until an event touches it."""
    for batch_size in (1, 4):
        log.append([event(result(batch_size=batch_size)) for _ in range(20)])
        log.append([event(verification(batch_size=batch_size))])
    publish.refresh(settings)
    serving = current(settings)
    assert serving is not None
    import duckdb

    with duckdb.connect(serving.directory / serving.layers[-1].file) as con:
        con.execute("UPDATE matrix_cells SET results = 1000")
        con.execute("UPDATE compat_matrix SET results_ok = 7")
    for payload, results_ok in ((RunFinished(status="succeeded", duration_s=1.0), 7), (result(batch_size=4), 1021)):
        log.append([event(payload)])
        with publish.refresh(settings).projection.open() as con:
            assert con.execute("SELECT results_ok FROM compat_matrix").fetchall() == [(results_ok,)]
