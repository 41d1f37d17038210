"""Tables made to fit a terminal: nothing is wider, and nothing goes without a word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.cli.output import print_table
from accel_platform.table_io.text import table_of, terminal
from accel_platform.table_io.width import fit_table

CELLS = st.none() | st.integers(0, 10**9) | st.floats(0, 1e6) | st.text("abcdefgh -", max_size=60)
NAMES = [f"column_{number}" for number in range(12)]


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, CELLS)), min_size=1, max_size=6), st.integers(60, 200))
def test_no_line_is_wider_and_every_column_is_shown_or_named(rows: list[dict[str, Any]], width: int) -> None:
    shown, remarks = fit_table(rows, width)
    lines = [*terminal(table_of(shown)), *remarks]
    assert max(map(len, lines)) <= width
    if len(rows) > 1:
        empty = {name for name in NAMES if all(row[name] is None for row in rows)}
        said = " ".join((lines[0], *remarks)).replace(",", " ").split()
        assert set(NAMES) - empty <= {*said}


def test_what_fits_is_left_alone() -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert fit_table(rows, 100) == (rows, ())


def test_columns_of_one_value_are_said_once_and_long_texts_cut() -> None:
    rows = [{"model": "bert", "mode": "inference", "none": None, "reason": f"{n} " + "long " * 30} for n in range(2)]
    shown, remarks = fit_table(rows, 60)
    assert list(shown[0]) == ["reason"]
    assert remarks == (
        "in all rows: model bert, mode inference",
        "texts with … are cut: COLUMNS=300 or --json shows them whole",
    )


def test_texts_that_differ_at_their_end_alone_stay_apart() -> None:
    rows = [{"reason": f"{end} " + "long " * 30, "device": f"AMD EPYC (cpu-amd-epyc-{end})"} for end in ("a1", "b2")]
    shown, _ = fit_table(rows, 50)
    assert [row["device"][-3:] for row in shown] == ["a1)", "b2)"]
    assert all("…" in row["device"] and row["reason"].endswith("…") for row in shown)


def test_paths_that_differ_in_their_middle_alone_stay_apart() -> None:
    rows = [{"file": f"/srv/an/archive/of/very/many/cards/card_{name}_2025-04-01_120000.json"} for name in "abc"]
    shown, _ = fit_table(rows, 40)
    assert len({row["file"] for row in shown}) == len(rows)
    assert all(row["file"].endswith("_2025-04-01_120000.json") for row in shown)


def test_what_a_table_is_about_gives_way_last() -> None:
    rows = [
        {"model": "bert", "cell": f"cpu, batch {n}, length 128", "device": f"{n} " + "long " * 9, "first": n, "ms": n}
        for n in range(10, 13)
    ]
    shown, remarks = fit_table(rows, 40, keep=("ms",), whole=("cell",))
    assert list(shown[0]) == ["cell", "ms"]
    assert [row["cell"] for row in shown] == [row["cell"] for row in rows]
    assert "left out at 40 columns: device, first" in " ".join(remarks)
    roomy, _ = fit_table(rows, 50, keep=("ms",), whole=("cell",))
    assert list(roomy[0]) == ["cell", "device", "ms"], "a text takes the room of the columns left out"
    assert max(len(row["device"]) for row in roomy) == 50 - len("cpu, batch 10, length 128") - 2 - len("  ms")
    tight, _ = fit_table(
        [{"id": n, **row} for n, row in enumerate(rows, 10)], 42, keep=("id", "device"), whole=("cell",)
    )
    assert [row["cell"] for row in tight] == [row["cell"][:21] + "…" for row in rows], "cut as little as need be"
    narrow, _ = fit_table(rows, 36, keep=("ms",), whole=("cell", "device"))
    assert max(map(len, terminal(table_of(narrow)))) <= 36, "nothing is whole at the price of a wider line"


def test_one_row_is_a_list_of_its_fields() -> None:
    row = {"model": "bert", "empty": None, "reason": "long " * 30}
    assert list(terminal(table_of(fit_table([row], 40)[0]))) == [
        "name    value",
        "------  -----------------------------",
        "model   bert",
        *(f"{'reason' * (line == 0):8}long long long long long long" for line in range(5)),
    ]
    assert list(terminal(table_of(fit_table([{"id": "x" * 99, "n": 1}], 40)[0])))[2] == "id    " + "x" * 35 + "…"


def test_a_table_is_whole_in_a_pipe_and_where_all_of_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"model": "bert", "reason": f"{n} " + "long " * 30} for n in range(2)]

    def longest(**options: bool) -> int:
        print_table(rows, **options)
        return max(map(len, capsys.readouterr().out.splitlines()))

    assert longest() > 100
    monkeypatch.setenv("COLUMNS", "60")
    assert longest() <= 60
    assert longest(wide=True) > 100
