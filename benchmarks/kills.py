"""Losses after SIGKILL at every file operation, and at random moments, of operations that write.

Each case forks: the operation runs in a copy of a prepared installation and is killed, then a second process repeats it
and checks the promises. A file operation is one that Python's audit events tell; DuckDB's own are met by random kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accel_platform.backup import back_up, restore
from accel_platform.events import Event, EventLog, integrity
from accel_platform.events.compaction import compact
from accel_platform.events.types import ResultRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.validate import validate
from figures import Figure, tell
from migrations.pipeline.importer import migrate
from predictor.training import artifact
from predictor.training.train import train
from synthetic import result_events

_OPERATIONS = frozenset({"open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


_KNOWN_MODELS = {"bert-base-uncased": "bert", "gpt2": "gpt2", "t5-small": "t5", "roberta-base": "roberta"}
"""To their families; what is not measured of them is worked out from their shapes."""


class Broken(Exception):
    """A promise that did not hold."""


@dataclass(frozen=True)
class Operation:
    """Work that is killed, and the check of what must hold once it was repeated."""

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], object]
    check: Callable[[Path], None]
    kills: int


def _settings(root: Path) -> Settings:
    return Settings(home=root / "home")


def _log(root: Path) -> EventLog:
    return EventLog.open(_settings(root))


def _fill(root: Path) -> None:
    log = _log(root)
    for number in range(12):
        log.append_table(result_events(5, first=10 * number), key=f"filled-{number}")
    log.save_snapshot(log.snapshot())


def _events(root: Path) -> int:
    log = _log(root)
    return log.count_events(log.snapshot().segments)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def _require_sound(root: Path, filled: int = 60) -> None:
    log = _log(root)
    results = sum(event.type == "ResultRecorded" for event in log.read())
    _require(results >= filled, f"{results} results of {filled} are left")
    _require(not integrity.lost_segments(log), f"lost: {sorted(integrity.lost_segments(log))}")
    for snapshot_id in log.saved_snapshots():
        snapshot = log.load_snapshot(snapshot_id)
        _require(snapshot.segments <= log.snapshot().segments, f"snapshot {snapshot_id} is not readable")


def _append(root: Path) -> None:
    log = _log(root)
    for number in range(20):
        payload = ResultRecorded(
            model_id="m", model_family="f", hardware="cpu", backend="b", status="ok", provenance="imported",
            precision="float32", batch_size=1, latency_mean_ms=1.5 + number,
        )  # fmt: skip
        event = Event.of(payload, source="kills")
        log.append([event])
        with (root / "acknowledged").open("a") as file:
            file.write(f"{event.event_id}\n")


def _check_append(root: Path) -> None:
    acknowledged = set((root / "acknowledged").read_text().split()) if (root / "acknowledged").exists() else set()
    stored = {str(event.event_id) for event in _log(root).read()}
    # The last line may be cut: its event was stored before.
    _require({one for one in acknowledged if len(one) == 36} <= stored, "an acknowledged event is lost")
    _require_sound(root)


def _old_results(root: Path) -> None:
    old = root / "old"
    old.mkdir()
    for number, model in enumerate(("gpt2", "t5-small", "bert-base-uncased", "vit-base", "whisper-tiny", "clip")):
        for platform in ("webgpu", "webnn"):
            metrics = {"inference_time_ms": 80.5, "throughput_items_per_second": 99.5}
            document = {"model_name": model, "platform": platform, "status": "success", "metrics": metrics}
            (old / f"{number}-{platform}.json").write_text(json.dumps(document))


def _check_import(root: Path) -> None:
    publish.refresh(_settings(root))
    log = _log(root)
    results = [event for event in log.read() if event.type == "ResultRecorded"]
    doubted = {event.payload.result_id for event in log.read(types={"ResultSuspected"})}  # type: ignore[attr-defined]
    unjudged = [e for e in results if e.event_id not in doubted and e.payload.provenance == "imported"]  # type: ignore[attr-defined]
    _require(len(results) == 12, f"{len(results)} of 12 figures were imported")
    _require(not unjudged, f"{len(unjudged)} faked figures are not doubted")


def _in_tables(root: Path) -> None:
    _fill(root)
    publish.refresh(_settings(root))
    _log(root).append_table(result_events(5, first=900), key="new")


def _rebuild(root: Path) -> None:
    staged = publish.stage(_settings(root), full=True)
    publish.publish(_settings(root), staged)


def _check_tables(root: Path) -> None:
    found = validate(_settings(root), lambda _: None)
    _require(not [f for f in found.findings if f.name != "left_overs"], f"{found.findings}")
    _require_sound(root, 65)


def _pack(root: Path) -> None:
    compact(_log(root), grace_s=0)


def _fill_packed(root: Path) -> None:
    _fill(root)
    _pack(root)
    log = _log(root)
    for number in range(6):
        log.append_table(result_events(5, first=500 + 10 * number), key=f"more-{number}")
        log.save_snapshot(log.snapshot())


def _check_packed(root: Path) -> None:
    _require_sound(root, 90)
    _require(not _log(root).store.keys("segments"), "originals are kept beside their pack")


def _fill_with_predictor(root: Path) -> None:
    _fill_packed(root)
    stored = _settings(root).models_dir / "lgbm-1"
    stored.mkdir(parents=True)
    (stored / "trees.txt").write_text("trees" * 1000)
    (_settings(root).models_dir / "CURRENT").write_text("lgbm-1")


def _back_up(root: Path) -> None:
    back_up(_settings(root), root / "copy")


def _back_up_again(root: Path) -> None:
    _fill_with_predictor(root)
    _back_up(root)
    _log(root).append_table(result_events(5, first=700), key="since")
    _pack(root)


def _check_back_up(root: Path) -> None:
    there = Settings(home=root / "there")
    restore(there, root / "copy")
    ours, theirs = _log(root).snapshot(), EventLog.open(there).snapshot()
    _require(ours == theirs, "what is restored is not what was backed up")
    _require((there.models_dir / "CURRENT").read_text() == "lgbm-1", "the predictor is not restored")


def _restore(root: Path) -> None:
    restore(Settings(home=root / "there"), root / "copy")


def _backed_up(root: Path) -> None:
    _fill_with_predictor(root)
    _back_up(root)


def _check_restored(root: Path) -> None:
    ours, theirs = _log(root).snapshot(), EventLog.open(Settings(home=root / "there")).snapshot()
    _require(ours == theirs, "what is restored is not what was backed up")


def _train(root: Path) -> None:
    train(_settings(root), _log(root))


def _measured(root: Path) -> None:
    log = _log(root)
    for number, (model, family) in enumerate(_KNOWN_MODELS.items(), 1):
        for batch_size in (1, 2, 4, 8, 16):
            payload = ResultRecorded(
                model_id=model, model_family=family, hardware="cpu", backend="b", status="ok",
                provenance="imported", precision="float32", batch_size=batch_size, sequence_length=128,
                device_id="cpu-1", device_name="CPU 1", latency_mean_ms=3.0 * number * batch_size,
            )  # fmt: skip
            log.append([Event.of(payload, source="kills")])
    publish.refresh(_settings(root))


def _check_trained(root: Path) -> None:
    serving = artifact.current_id(_settings(root))
    _require(serving is not None, "no predictor serves")
    artifact.load(_settings(root), str(serving))


def _nothing(_: Path) -> None:
    """Prepare nothing."""


OPERATIONS = (
    Operation("append", _fill, _append, _check_append, 500),
    Operation("import", _old_results, lambda root: migrate([root / "old"], _log(root)), _check_import, 300),
    Operation("rebuild", _in_tables, _rebuild, _check_tables, 250),
    Operation("train", _measured, _train, _check_trained, 30),
    Operation("compaction and pruning", _fill_packed, _pack, _check_packed, 400),
    Operation("first back-up", _fill_with_predictor, _back_up, _check_back_up, 250),
    Operation("later back-up", _back_up_again, _back_up, _check_back_up, 200),
    Operation("restore", _backed_up, _restore, _check_restored, 250),
)


@contextmanager
def _forked(work: Callable[[], None]) -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            work()
            code = 0
        except BaseException:  # the parent reads it, whatever it is
            Path(os.environ["KILLS_SAID"]).write_text(traceback.format_exc())
        finally:
            os._exit(code)
    yield pid
    os.waitpid(pid, 0)


def _watch(die_at: int | None, count: Path) -> None:
    """Count file operations of this process from now on, and end it before the one with this number."""
    seen = 0

    def hear(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        reads = name == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING)
        if name not in _OPERATIONS or reads or str(arguments[0]) == str(count):
            return
        seen += 1
        if seen == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if die_at is None:
            count.write_text(str(seen))

    sys.addaudithook(hear)


def _case(operation: Operation, prepared: Path, work: Path, die_at: int | None, after_s: float | None) -> str | None:
    """Run one kill; return what did not hold, None if all did."""
    root = work / "case"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(prepared, root)

    def killed() -> None:
        if die_at is not None:
            _watch(die_at, work / "ops.count")
        operation.run(root)

    with _forked(killed) as pid:
        if after_s is not None:
            time.sleep(after_s)
            os.kill(pid, signal.SIGKILL)
    said = work / "said"
    os.environ["KILLS_SAID"] = str(said)
    said.unlink(missing_ok=True)

    def again() -> None:
        operation.run(root)
        operation.check(root)

    with _forked(again):
        pass
    return said.read_text() if said.exists() else None


def kill(operation: Operation, work: Path, share: float, rng: random.Random) -> Figure:
    """Kill one operation at each of its file operations (or a sample of them) and at random moments."""
    prepared = work / "prepared"
    shutil.rmtree(prepared, ignore_errors=True)
    prepared.mkdir(parents=True)
    os.environ["KILLS_SAID"] = str(work / "said")
    with _forked(lambda: operation.prepare(prepared)):
        pass
    root, counted = work / "case", work / "ops.count"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(prepared, root)
    counted.unlink(missing_ok=True)
    started = time.perf_counter()

    def whole() -> None:
        _watch(None, counted)
        operation.run(root)

    with _forked(whole):
        pass
    seconds, points = time.perf_counter() - started, int(counted.read_text()) if counted.exists() else 0
    kills = max(2, int(operation.kills * share))
    at = list(range(1, points + 1)) if points <= kills // 2 else sorted(rng.sample(range(1, points + 1), kills // 2))
    found: Counter[str] = Counter()
    for number in range(kills):
        problem = (
            _case(operation, prepared, work, at[number], None)
            if number < len(at)
            else _case(operation, prepared, work, None, rng.uniform(0, seconds))
        )
        if problem is not None:
            found[problem.strip().splitlines()[-1]] += 1
    detail = f"{kills} kills, {len(at)} of them at {points} file operations"
    if found:
        detail += "; " + "; ".join(f"{count} x {what}" for what, count in found.most_common(3))
    return {"what": f"{operation.name}: lost, unjudged or not repeatable", "reach": "0", "got": found.total(),
            "detail": detail}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="part of the 2,180 kills to make")
    parser.add_argument("--only", help="one operation, by its name")
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)  # noqa: S311 - which moments are tried, for all to try again
    figures = []
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="accel-bench-") as directory:
        for operation in OPERATIONS:
            if arguments.only in (None, operation.name):
                figures.append(kill(operation, Path(directory), arguments.share, rng))
                print(figures[-1], file=sys.stderr, flush=True)
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
