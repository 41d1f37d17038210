"""The data dictionary: complete, and as the documentation prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.dictionary import _dictionary, reference_page, table_columns, table_meanings
from accel_platform.warehouse.layers import TABLES
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification

PAGE = Path(__file__).parents[3] / "docs/reference/tables.md"


@pytest.fixture
def reader(settings: Settings, log: EventLog) -> Reader:
    log.append([event(result()), event(verification())])
    refresh(settings)
    return Reader(settings)


def test_every_column_has_a_meaning_and_every_meaning_a_column(reader: Reader) -> None:
    meanings = table_meanings()
    assert next(iter(meanings)) == "usable_results"
    assert set(meanings) == {*TABLES, "usable_results"}
    columns = {table: {column.name for column in table_columns(reader, table)} for table in meanings}
    assert set().union(*columns.values()) >= set(_dictionary()["columns"])
    assert {(t, name) for t, names in _dictionary()["in"].items() for name in names if name not in columns[t]} == set()


def test_the_documentation_is_as_the_tables_are(reader: Reader) -> None:
    page = "\n".join(reference_page(reader)) + "\n"
    assert PAGE.read_text() == page, "put the lines of accel_platform.warehouse.dictionary.reference_page() there"


def test_the_terminal_lists_tables_and_columns(reader: Reader, settings: Settings) -> None:
    def ask(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["db", "tables", *words, "--home", str(settings.home)])
        return done.exit_code, done.stdout if done.exception is None else str(done.exception)

    code, out = ask("--json")
    assert code == 0
    assert {row["table"]: row["rows"] for row in json.loads(out)}["usable_results"] == 1
    code, out = ask("results")
    assert code == 0
    assert "1000 * batch_size * processes / latency_mean_ms" in " ".join(out.split())
    assert ask("usable_result")[1] == "No table is called 'usable_result'. Try usable_results, results."
