"""Every command that takes filters, with every filter: an answer or a plain refusal, never an error of the database.

Commands and filters are enumerated from the app. A new one that needs words or a value fails here until it has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import typer
from pages_world import BEFORE, pages_world
from processes import THOROUGH

from accel_platform.analysis.query.filters import Selection
from accel_platform.cli import app
from accel_platform.errors import InvalidInput
from accel_platform.reports.charts.parts import NothingToDraw
from accel_platform.reports.charts.registry import CHARTS
from accel_platform.reports.documents import sections
from accel_platform.reports.documents.kinds import KINDS
from accel_platform.reports.documents.model import ReportTable, Section
from accel_platform.reports.documents.source import ReportSource
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor_world import MODELS, measured_grid

SOME = {
    "model": "bert-base", "hardware": "cpu", "device": "cpu-test", "backend": "pytorch", "mode": "inference",
    "precision": "float32", "batch_size": "1", "sequence_length": "128", "provenance": "measured",
    "since": "2020-01-01", "until": "2100-01-01", "state": "open",
}  # fmt: skip
"""Values that select the series that got slower, and more."""
NONE = {
    "model": "gpt2", "hardware": "qnn", "device": "cuda-0", "backend": "jax", "mode": "training",
    "precision": "int8", "batch_size": "77", "sequence_length": "77", "provenance": "simulated", "since": "2100-01-01",
    "until": "2000-01-01", "state": "rejected", "bench requests state": "cancelled",
}  # fmt: skip
"""Values that are known, and select nothing of it; of one command where its values are its own."""
NO_FILTERS = {
    "after", "as_json", "as_of", "before", "branch", "documented", "family", "format_", "history", "home", "list_",
    "metric", "min_change_percent", "models", "name", "output", "record", "theme", "kind", "by_device", "table",
}  # fmt: skip
"""What these say is what is asked and how it is answered; no run of this log has a branch."""
ASK_MEASURE_OR_IMPORT = {
    "predict", "recommend", "serving", "run", "bench run", "bench request", "bench take", "bench wheels",
    "bench coverage", "bench serve", "host serve", "migrate",
}  # fmt: skip
"""Their --model, --device and the like say what to predict, measure or import, and leave out nothing of the tables."""
FORMS: dict[str, Sequence[tuple[str, ...]]] = {
    "report": [(kind,) for kind in KINDS],
    "chart": [(name, "--json") for name in CHARTS],
    "matrix": [(), ("--family",), ("--documented",), ("--history",)],
    "db export": [("results", "--output", "results.csv")],
    "compare": [("--before", BEFORE), ("--model", "bert-base"), ("--models", "bert-base", "vit-base")],
}
"""The words that make different answers of one command."""
TERMINAL = 100
"""Characters of a line."""
DATABASE = re.compile(r"(Binder|Catalog|Parser|Conversion|Invalid Input|Out of Range|Internal) Error")


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(one, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


ROOT = typer.main.get_command(app)
FILTERS = {
    name: [parameter.name for parameter in command.params if parameter.name in SOME]
    for name, command in _commands(ROOT)
    if name not in ASK_MEASURE_OR_IMPORT and any(parameter.name in SOME for parameter in command.params)
}
EACH = [(name, form) for name in FILTERS for form in FORMS.get(name, [()])]


def _value(name: str, key: str, values: dict[str, str]) -> str:
    return values.get(f"{name} {key}", values[key])


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return pages_world(tmp_path_factory.mktemp("filters"), measured_grid(MODELS[:2], ("cpu", "openvino")))


class Asking:
    """Runs commands in this process."""

    def __init__(self, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
        self._home, self._capsys = str(settings.home), capsys

    def ask(self, name: str, form: Sequence[str], filters: dict[str, str]) -> bool:
        """Whether it takes these filters, even if they leave nothing. Fails on what is neither answer nor refusal."""
        given = {key: value for key, value in filters.items() if f"--{key}" not in form and f"--{key}s" not in form}
        if name == "trend" or "--models" in form:
            given = {"hardware" if "--models" in form else "model": SOME["model"], **given}
        if "--models" in form:
            given = {**given, "hardware": filters.get("hardware", "cpu")}
        options = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", value)]
        words = [*name.split(), *form, *options, "--home", self._home]
        code, refused = None, None
        try:
            code = ROOT.main(words, prog_name="accel", standalone_mode=False)
        except (InvalidInput, NothingToDraw) as error:
            refused = error
        said = self._capsys.readouterr()
        assert code in (None, 0, 1), words
        assert not DATABASE.search(f"{said.out}{said.err}{refused}"), words
        assert refused is None or str(refused), words
        if not {"--json", "--documented"}.intersection(form):
            # An error is one line on purpose, so that its command can be copied.
            lines = f"{said.out}\n{said.err}".splitlines()
            wide = [line for line in lines if len(line) > TERMINAL and not line.startswith("accel: ")]
            assert not wide, (words, wide[0])
        return not isinstance(refused, InvalidInput)


@pytest.fixture
def asking(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Asking:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(TERMINAL))
    monkeypatch.setenv("ACCEL_HOME", "")  # which `--home` sets for the processes that a command starts
    return Asking(settings, capsys)


def test_every_option_of_these_commands_is_a_filter_or_known_to_be_none() -> None:
    commands = dict(_commands(ROOT))
    assert {*ASK_MEASURE_OR_IMPORT, *FORMS} <= {*commands}
    assert {"report", "chart", "matrix", "compare", "trend", "regress history", "regress list"} <= {*FILTERS}
    options = {(name, option.name) for name in FILTERS for option in commands[name].params}
    assert {name for _, name in options} <= {*SOME, *NO_FILTERS}, "a new option needs values here, or is no filter"


@pytest.mark.parametrize(("name", "form"), EACH, ids=[" ".join([name, *form]) for name, form in EACH])
def test_all_filters_at_once(asking: Asking, name: str, form: Sequence[str]) -> None:
    """All conditions stand in the query, so a filter that it has no column for fails here."""
    for values in (SOME, NONE):
        filters = {key: _value(name, key, values) for key in FILTERS[name]}
        if not asking.ask(name, form, filters):
            # Where one of them is refused, the others are still to be asked with.
            taken = [key for key, value in filters.items() if asking.ask(name, form, {key: value})]
            assert taken, "no filter is taken"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_and_each_pair_of_them(asking: Asking, name: str) -> None:
    """Over the forms of a command and both kinds of values by turns; of the pairs a third, where time is short."""
    forms, alone = FORMS.get(name, [()]), [*combinations(FILTERS[name], 1)]
    asked = [(keys, values) for keys in alone for values in (SOME, NONE)]
    pairs = [(keys, (SOME, NONE)[turn % 2]) for turn, keys in enumerate(combinations(FILTERS[name], 2))]
    asked += pairs[:: 1 if THOROUGH else 3]
    for turn, (keys, values) in enumerate(asked):
        asking.ask(name, forms[turn % len(forms)], {key: _value(name, key, values) for key in keys})


def _rows(section: Section, title: str) -> list[dict[str, Any]]:
    [table] = [part for part in section.parts if isinstance(part, ReportTable) and part.title == title]
    return list(table.rows)


@pytest.mark.parametrize("name", [name for name in SOME if name != "state"])
def test_a_report_tells_the_shifts_and_the_cells_that_a_filter_leaves(settings: Settings, name: str) -> None:
    reader = Reader(settings)
    told = {}
    for values in (SOME, NONE):
        value = (values[name],) if name in ("model", "hardware") else values[name]
        source = ReportSource(reader, Selection(**{name: value}), lambda _: None)
        told[values is SOME] = (
            {row["model_id"] for row in _rows(sections.changes(source), "Open regressions and improvements")},
            {row["model_id"] for row in _rows(sections.compatibility(source), "Every cell, the most often run first")},
        )
    assert told[True][0] == {"bert-base"}
    assert "bert-base" in told[True][1]
    assert told[False] == (set(), set())
