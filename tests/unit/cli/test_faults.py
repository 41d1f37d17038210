"""Every command on a home where something is wrong: one sentence that names the place and the way out, no traceback."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import typer.main

from accel_platform.__main__ import main
from accel_platform.api_keys import KeyFileDamaged, KeyStore, Scope
from accel_platform.cli import app
from accel_platform.cli.service.serve import announce
from accel_platform.errors import StorageUnavailable, storage_unavailable
from accel_platform.events import EventLog
from accel_platform.events.types import Suspicion
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.layers import WarehouseDamaged, current, require_current
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification
from faults import no_room, without_rights

COMMANDS = {
    "status": [],
    "migrate": ["{samples}"],
    "matrix": [],
    "chart": ["--list"],
    "report": ["performance"],
    "compare": ["--models", "bert-tiny", "bert-mini", "--hardware", "cpu"],
    "trend": ["--model", "bert-tiny"],
    "train": [],
    "evaluate": [],
    "predict": ["bert-tiny", "--hardware", "cpu"],
    "recommend": ["bert-tiny"],
    "serving": ["llama-3.1-8b"],
    "bench suite": [],
    "bench requests": [],
    "bench cancel": ["x"],
    "bench export": ["{out}/campaign"],
    "bench import": ["{samples}"],
    "history audit": [],
    "knowledge list": [],
    "knowledge show": ["timm"],
    "knowledge add": ["hailo"],
    "knowledge remove": ["hailo"],
    "cache clean": [],
    "db backup": ["{out}/copy"],
    "db compact": [],
    "db du": [],
    "db restore": ["{out}/copy"],
    "db rebuild": [],
    "db stats": [],
    "db query": ["SELECT count(*) FROM results"],
    "db tables": [],
    "db export": ["results", "--output", "{out}/results.parquet"],
    "db validate": [],
    "db snapshot create": [],
    "db snapshot list": [],
    "db snapshot diff": ["x"],
    "regress history": [],
    "regress list": [],
    "predictor list": [],
    "predictor show": [],
    "predictor rollback": [],
    "keys create": ["another"],
    "keys list": [],
    "keys revoke": ["me"],
    "host add": ["gpu-1", "127.0.0.1:9"],
    "host list": [],
    "host remove": ["gpu-1"],
}
OTHERS = {
    "run", "ui", "serve", "host serve",  # serve until they are stopped
    "detect", "devices", "bench models", "bench setup-web", "regress series", "knowledge build",  # no home
    "bench serve",  # loads a server: test_load
    "bench run", "bench request", "bench take", "bench coverage",  # look for hardware first, for seconds
    "bench wheels",  # asks a package registry: test_carried_wheels
    "history clean", "history overrule", "regress accept", "regress reject",  # as those beside them
    "regress reopen", "regress check",
}  # fmt: skip


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(path)
    else:
        for name, member in below.items():
            yield from _leaves(member, (*path, name))


def test_every_command_is_looked_at() -> None:
    assert set(_leaves(typer.main.get_command(app))) == {*COMMANDS, *OTHERS}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with results, tables, a key and a predictor's folder."""
    home = tmp_path_factory.mktemp("sound") / "home"
    settings = Settings(home=home)
    EventLog.open(settings).append([event(result(batch_size=size)) for size in (1, 2, 4)])
    publish.refresh(settings)
    KeyStore(settings).create("me", Scope.read)
    (home / "models").mkdir()
    return home


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "home")
    return tmp_path / "home"


Accel = Callable[..., tuple[int, str]]


@pytest.fixture
def accel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path) -> Accel:
    """Runs a command in this process: exit code and stderr. An exception that is not meant for users is raised."""
    (tmp_path / "out").mkdir()
    samples = Path(__file__).parents[3] / "samples"

    def run(command: str) -> tuple[int, str]:
        arguments = [part.format(out=tmp_path / "out", samples=samples) for part in COMMANDS[command]]
        monkeypatch.setattr(sys, "argv", ["accel", *command.split(), *arguments])
        monkeypatch.setenv("ACCEL_HOME", str(home))
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize("third", range(3))
def test_no_command_prints_a_line_over_the_width_of_a_terminal(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, third: int
) -> None:
    (tmp_path / "out").mkdir()
    samples = Path(__file__).parents[3] / "samples"
    monkeypatch.setenv("ACCEL_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "100")
    wide = []
    commands = list(COMMANDS)
    assert (commands.index("db restore") - commands.index("db backup")) % 3 == 0, "it restores what that one wrote"
    for place, (command, words) in enumerate(COMMANDS.items()):
        if place % 3 != third or command == "knowledge show":
            continue  # the latter prints a file as it is
        arguments = [word.format(out=tmp_path / "out", samples=samples) for word in words]
        monkeypatch.setattr(sys, "argv", ["accel", *command.split(), *arguments])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr()
        # An error is one line on purpose, and a path is a word that must not be broken.
        wide += [
            (command, line)
            for line in f"{said.out}\n{said.err}".splitlines()
            if len(line) > 100 and max(map(len, line.split())) < 60 and not line.startswith("accel: ")
        ]
    assert not wide, wide


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def _named(home: Path) -> Path:
    projection = current(Settings(home=home))
    assert projection is not None
    return projection.directory / projection.name


READING = ["db stats", "db query", "matrix", "db export", "recommend"]
"""What reads the tables, each in a way of its own."""
PREDICTORS = ["predictor list", "predictor show", "predictor rollback"]
KEYS = ["keys create", "keys list", "keys revoke"]
OUT = r"Move it away|db rebuild|Give this user|Raise the limit|restore the file|train|predictor rollback"


@pytest.mark.parametrize(
    ("make", "commands"),
    [
        (lambda home: _file(home / "warehouse"), [*READING, "db rebuild", "db validate"]),
        (lambda home: _directory(home / "warehouse" / "CURRENT"), [*READING, "db rebuild", "db validate"]),
        (lambda home: (home / "warehouse" / "CURRENT").write_bytes(b"\0\xff"), READING),
        (lambda home: _directory(_named(home)), [*READING, "db validate"]),
        (lambda home: _named(home).write_text("[1]"), READING),
        (lambda home: _named(home).write_text('{"snapshot_id": 1, "schema_id": 2, "layers": []}'), READING),
        (lambda home: [_directory(path) for path in (home / "warehouse").glob("layer-*")], READING),
        (lambda home: [path.write_bytes(b"x" * 9000) for path in (home / "warehouse").glob("layer-*")], READING),
        (lambda home: _directory(home / "warehouse" / ".lock"), ["db rebuild"]),
        (lambda home: _directory(home / "keys.json"), KEYS),
        (lambda home: (home / "keys.json").write_bytes(b"\xff\xfe"), KEYS),
        (lambda home: (home / "keys.json").write_text('[{"key_id": 1}]'), KEYS),
        (lambda home: (home / "models" / "CURRENT").mkdir(), ["predictor show"]),
        (lambda home: (home / "models" / "CURRENT").write_bytes(b"\xff\xfe"), ["predictor show"]),
        (lambda home: (home / "models" / "CURRENT").write_bytes(b"a\0b"), ["predictor show"]),
    ],
    ids=["warehouse-is-a-file", "CURRENT-is-a-directory", "CURRENT-is-garbage", "projection-is-a-directory",
         "projection-is-no-object", "projection-of-nothing", "layer-is-a-directory", "layer-is-garbage",
         "lock-is-a-directory", "keys-are-a-directory", "keys-are-no-text", "keys-are-others",
         "predictor-is-a-directory", "predictor-is-no-text", "predictor-is-no-name"],
)  # fmt: skip
def test_something_else_in_the_place_of_a_file(
    make: Callable[[Path], Any], commands: list[str], accel: Accel, home: Path
) -> None:
    make(home)
    for command in commands:
        code, said = accel(command)
        assert code == 1, command
        [line] = [line for line in said.splitlines() if line.startswith("accel: ")]
        assert said.splitlines()[-1] == line, command
        assert re.search(OUT, line), command
        assert str(home) in line or "repairs" in line, command


@pytest.mark.parametrize("command", COMMANDS)
def test_a_home_that_is_a_file(command: str, accel: Accel, home: Path) -> None:
    _file(home)
    code, said = accel(command)
    assert code in (0, 1, 2)
    assert "Traceback" not in said
    if code == 1:
        assert said.splitlines()[-1].startswith("accel: ")


def test_no_service_is_announced_that_cannot_begin(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _file(home)
    with pytest.raises(KeyFileDamaged, match="file of keys"):
        announce("http://127.0.0.1:8000", Settings(home=home))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["CURRENT", "CURRENT-no-text"])
@pytest.mark.parametrize("command", ["recommend", *PREDICTORS])
def test_a_pointer_to_a_predictor_that_cannot_be_followed(command: str, name: str, accel: Accel, home: Path) -> None:
    """The list of those that are kept needs no pointer."""
    pointer = home / "models" / "CURRENT"
    pointer.mkdir() if name == "CURRENT" else pointer.write_bytes(b"\xff")
    code, said = accel(command)
    assert code == (0 if command == "predictor list" else 1), said


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda home: no_room(20_000), r"warehouse cannot be used: this system limits .* Raise the limit"),
        (lambda home: without_rights(home / "warehouse"), r"warehouse cannot be used: this user may not do that"),
    ],
    ids=["no-room", "read-only"],
)
def test_tables_that_cannot_be_written_leave_those_in_service(
    fault: Callable[[Path], AbstractContextManager[None]], expected: str, accel: Accel, home: Path
) -> None:
    settings = Settings(home=home)
    before = require_current(settings)
    files = sorted(path.name for path in (home / "warehouse").iterdir())
    EventLog.open(settings).append([event(result(batch_size=size)) for size in range(10, 40)])
    with fault(home):
        code, said = accel("db rebuild")
    assert code == 1
    assert re.search(expected, said.splitlines()[-1])
    assert "segment" not in said
    assert "What is in service stays" in said
    assert require_current(settings) == before
    assert sorted(path.name for path in (home / "warehouse").iterdir()) == files, "what was begun gives its room back"
    with fault(home) if "read-only" in expected else nullcontext():
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 3}]
    assert accel("db rebuild")[0] == 0
    assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 33}]


@pytest.mark.parametrize("command", ["migrate", "history overrule"])
def test_a_command_whose_results_are_in_the_log_alone_fails_and_says_so(
    command: str, accel: Accel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=home)
    doubt = Suspicion(rule="round_time", verdict="suspect", evidence="exactly 1 s", confidence=0.7)
    doubted = event(result(batch_size=99, provenance="suspect", suspicions=(doubt,)))
    EventLog.open(settings).append([doubted])
    publish.refresh(settings)
    words = [str(doubted.event_id), "round_time", "--by", "ada", "--reason", "seen"]
    monkeypatch.setitem(COMMANDS, "history overrule", words)
    before = EventLog.open(settings).snapshot()
    with without_rights(home / "warehouse"):
        code, said = accel(command)
    assert code == 1, said
    last = said.splitlines()[-1]
    assert last.startswith("accel: The log holds what was added; the tables do not yet: ")
    assert "this user may not do that" in last
    assert EventLog.open(settings).snapshot() != before
    assert accel("db rebuild")[0] == 0


@pytest.mark.parametrize("share", [4, 8, 16])
def test_a_matrix_that_finds_no_room_is_made_when_there_is_some(share: int, home: Path) -> None:
    """Wherever in the file writing ends: in its head, or among its blocks."""
    settings = Settings(home=home)
    measured = [result(batch_size=size) for size in range(10, 40)]
    verified = [verification(batch_size=size) for size in range(10, 40)]
    EventLog.open(settings).append([event(body) for body in [*measured, *verified]])
    staged = publish.stage(settings)
    [*_, layer] = staged.projection.layers
    size = (home / "warehouse" / layer.file).stat().st_size
    with no_room(size // share), pytest.raises(StorageUnavailable, match="What is in service stays"):
        publish.publish(settings, staged)
    publish.refresh(settings)
    assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 33}]
    assert Reader(settings).rows("SELECT count(*) > 0 AS made FROM compat_matrix") == [{"made": True}]


def test_a_full_disk_is_known_by_what_libraries_say() -> None:
    with duckdb.connect(":memory:") as con, pytest.raises(duckdb.IOException) as full:
        con.execute("COPY (SELECT range FROM range(100000)) TO '/dev/full' (FORMAT csv, USE_TMP_FILE false)")
    assert "the disk is full" in str(storage_unavailable(full.value, "There"))
    with pytest.raises(OSError, match="space") as refused:
        Path("/dev/full").write_bytes(b"x")
    assert "the disk is full" in str(storage_unavailable(refused.value))
    for numbers in (np.arange(100_000), np.arange(100_000)[::2]):
        with pytest.raises(OSError, match=r"written|writing") as short:
            numbers.tofile("/dev/full")
        assert "the disk is full" in str(storage_unavailable(short.value, "There"))
    denied = storage_unavailable(PermissionError(errno.EACCES, "Permission denied", "x"))
    assert "--" not in str(denied), "the service answers with the same sentence"
    assert storage_unavailable(FileNotFoundError(2, "No such file or directory", "x")) is None
    assert storage_unavailable(ValueError("a mistake")) is None


def test_the_list_of_layers_is_written_whole_or_not_at_all(home: Path) -> None:
    """A file under a projection's name is whole, also after the disk was full."""
    projection = require_current(Settings(home=home))
    path = projection.directory / projection.name
    with no_room(10), pytest.raises(OSError, match="File too large"):
        projection.save()
    assert json.loads(path.read_text())["layers"]
    path.write_text("{")
    with pytest.raises(WarehouseDamaged, match=r"^[^\n]*accel db rebuild[^\n]*$"):
        require_current(Settings(home=home))


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("ACCEL_RATE_PER_S", "abc", "valid number"),
        ("ACCEL_RATE_PER_S", "-3", "greater than 0"),
        ("ACCEL_ENGINE", "flink", "'duckdb' or 'spark'"),
    ],
)
def test_a_variable_that_is_no_such_setting_is_named(
    variable: str, value: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", ["accel", "status"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"accel: {variable} is {value!r}: Input should be")
    assert problem in line
