"""Bytes to documents: the kind by content, tolerance, and what is refused with which reason."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accel_platform.errors import NotFound
from migrations.detect import describe
from migrations.sources.documents import Content, Document, bytes_of, find_files, load, parse


def of(raw: bytes | str) -> Document:
    return parse(Content.of(raw.encode() if isinstance(raw, str) else raw, "/old/file"))


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"a": 1}', "json"),
        (b"\xef\xbb\xbf" + b'{"a": 1}\r\n', "json"),
        ('{"a": 1}'.encode("utf-16"), "json"),
        (b"[1, 2]", "json"),
        (b'{"a": 1}\n{"a": 2}\n', "json_lines"),
        (b'{"a": 1}\r\n\r\n{"a": 2}', "json_lines"),
        (b"a,b\n1,2\n", "csv"),
        (b'a,b\r\n1,"x, y"\r\n', "csv"),
        (b"a;b\n1;2\n", "csv"),
        (b"a\tb\n1\t2\n", "csv"),
        (b",latency(s)\n0,1.5\n", "csv"),
        (b"# Notes\n\nThese files are old, some are broken.\n", "text"),
        (b"Loading, please wait\nDone, thanks\n, and, so, on\n", "text"),
        (b"Median:     12.5 ms\nThroughput: 80 FPS\n", "text"),
        (b"squeezenet,0.0123,4096,99,0\nsqueezenet,0.0125,4096,99,1\n", "text"),
        (b'{"a": 1}{"a": 2}', "json_lines"),
        (b'{\n "a": 1\n}\n{\n "a": 2\n}\n', "json_lines"),
    ],
)
def test_the_kind_is_seen_in_the_content(raw: bytes, kind: str) -> None:
    assert of(raw).kind == kind
    assert of(raw).problem is None


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b'{"init": "Success", "cpu": ', "invalid JSON: Expecting value"),
        (b'{"a": [1, 2', "invalid JSON"),
        (b"{" * 20_000, "invalid JSON|nested too deeply"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
        (b"\x89PNG\r\n\x1a\n\x00", "not text"),
        (b"PK\x03\x04\x00\x00", "NUL bytes"),
        (b'{\n "a": {"x": 1},\n "b": [\n{"y": 1}\n', "invalid JSON"),
        (b"a,a\n1,2\n", "two columns of one name"),
    ],
)
def test_what_cannot_be_used_says_why(raw: bytes, problem: str) -> None:
    document = of(raw)
    assert document.kind == "unreadable"
    assert document.problem is not None
    assert any(part in document.problem for part in problem.split("|"))


def test_columns_without_a_name_that_a_spreadsheet_adds_are_passed_over() -> None:
    document = of(b"a,b,,,\n1,2,,,\n3,,,,\n,,,,\n5,6,7,,\n")
    assert (document.kind, document.columns) == ("csv", ("a", "b"))
    assert document.value == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}, {"a": "", "b": ""}]
    assert [note.rule for note in document.notes] == ["ragged_row"]


@pytest.mark.parametrize(
    ("text", "value", "others"),
    [
        ('device: 0\n{"a": 1}\n{"a": 2}\ndone\n', [{"a": 1}, {"a": 2}], "device: 0\ndone"),
        (')]}\'\n{"a": 1}', {"a": 1}, ")]}'"),
        ('x{"a": 1}', {"a": 1}, "x"),
        ('{"a": 1}\n{"a": 2}\n{"a": [1, ', [{"a": 1}, {"a": 2}], '{"a": [1,'),
        ('{"a": 1}\n{"a": tru}\n{"a": 3}\n', [{"a": 1}, {"a": 3}], '{"a": tru}'),
        ('loading\n[\n  {"a": 1},\n  {"a": 2},\n  {"a":\n', [{"a": 1}, {"a": 2}], 'loading\n{"a":'),
        ('[{"a": 1}, {"a": 2}, {"a": [3', [{"a": 1}, {"a": 2}], '{"a": [3'),
        ('[{"a": 1}, {"a": {"b": 2}', {"a": 1}, '{"a": {"b": 2}'),
        ('[INFO] go\n[{"a": 1}, {"a": 2}]\n', [{"a": 1}, {"a": 2}], "[INFO] go"),
        ('[{"a": 1}]\n[{"a": 2}]\n', [{"a": 1}, {"a": 2}], None),
        ('{"a": 1},\n{"a": 2},\n', [{"a": 1}, {"a": 2}], None),
    ],
)
def test_what_stands_beside_the_json_is_kept(text: str, value: object, others: str | None) -> None:
    document = of(text)
    assert document.value == value
    assert [note.content for note in document.notes if note.rule == "other_lines"] == ([others] if others else [])


def test_of_a_key_given_twice_the_last_counts_and_all_are_kept() -> None:
    document = of('{"cells": {"latency": 1, "batch": 2, "latency": 3}}')
    assert document.value == {"cells": {"latency": 3, "batch": 2}}
    (note,) = document.notes
    assert (note.rule, json.loads(note.content)) == ("duplicate_key", {"latency": [1, 3]})


def test_rows_of_another_length_are_kept_beside_the_table() -> None:
    document = of("a,b,c\n1,2,3\n1,2,3\n1,2,3\n1,2,3\n1,2,3\n1,2\n")
    assert len(document.value) == 5
    (note,) = document.notes
    assert (note.rule, note.content) == ("ragged_row", "1,2")


def test_nan_and_infinity_are_tolerated() -> None:
    value = of('{"a": NaN, "b": Infinity, "c": -Infinity}').value
    assert math.isnan(value["a"])
    assert value["b"] == math.inf


def test_csv_keeps_quoted_cells_and_names_columns() -> None:
    document = of('model,note\nbert,"a, ""b""\nc"\n')
    assert document.columns == ("model", "note")
    assert document.value == [{"model": "bert", "note": 'a, "b"\nc'}]


@given(st.binary(max_size=400))
def test_any_bytes_are_some_document_and_come_back_whole(raw: bytes) -> None:
    document = of(raw)
    assert (document.kind == "unreadable") == (document.problem is not None)
    text = document.content.text()
    if text.startswith("base64:"):
        import base64

        assert base64.b64decode(text.removeprefix("base64:")) == raw
    elif not raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        assert text.encode() == raw


@example("[")  # which begins like JSON that was encoded twice
@given(st.recursive(st.none() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20))
def test_any_json_can_be_described(value: object) -> None:
    document = of(json.dumps(value))
    assert document.kind == "json"
    assert describe(document).startswith("JSON ")


def test_a_description_names_keys_two_levels_deep_and_stays_short() -> None:
    value = {"results": {"cpu": {"deep": 1}}, "list": [{"x": 1.5}], **{f"k{i}": None for i in range(40)}}
    text = describe(of(json.dumps(value)))
    assert "results: {cpu: {…}}" in text
    assert "list: [1 x {x: number}]" in text
    assert "and 18 more" in text


def test_files_are_found_once_each_in_order(tmp_path: Path) -> None:
    for name in ("b/2.json", "a/1.json", "a/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = list(find_files([tmp_path, tmp_path / "a", tmp_path / "a/1.json"]))
    assert found == [tmp_path / "a/.hidden", tmp_path / "a/1.json", tmp_path / "b/2.json"]


def test_folders_that_are_not_entered_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, elsewhere, closed = tmp_path / "old", tmp_path / "elsewhere", tmp_path / "old" / "closed"
    for folder in (old, elsewhere, closed, old / "2025-03-03"):
        folder.mkdir()
    for name, target in {"out": elsewhere, "latest": old / "2025-03-03", "loop": old}.items():
        (old / name).symlink_to(target)
    listing = os.scandir

    def scandir(path: str) -> object:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(find_files([old])) == [closed, old / "out"]
    assert load(closed).problem == "cannot be opened: Permission denied"
    assert load(old / "out").problem == f"cannot be opened: a link to the folder {elsewhere}: import {elsewhere} itself"


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        list(find_files([tmp_path / "nowhere"]))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert load(tmp_path / "pipe.json").problem == "cannot be opened: not a regular file"


def test_a_file_that_cannot_be_opened_is_a_document_too(tmp_path: Path) -> None:
    content = load(tmp_path)  # a directory cannot be read as a file, whoever runs the test
    assert content.sha256 == ""
    assert parse(content).kind == "unreadable"
    assert "cannot be opened" in (content.problem or "")


@pytest.mark.parametrize("raw", [b"plain", b"base64:!", b"base64:QQ==", b"\xff\x00\xfe", b"base64:\xff"])
def test_the_bytes_of_a_document_come_back_from_its_text(raw: bytes) -> None:
    assert raw in bytes_of(Content.of(raw, "x").text())
