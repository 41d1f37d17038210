"""Measured events that travel as a file: out of one log, into another, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.bench.run.campaign import export_campaign
from accel_platform.errors import AccelError, InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from factories import event, result


def _log(home: Path) -> EventLog:
    return EventLog.open(Settings(home=home))


def _measured(log: EventLog, run: str, count: int = 2) -> list[str]:
    events = [event(result(batch_size=n + 1), run_id=run) for n in range(count)]
    log.append(events, key=f"{SEGMENT_PREFIX}{run}-0000")
    return [str(e.event_id) for e in events]


def test_what_one_log_measured_another_holds_equally(tmp_path: Path) -> None:
    here, there, file = _log(tmp_path / "here"), _log(tmp_path / "there"), tmp_path / "campaign.parquet"
    _measured(here, "run-1")
    _measured(here, "run-2")
    here.append([event(result(), run_id="imported")])  # not measured here, so not this log's to pass on
    written = export_campaign(here, file)
    assert (written.runs, written.events, written.results, written.size_bytes) == (2, 4, 4, file.stat().st_size)
    own = sorted((e for e in here.read() if e.run_id != "imported"), key=lambda e: e.event_id)
    assert there.adopt(file).new
    assert list(there.read()) == own
    assert not there.adopt(file).new
    assert len(list(there.read())) == 4
    # The log that measured it gains nothing: events are known by their ids, wherever they lie.
    assert {e.event_id for e in here.read()} >= {e.event_id for e in own}


def test_runs_are_chosen_by_id(tmp_path: Path) -> None:
    log, file = _log(tmp_path), tmp_path / "one.parquet"
    _measured(log, "run-1")
    wanted = _measured(log, "run-2")
    export_campaign(log, file, runs=["run-2"])
    taken = _log(tmp_path / "there")
    taken.adopt(file)
    assert [str(e.event_id) for e in taken.read()] == wanted
    with pytest.raises(NotFound, match="run-9"):
        export_campaign(log, file, runs=["run-9"])


def test_nothing_measured_is_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="accel bench run"):
        export_campaign(_log(tmp_path), tmp_path / "none.parquet")
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize("content", [b"", b"PAR1 but no more", b'{"results": []}'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file.parquet"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"file\.parquet is no file of events"):
        _log(tmp_path).adopt(file)
    with pytest.raises(AccelError, match="Cannot read"):
        _log(tmp_path).adopt(tmp_path / "nothing.parquet")
