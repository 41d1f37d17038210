"""Documents as they should not be: broken off, mixed with other lines, in other encodings, with anything in any place.

Whatever the bytes are, a document is accounted for with a reason and no figure is negative or no number.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import THOROUGH

from accel_platform.events.types import RecordQuarantined, ResultRecorded
from factories import payloads
from migrations.pipeline.document_reader import Reading, read_document
from migrations.sources.documents import Content, Document, parse
from migrations.suspicion.claims import NO_CLAIMS

FIXTURES = Path(__file__).parents[2] / "data" / "formats"
TEXTS = sorted(path for path in FIXTURES.iterdir() if path.suffix != ".sqlite")
JSON = [path for path in TEXTS if path.suffix == ".json"]
PREFIXES = 400 if THOROUGH else 80
"""So many places of each document it is broken off at; `make test-all` tries more."""

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**18)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["12.3 ms", "0.5s", "1e400", "-3", "NaN", "Infinity", "1_000", "\ud800", "\0", "2025-13-45", "٣"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def take(raw: bytes, path: str) -> Reading:
    return read_document(parse(Content.of(raw, path)), NO_CLAIMS)


def assert_accounted(reading: Reading) -> None:
    """One entry with an outcome, a reason wherever nothing was imported, and only possible figures."""
    entry = reading.entry
    assert entry.outcome in ("imported", "not_results", "quarantined")
    assert entry.outcome == "imported" or entry.reason
    assert not (entry.reason or "").startswith("the reader "), entry.reason
    held = payloads(reading)
    results = [payload for payload in held if isinstance(payload, ResultRecorded)]
    assert len(results) == entry.records
    for result in results:
        assert result.status == "ok" or result.reason
        for name, value in result.model_dump().items():
            assert not isinstance(value, float) or (math.isfinite(value) and value >= 0), (name, value)
    if entry.outcome == "quarantined":
        assert any(isinstance(payload, RecordQuarantined) for payload in held)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_document_broken_off_anywhere_is_accounted_for(path: Path) -> None:
    raw = path.read_bytes()
    for end in range(0, len(raw), max(1, len(raw) // PREFIXES)):
        assert_accounted(take(raw[:end], f"/old/{path.name}"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_encodings_and_other_lines_lose_no_result(path: Path) -> None:
    raw = path.read_bytes()
    text = raw.decode()
    whole = take(raw, f"/old/{path.name}").entry
    variants = {
        "CRLF": text.replace("\n", "\r\n").encode(),
        "mark": b"\xef\xbb\xbf" + raw,
        "UTF-16": b"\xff\xfe" + text.encode("utf-16-le"),
        "UTF-16 without a mark": text.encode("utf-16-le"),
        "blank lines": b"\n\n" + raw + b"\n\n",
    }
    if whole.records:
        variants["lines of a log"] = b"WARNING: something is slow\n" + raw.rstrip(b"\n") + b"\nDone.\n"
    for name, changed in variants.items():
        entry = take(changed, f"/old/{path.name}").entry
        assert (entry.outcome, entry.format, entry.records) == (whole.outcome, whole.format, whole.records), name


def test_a_byte_of_windows_1252_is_a_character() -> None:
    raw = b"dev,name,batch_size,speedup,abs_latency\ncuda,mod\xe8le,4,1.5,8.25\n"
    (result,) = (payload for payload in payloads(take(raw, "/old/x.csv")) if isinstance(payload, ResultRecorded))
    assert (result.original["model"], result.latency_p50_ms) == ("modèle", 8.25)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02\xff" * 50, "not text"),
        (b"\x1f\x8b\x08\x00\xff\xfe\xfd" * 30, "not text"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"avg_latency": 1e400, "latencies": [', "invalid JSON"),
        (b"a,b,latency_ms\n1,2,3\n4,5\n", "no reader knows this shape"),
        (b"It ran; then it said:\nname|latency_ms|note\nbert at last\n12|3|4|5\n", "plain text that holds figures"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:71\nsize 6911\n", "git lfs pull"),
        (b"phi,a word,1.5,30\nphi,another,1.6,29\nphi,a third,1.7,9,9\n", "a table without names of columns"),
        (
            b"# sweep\n| run | primary metric |\n|---|---:|\n| a | 28.86 output tok/s |\n",
            "plain text that holds figures",
        ),
        (b"Generation: 100 tokens, 90.120 tokens-per-sec\n", "plain text that holds figures"),
        (b"B.move   sample  1339  3751905.410 \xc2\xb1 46093.697  ns/op\n", "plain text that holds figures"),
        (b"<table><tr><th>FPS</th></tr><tr><td class='a'>12.5</td></tr></table>\n", "plain text that holds figures"),
    ],
)
def test_what_cannot_be_read_says_why(raw: bytes, reason: str) -> None:
    reading = take(raw, "/old/x.json")
    assert_accounted(reading)
    assert reading.entry.outcome == "quarantined"
    assert reason in (reading.entry.reason or "")


@pytest.mark.parametrize("raw", [b"Collecting numpy 2.0\n 12 MB at 4.5 MB/s\n", b"epoch 1, 3.21it/s\n"])
def test_progress_of_downloads_and_loops_is_no_result(raw: bytes) -> None:
    assert take(raw, "/old/x.txt").entry.outcome == "not_results"


@pytest.mark.parametrize("figure", ["1e400", "-1", "NaN", "-Infinity", '"fast"', "[]", "{}", "true", "1" * 400])
@pytest.mark.parametrize("path", JSON, ids=lambda path: path.name)
def test_an_impossible_figure_is_never_recorded(path: Path, figure: str) -> None:
    """Every number of a fixture at once."""
    made = json.dumps(_with_figures(json.loads(path.read_text())))
    assert_accounted(take(made.replace('"<FIGURE>"', figure).encode(), f"/old/{path.name}"))


def _with_figures(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_figures(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_figures(member) for member in value]
    return "<FIGURE>" if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.name)
@given(data=st.data())
@settings(max_examples=25)
def test_anything_in_any_place_is_accounted_for(path: Path, data: st.DataObject) -> None:
    value = json.loads(path.read_text())
    for _ in range(data.draw(st.integers(1, 3), label="places")):
        places = list(_places(value))
        if not places:
            break
        *steps, last = data.draw(st.sampled_from(places), label="place")
        value = copy.deepcopy(value)
        inner = value
        for step in steps:
            inner = inner[step]
        inner[last] = data.draw(anything, label="instead")
    raw = json.dumps(value).encode()
    assert_accounted(take(raw, f"/old/{path.name}"))
    several = json.dumps([value, value]).encode()
    assert_accounted(read_document(parse(Content.of(several, "/old/list.json")), NO_CLAIMS))


def _places(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*steps, key)
        yield from _places(member, (*steps, key))


def test_a_perf_file_that_refers_to_itself_is_not_expanded() -> None:
    lines = ["models: &a", "- performance_metrics:", "  - again: *a"]
    reading = read_document(Document(Content.of(b"x", "/x"), "text", lines), NO_CLAIMS)
    assert reading.entry.records == 0
