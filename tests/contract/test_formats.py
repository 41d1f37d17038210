"""The contract every format of `migrations.formats` keeps; each needs a fixture `tests/data/formats/<name>.*`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from migrations.detect import MIN_CONFIDENCE, detect_format
from migrations.formats import Format, all_formats
from migrations.normalize.records import EmbeddedDocument, NoResult, Part, Record, RefusedCell
from migrations.sources.documents import Content, Document, parse

FIXTURES = Path(__file__).parent.parent / "data" / "formats"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def fixture_of(name: str) -> Document:
    """The one fixture of a format. Fails where there is none, or more than one."""
    (path,) = FIXTURES.glob(f"{name}.*")
    return parse(Content.of(path.read_bytes(), f"/old/{path.name}"))


def pointed_at(value: Any, pointer: str) -> Any:
    """What a JSON pointer leads to."""
    for escaped in pointer.split("/")[1:]:
        step = escaped.replace("~1", "/").replace("~0", "~")
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def mangled(value: Any, data: st.DataObject) -> Any:
    """The value with one member somewhere inside replaced by arbitrary JSON, or taken away."""
    if isinstance(value, dict) and value and data.draw(st.booleans(), label="go into the object"):
        key = data.draw(st.sampled_from(sorted(value)), label="key")
        if data.draw(st.integers(0, 9), label="take away") == 0:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: mangled(value[key], data)}
    if isinstance(value, list) and value and data.draw(st.booleans(), label="go into the list"):
        index = data.draw(st.integers(0, len(value) - 1), label="index")
        return [*value[:index], mangled(value[index], data), *value[index + 1 :]]
    return data.draw(json_values, label="instead")


def names(format_: Format) -> str:
    return format_.name


# As many examples as the thorough profile tries: drawing them takes longer than showing them to every format.
@settings(max_examples=100)
@given(value=json_values)
@example(value={"benchmarks": {"a": {"b": {"c": {"benchmark_results": {"batch_1": None}}}}}})
@example(value={"benchmarks": {"a": "text"}, "system_info": None})
def test_recognising_never_fails(value: Any) -> None:
    document = parse(Content.of(json.dumps(value).encode(), "/old/any.json"))
    confidences = {format_.name: format_.detect(document) for format_ in all_formats()}
    assert {name: c for name, c in confidences.items() if not 0 <= c <= 1} == {}


@pytest.mark.parametrize("format_", all_formats(), ids=names)
class TestFormatContract:
    def test_recognises_its_own(self, format_: Format) -> None:
        assert detect_format(fixture_of(format_.name)) is format_

    def test_recognises_no_other(self, format_: Format) -> None:
        for other in all_formats():
            if other is not format_ and format_.last_resort:
                assert detect_format(fixture_of(other.name)) is other
            elif other is not format_:
                assert format_.detect(fixture_of(other.name)) < MIN_CONFIDENCE, other.name

    def test_is_recognised_by_content_whatever_its_name(self, format_: Format) -> None:
        content = fixture_of(format_.name).content
        assert detect_format(parse(Content.of(content.raw, "/old/hf_bert_performance.log"))) is format_

    def test_line_endings_and_byte_order_mark_change_nothing(self, format_: Format) -> None:
        plain = fixture_of(format_.name)
        if plain.kind == "tables":
            pytest.skip("a database is no text")
        raw = b"\xef\xbb\xbf" + plain.content.raw.replace(b"\n", b"\r\n")
        other = parse(Content.of(raw, plain.source_path))
        assert (other.kind, other.value, other.columns) == (plain.kind, plain.value, plain.columns)

    def test_reading_is_pure(self, format_: Format) -> None:
        document = fixture_of(format_.name)
        assert list(format_.parse(document)) == list(format_.parse(document))

    def test_holds_records_or_says_what_it_is(self, format_: Format) -> None:
        found = list(format_.parse(fixture_of(format_.name)))
        assert bool(format_.not_results) != any(isinstance(cell, Record | EmbeddedDocument) for cell in found)

    def test_every_cell_points_to_its_place_and_no_two_to_one(self, format_: Format) -> None:
        document = fixture_of(format_.name)
        pointers = [cell.pointer for cell in format_.parse(document)]
        assert len(set(pointers)) == len(pointers)
        for pointer in pointers:
            pointed_at(document.value, pointer)

    def test_records_are_imported_named_and_carry_their_origin(self, format_: Format) -> None:
        document = fixture_of(format_.name)
        for cell in format_.parse(document):
            if isinstance(cell, NoResult):
                assert cell.reason
            if isinstance(cell, NoResult | EmbeddedDocument):
                continue
            if isinstance(cell, RefusedCell):
                assert cell.rule
                assert cell.reason
                assert json.loads(cell.content) is not None
                continue
            result = cell.result
            assert result.provenance == "imported"
            assert result.source_path == document.source_path
            assert result.original["model"]
            assert result.original["hardware"]
            assert result.status == "ok" or result.reason
            assert not (cell.occurred_at and result.occurred_local)
            if not cell.occurred_at and not result.occurred_local:
                assert "timestamp" not in result.original or isinstance(result.original["timestamp"], str)
            assert result.device_id is None or result.device_id.startswith("imported-")
            assert cell.host_id is None or cell.host_id.startswith("imported-")

    @given(data=st.data())
    def test_reading_a_mangled_document_refuses_and_never_fails(self, format_: Format, data: st.DataObject) -> None:
        whole = fixture_of(format_.name)
        if whole.kind == "csv":
            row = data.draw(st.sampled_from(whole.value), label="row")
            broken = {name: data.draw(st.text(max_size=8) | st.just(text), label=name) for name, text in row.items()}
            document = Document(whole.content, "csv", [broken], whole.columns)
        elif whole.kind == "tables":
            name = data.draw(st.sampled_from(sorted(whole.value)), label="table")
            rows = [{column: mangled(value, data) for column, value in row.items()} for row in whole.value[name]]
            document = Document(whole.content, "tables", {**whole.value, name: rows})
        else:
            document = Document(whole.content, "json", mangled(whole.value, data))
        if format_.detect(document) >= MIN_CONFIDENCE:
            for cell in format_.parse(document):
                assert isinstance(cell, Part)
                pointed_at(document.value, cell.pointer)
