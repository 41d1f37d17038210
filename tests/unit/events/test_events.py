"""Events, their storage form and their versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accel_platform.errors import AccelError, InvalidInput, NotFound
from accel_platform.events import EventLog, Snapshot, codec
from accel_platform.events.codec import UPCASTERS, upcast
from accel_platform.events.compaction import compact
from accel_platform.events.types import PAYLOADS, HostObserved, RecordQuarantined, ResultRecorded, Suspicion
from accel_platform.settings import Settings
from factories import event, result

DATA = Path(__file__).parents[2] / "data"

_text = st.text(st.characters(codec="utf-8"), max_size=20)
_quantity = st.one_of(st.none(), st.floats(min_value=0, max_value=1e12, allow_subnormal=False))
_results = st.builds(
    ResultRecorded,
    model_id=_text,
    model_family=_text,
    hardware=_text,
    backend=_text,
    status=st.sampled_from(["ok", "failed", "timeout"]),
    provenance=st.sampled_from(["measured", "imported", "suspect"]),
    batch_size=st.one_of(st.none(), st.integers(1, 2**31 - 1)),
    samples_ns=st.lists(st.integers(0, 2**62), max_size=5).map(tuple),
    latency_mean_ms=_quantity,
    memory_peak_mib=_quantity,
    noisy=st.one_of(st.none(), st.booleans()),
    suspicions=st.lists(st.builds(Suspicion, rule=_text, evidence=_text, confidence=st.floats(0, 1),
                                  verdict=st.just("suspect")), max_size=2).map(tuple),
    original=st.dictionaries(_text, st.one_of(_text, st.integers(-(2**53), 2**53), st.none())),
    occurred_local=st.one_of(st.none(), st.datetimes()),
)  # fmt: skip
_payloads = st.one_of(
    _results,
    st.builds(RecordQuarantined, source_path=_text, rule=_text, reason=_text, content=_text),
    st.builds(HostObserved, hostname=_text, os=_text, cpu_model=_text, cpu_cores_logical=st.integers(1, 999),
              memory_mib=st.floats(0, 1e9), software=st.dictionaries(_text, _text)),
)  # fmt: skip
_events = st.builds(
    event,
    _payloads,
    occurred_at=st.one_of(st.none(), st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))),  # noqa: DTZ001 - hypothesis adds the zone
    run_id=st.one_of(st.none(), _text),
)


@given(st.lists(_events, min_size=1, max_size=100))
def test_storage_gives_back_equal_events(events: list[Any]) -> None:
    table = codec.to_arrow(events)
    stored = pq.read_table(pa.BufferReader(codec.to_parquet(table, "segments/a.parquet")))
    assert list(codec.from_arrow(stored.to_batches())) == events


def test_equal_tables_give_equal_bytes() -> None:
    table = codec.to_arrow([event(result())])
    assert codec.to_parquet(table, "a") == codec.to_parquet(table, "a")


@given(st.lists(_results, max_size=5))
def test_columns_are_those_that_arrow_makes(payloads: list[Any]) -> None:
    rows = codec.to_rows([event(payload) for payload in payloads])
    columns = zip(*rows, strict=True) if rows else [()] * len(codec.SCHEMA)
    expected = [pa.array(values, kind) for values, kind in zip(columns, codec.SCHEMA.types, strict=True)]
    assert codec.rows_to_arrow(rows) == pa.Table.from_arrays(expected, schema=codec.SCHEMA)


@pytest.mark.parametrize("payload", PAYLOADS.values())
def test_what_may_be_unknown_may_be_absent(payload: type[Any]) -> None:
    """Because an unknown value is not stored, a required field that may be None could not be read again."""
    optional = {name for name, field in payload.model_fields.items() if type(None) in get_args(field.annotation)}
    assert [name for name in optional if payload.model_fields[name].is_required()] == []


def test_an_append_and_a_read_import_no_pandas(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from factories import event, result;"
        "from accel_platform.events import EventLog; from accel_platform.settings import Settings;"
        "log = EventLog.open(Settings(home=Path(sys.argv[1]))); log.append([event(result())]);"
        "assert len(list(log.read())) == len(list(log.read(types={'ResultRecorded'}))) == 1;"
        "assert 'pandas' not in sys.modules"
    )
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60, env=os.environ | path)


def test_nothing_is_invented_for_what_is_unknown() -> None:
    stored = codec.to_arrow([event(result(memory_peak_mib=None))]).to_pylist()[0]
    assert "memory_peak_mib" not in json.loads(stored["payload"])


@pytest.mark.parametrize("bad", [{"memory_peak_mib": -1.0}, {"latency_mean_ms": float("nan")}, {"batch_size": 0},
                                 {"latency_men_ms": 1.0}, {"status": "fine"}])  # fmt: skip
def test_a_payload_refuses_what_cannot_be(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        result(**bad)


class TestVersions:
    """Old events are lifted; unknown ones are refused with what to do."""

    def test_every_old_version_has_its_step(self) -> None:
        needed = {(name, v) for name, cls in PAYLOADS.items() for v in range(1, cls.VERSION)}
        assert set(UPCASTERS) == needed

    def test_a_stored_version_1_segment_reads_as_the_current_version(self) -> None:
        log = EventLog.open(Settings(home=DATA / "home-v1"))
        [lifted] = list(log.read())
        assert lifted.schema_version == 2
        payload = lifted.payload
        assert isinstance(payload, ResultRecorded)
        assert payload.samples_ns == (25_123_456, 25_000_001, 26_500_000)
        assert payload.memory_peak_mib == pytest.approx(512 * 1e6 / 2**20)
        assert payload.model_id == "bert-base"

    def test_the_future_is_refused(self) -> None:
        with pytest.raises(AccelError, match="upgrade"):
            upcast("ResultRecorded", 99, {})
        with pytest.raises(AccelError, match="upgrade"):
            upcast("NeverHeardOf", 1, {})


class TestLog:
    """Append, snapshot, time travel, compaction on a local directory."""

    def test_an_append_with_a_key_happens_once(self, log: EventLog) -> None:
        events = [event(result())]
        assert log.append(events, key="run-1").new
        assert not log.append([event(result())], key="run-1").new
        assert [e.event_id for e in log.read()] == [events[0].event_id]

    def test_a_retry_without_a_key_happens_once(self, log: EventLog) -> None:
        events = [event(result())]
        assert log.append(events).new
        assert not log.append(events).new

    @pytest.mark.parametrize("key", ["../escape", "", "a/b", ".hidden", "x" * 200])
    def test_a_key_cannot_leave_the_log(self, log: EventLog, key: str) -> None:
        with pytest.raises(InvalidInput):
            log.append([event(result())], key=key)

    def test_nothing_to_append_is_an_error(self, log: EventLog) -> None:
        with pytest.raises(InvalidInput):
            log.append([])

    def test_a_snapshot_is_time_travel(self, log: EventLog) -> None:
        log.append([event(result(batch_size=1))])
        before = log.snapshot()
        log.append([event(result(batch_size=2))])
        assert [e.payload.batch_size for e in log.read(before)] == [1]  # type: ignore[attr-defined]
        assert log.snapshot().id != before.id
        assert Snapshot(before.segments).id == before.id

    def test_compaction_keeps_every_snapshot_readable(self, log: EventLog) -> None:
        for n in range(1, 4):
            log.append([event(result(batch_size=n))], key=f"s{n}")
        early = Snapshot(frozenset({"s1", "s3"}))
        whole = log.snapshot()
        done = compact(log, grace_s=0)
        assert (done.packed, done.removed) == (3, 3)
        assert compact(log, grace_s=0).packed == 0
        assert log.snapshot() == whole
        log.append([event(result(batch_size=4))], key="s4")
        assert sorted(e.payload.batch_size for e in log.read(early)) == [1, 3]  # type: ignore[attr-defined]
        assert sorted(e.payload.batch_size for e in log.read(whole)) == [1, 2, 3]  # type: ignore[attr-defined]
        assert sorted(e.payload.batch_size for e in log.read()) == [1, 2, 3, 4]  # type: ignore[attr-defined]
        assert log.count_events(early.segments) == 2

    def test_appending_a_packed_and_pruned_key_again_does_not_double_it(self, log: EventLog) -> None:
        log.append([event(result())], key="s1")
        log.append([event(result())], key="s2")
        compact(log, grace_s=0)
        assert not log.append([event(result())], key="s1").new
        assert log.count_events(log.snapshot().segments) == 2

    def test_types_can_be_picked(self, log: EventLog) -> None:
        log.append(
            [
                event(result()),
                event(HostObserved(hostname="h", os="x", cpu_model="c", cpu_cores_logical=1, memory_mib=1)),
            ]
        )
        assert [e.type for e in log.read(types={"HostObserved"})] == ["HostObserved"]

    def test_a_missing_segment_is_named(self, log: EventLog) -> None:
        log.append([event(result())], key="gone")
        with pytest.raises(NotFound, match="lost"):
            list(log.read(Snapshot(frozenset({"gone", "lost"}))))
