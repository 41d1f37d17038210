"""Traces of requests, as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_platform.errors import InvalidInput
from predictor.serving.traces import read_trace

KINDS = {
    "own.csv": "arrival_s,input_tokens,output_tokens\n5.0,100,10\n6.5,200,20\n",
    "azure.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.5000000,100,10\n2023-11-16 18:17:05.0000000,200,20\n"
    ),
    "mooncake.jsonl": (
        '{"timestamp": 2000, "input_length": 100, "output_length": 10, "hash_ids": [0]}\n'
        '{"timestamp": 3500, "input_length": 200, "output_length": 20, "hash_ids": [1]}\n'
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_traces_of_each_kind_read_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(KINDS[name])
    assert read_trace(path) == [
        {"arrival_s": 0.0, "input_tokens": 100, "output_tokens": 10},
        {"arrival_s": 1.5, "input_tokens": 200, "output_tokens": 20},
    ]


def test_a_trace_without_times_has_lengths_alone(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n100,10\n")
    assert read_trace(path) == [{"input_tokens": 100, "output_tokens": 10}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no request"),
        ("arrival_s,input_tokens,output_tokens\n", "holds no request"),
        ("a,b\n1,2\n", "has the columns a, b"),
        ("input_tokens,output_tokens\n5,many\n", "request 1 cannot be read"),
        ("input_tokens,output_tokens\n5,7\n5\n", "request 2 cannot be read"),
        ('{"input_length": 5\n', "is not JSON Lines"),
        ('{"input_length": 5, "output_length": 1}\n[1]\n', "must be a JSON object"),
        ('{"input_length": 5, "output_length": 1}\n{"input_length": 5}\n', "request 2 cannot be read"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "request 1 cannot be read"),
    ],
)
def test_a_trace_of_nonsense_names_the_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_trace(path)
