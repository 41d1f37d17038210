"""Loads on a server of language models: a real server on loopback with known delays, and with faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai_server import KEY, Served, serving
from typer.testing import CliRunner

from accel_platform.__main__ import main
from accel_platform.bench.load.client import Target
from accel_platform.bench.load.generator import LoadResult, Shape, prepare, run_load
from accel_platform.bench.load.http import Server
from accel_platform.bench.load.report import P99_REQUESTS, report
from accel_platform.cli import app
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from migrations.detect import detect_format
from migrations.normalize.records import Record
from migrations.sources.documents import Content, parse

Accel = Callable[..., tuple[int, str]]
SHAPE = Shape(input_tokens=40, output_tokens=12, requests=12, users=4)


@pytest.fixture
def accel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Accel:
    """Runs a command in this process: exit code and stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["accel", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def load(url: str, shape: Shape = SHAPE, *, chat: bool = False) -> tuple[LoadResult, Target, str | None]:
    async def run() -> tuple[LoadResult, Target, str | None]:
        async with Server(url, timeout_s=5) as server:
            target, words, remark = await prepare(server, None, shape, chat=chat)
            return await run_load(target, shape, words, on_answer=lambda _: None), target, remark

    return asyncio.run(run())


def measured(url: str, shape: Shape = SHAPE, *, chat: bool = False) -> dict[str, Any]:
    result, target, remark = load(url, shape, chat=chat)
    return report(result, target, {}, [remark] if remark else [])


@pytest.mark.parametrize("chat", [False, True])
def test_times_are_those_of_the_server(*, chat: bool) -> None:
    served = Served(first_s=0.05, gap_s=0.01)
    with serving(served) as url:
        content = measured(url, chat=chat)
    assert content["completed"] == 12
    assert content["failed"] == 0
    # A timer may fire a little early, and on a busy machine much later.
    assert content["median_ttft_ms"] > 49
    # Eleven gaps after the first token, which took five times as long, is not among them.
    assert 9.8 < content["median_tpot_ms"] < content["median_ttft_ms"]
    assert content["median_tpot_ms"] == pytest.approx(content["mean_itl_ms"], rel=0.2)
    assert content["random_input_len"] == 40
    assert [len(gaps) for gaps in content["itls"]] == [11] * 12
    assert content["median_e2el_ms"] == pytest.approx(
        content["median_ttft_ms"] + 11 * content["median_tpot_ms"], rel=0.1
    )


def test_a_closed_loop_keeps_its_users_and_an_open_one_its_arrivals() -> None:
    served = Served()
    with serving(served) as url:
        load(url)
        assert served.most_at_once == 4
        served.most_at_once = 0
        result, _, _ = load(url, Shape(40, 12, 40, requests_per_s=50.0))
    assert len(result.answers) == 40
    assert served.most_at_once > 1
    due = sorted(answer.due_s for answer in result.answers)
    assert (due[-1] - due[0]) / 39 == pytest.approx(1 / 50, rel=0.6)
    prompts = [body["prompt"] for body in served.asked if body["max_tokens"] == 12]
    assert len(set(prompts)) == len(prompts), "a prefix cache would know a prompt that came before"


def test_waiting_counts_from_when_a_request_was_due() -> None:
    """A server that falls behind makes each later arrival wait longer, which a client that waits for it would hide."""
    served = Served(first_s=0.05, gap_s=0.002)
    one_at_a_time = asyncio.Semaphore(1)
    plain = served.stream

    async def queued(body: dict[str, Any]) -> Any:
        async with one_at_a_time:
            async for part in plain(body):
                yield part

    served.stream = queued  # type: ignore[method-assign]  # a server with one place
    with serving(served) as url:
        result, _, _ = load(url, Shape(40, 12, 20, requests_per_s=40.0))
    waits = [answer.token_s[0] - answer.due_s for answer in sorted(result.answers, key=lambda a: a.due_s)]
    assert waits[-1] > waits[0] + 0.3


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("half-way", "ended half-way, after 6 parts"),
        ("broken", "the server answered 500"),
        ("empty", "held no text"),
        ("nonsense", "no part of an answer: [1, 2]"),
    ],
)
def test_a_load_of_which_nothing_came_through_says_why(fault: str, says: str) -> None:
    with serving(Served(fault=fault)) as url:
        content = measured(url)
    assert content["completed"] == 0
    assert content["failed"] == 12
    assert says in content["errors"][0]
    assert "median_ttft_ms" not in content


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("miscounting", "more parts with text than tokens (12 and 6)"),
        ("no-usage", "does not count a prompt's tokens"),
        ("short", "another length than the 12 tokens asked for"),
    ],
)
def test_counts_that_differ_are_remarked(fault: str, says: str) -> None:
    with serving(Served(fault=fault)) as url:
        content = measured(url)
    assert content["completed"] == 12
    assert any(says in remark for remark in content["remarks"]), content["remarks"]
    assert content["total_output_tokens"] == (72 if fault == "short" else 144)


def test_some_failures_leave_the_other_answers() -> None:
    with serving(Served(fault="every-third")) as url:
        content = measured(url)
    assert content["failed"] > 0
    assert content["completed"] + content["failed"] == 12


def test_a_server_that_refuses_a_field_is_asked_without_it() -> None:
    served = Served(fault="refuses ignore_eos")
    with serving(served) as url:
        assert measured(url)["completed"] == 12
    assert "ignore_eos" not in served.asked[-1]


def test_a_99th_percentile_needs_enough_answers() -> None:
    with serving(Served(first_s=0.001, gap_s=0.0)) as url:
        few = measured(url, Shape(40, 6, 20, users=8))
        many = measured(url, Shape(40, 6, P99_REQUESTS, users=8))
    assert "p99_ttft_ms" not in few
    assert any("no 99th percentile" in remark for remark in few["remarks"])
    assert many["p99_ttft_ms"] >= many["p90_ttft_ms"] >= many["median_ttft_ms"]


def test_a_load_becomes_a_result_and_the_answer_to_its_own_question(settings: Settings) -> None:
    home = str(settings.home)
    with serving(Served(first_s=0.03, gap_s=0.005)) as url:
        done = CliRunner().invoke(
            app,
            ["bench", "serve", url, "--concurrency", "2,4", "--requests", "8", "--input-tokens", "40",
             "--output-tokens", "12", "--device", "NVIDIA L40S", "--engine", "vllm", "--json", "--home", home],
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    reports = json.loads(done.stdout)
    assert [report["max_concurrency"] for report in reports] == [2, 4]
    assert all(json.loads(Path(report["file"]).read_text())["completed"] == 8 for report in reports)
    rows = Reader(settings).rows(
        "SELECT status, provenance, device_name, time_to_first_token_ms AS first FROM usable_results ORDER BY 4"
    )
    assert [(row["status"], row["provenance"], row["device_name"]) for row in rows] == [
        ("ok", "imported", "NVIDIA L40S")
    ] * 2
    asked = CliRunner().invoke(
        app,
        ["serving", "llama-3.1-8b", "--users", "4", "--input-tokens", "40", "--output-tokens", "12", "--engine", "vllm",
         "--hardware", "L40S", "--max-devices", "1", "--json", "--home", home],
    )  # fmt: skip
    [option] = json.loads(asked.stdout)["options"]
    assert option["provenance"] == "measured"
    assert option["first_token_ms"]["p50"] == pytest.approx(reports[1]["median_ttft_ms"])
    _check_export(settings, option["nearest"][0]["event_id"])


def _check_export(settings: Settings, event_id: str) -> None:
    """A load written as llm-d's report reads back the same; what is none is refused."""
    home = str(settings.home)
    path = settings.home / "report.json"
    written = CliRunner().invoke(
        app, ["bench", "export", str(path), "--as", "llm-d", "--result", event_id, "--home", home]
    )
    assert written.exit_code == 0, written.output
    [before] = Reader(settings).rows("SELECT CAST(payload AS VARCHAR) AS p FROM events WHERE event_id = ?", (event_id,))
    document = parse(Content.of(path.read_bytes(), str(path)))
    found = detect_format(document)
    assert found is not None
    [record] = found.parse(document)
    assert isinstance(record, Record)
    again, once = json.loads(record.result.model_dump_json()), json.loads(before["p"])
    for name in (
        "model_id", "backend", "device_name", "iterations", "sequence_length", "output_tokens",
        "time_to_first_token_ms", "time_per_output_token_ms", "latency_p50_ms", "latency_mean_ms",
        "throughput_tokens_per_s",
    ):  # fmt: skip
        assert again[name] == pytest.approx(once[name]) if isinstance(once[name], float) else again[name] == once[name]
    assert again["original"]["concurrency"] == once["original"]["concurrency"] == 4
    for arguments, says in (
        (["--as", "llm-d"], "--result"),
        (["--as", "llm-d", "--result", "nothing"], "nothing"),
        (["--result", event_id], "--as llm-d"),
    ):
        refused = CliRunner().invoke(app, ["bench", "export", str(path), *arguments, "--home", home])
        assert refused.exit_code != 0
        assert says in str(refused.exception)


def test_a_failed_load_is_recorded_as_one(settings: Settings) -> None:
    with serving(Served(fault="half-way")) as url:
        done = CliRunner().invoke(
            app,
            ["bench", "serve", url, "--requests", "3", "--output-tokens", "12", "--home", str(settings.home)],
        )
    assert done.exit_code == 1
    assert "ended half-way" in done.stderr
    [row] = Reader(settings).rows("SELECT status, reason FROM results")
    assert row["status"] == "failed"
    assert "half-way" in row["reason"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--concurrency", "2", "--request-rate", "1"], "not both"),
        (["--concurrency", "0"], "above 0"),
        (["--request-rate", "-3"], "above 0"),
        (["--concurrency", "many"], "numbers are needed"),
        (["--output-tokens", "1"], "--output-tokens"),
        (["--model", "gpt-9"], "it serves tiny/llama-3.1-8b"),
        (["--api-key-env", "NO_SUCH_KEY"], "no such variable"),
        (["--output", "/proc/none"], "cannot be written"),
    ],
)
def test_what_cannot_be_asked_says_what_to_change(
    accel: Accel, settings: Settings, arguments: list[str], says: str
) -> None:
    with serving(Served()) as url:
        code, err = accel("bench", "serve", url, *arguments, "--requests", "2", "--home", str(settings.home))
    assert code == (1 if "--output" in arguments else 2)
    assert says in " ".join(err.split())


@pytest.mark.parametrize(
    ("served", "says"), [(Served(key=True), "--api-key-env"), (Served(fault="no-stream"), "streams nothing")]
)
def test_a_server_that_is_none_is_refused(accel: Accel, settings: Settings, served: Served, says: str) -> None:
    with serving(served) as url:
        code, err = accel("bench", "serve", url, "--requests", "2", "--home", str(settings.home))
    assert code in (1, 2)
    assert says in err


def test_an_unreachable_server_is_named(accel: Accel, settings: Settings) -> None:
    code, err = accel("bench", "serve", "http://127.0.0.1:9", "--home", str(settings.home))
    assert code == 1
    assert "cannot be reached" in err


def test_a_key_opens_the_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    with serving(Served(key=True)) as url:
        done = CliRunner().invoke(
            app,
            ["bench", "serve", url, "--requests", "2", "--output-tokens", "6", "--api-key-env", "SERVER_KEY",
             "--home", str(settings.home)],
        )  # fmt: skip
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_answered(settings: Settings) -> None:
    """In a process of its own, because an interrupt ends this one."""
    with serving(Served(first_s=0.1, gap_s=0.01)) as url:
        command = [sys.executable, "-m", "accel_platform", "bench", "serve", url, "--requests", "500"]
        process = subprocess.Popen(
            [*command, "--output-tokens", "12", "--home", str(settings.home)],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        time.sleep(6)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "1 user" in out
    [row] = Reader(settings).rows("SELECT status, reason FROM results")
    assert row["status"] == "failed"
    assert row["reason"].startswith("stopped after")
    assert row["reason"].endswith("of 500 requests")
