"""What the command line says when it cannot answer: one line that tells what to do, an exit code, no traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from accel_platform.__main__ import main
from accel_platform.cli import app
from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.output import print_json
from accel_platform.knowledge import packs
from accel_platform.settings import Settings
from predictor_world import MODELS, append, measured_grid, result, verified, world

Accel = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]
PRODUCT = ("accel_platform", "assets", "docs", "migrations", "predictor")


@pytest.fixture
def accel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Accel:
    """Runs a command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["accel", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), said.out, said.err

    return run


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Home with the shipped packs; only read."""
    settings = Settings(home=tmp_path_factory.mktemp("adopted"))
    adopt_shipped(settings)
    return str(settings.home)


def test_transformers_warns_of_nothing_unless_asked(accel: Accel, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, kept in ((None, "error"), ("info", "info")):
        monkeypatch.setenv("TRANSFORMERS_VERBOSITY", asked or "")
        if asked is None:
            monkeypatch.delenv("TRANSFORMERS_VERBOSITY")
        assert accel("--version")[0] == 0
        assert os.environ["TRANSFORMERS_VERBOSITY"] == kept


@pytest.mark.parametrize(
    "command",
    [
        ["db", "query", "SELECT 1 AS one"],
        ["db", "export", "results", "--output", "{home}/out.csv"],
        ["matrix"],
        ["train"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_an_empty_home_is_told_how_to_begin(accel: Accel, tmp_path: Path, command: list[str]) -> None:
    home = tmp_path / "empty"
    code, out, err = accel(*[part.format(home=tmp_path) for part in command], "--home", str(home))
    assert code == 1
    assert out == ""
    assert re.search(r"accel (run|bench run|migrate)", err)
    assert not (tmp_path / "out.csv").exists()


def test_an_empty_home_answers_from_published_figures(
    accel: Accel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, shipped = tmp_path / "empty", packs.PACKS
    # A few packs, because the tables of all of them take five seconds.
    monkeypatch.setattr(packs, "PACKS", tmp_path / "packs")
    for pack in ("aiconfigurator", "hailo", "llm-pilot"):
        shutil.copytree(shipped / pack, packs.PACKS / pack)
    question = ["bert-large", "--hardware", "NVIDIA A40", "--precision", "float16", "--json", "--home", str(home)]
    code, out, err = accel("recommend", *question)
    assert code == 0
    [found] = json.loads(out)["recommendations"]
    assert (found["device"], found["where"]) == ("NVIDIA A40", "elsewhere")
    assert f"The log of {home} is empty" in err
    code, out, err = accel("predict", *question)
    assert code == 0
    assert json.loads(out)["latency_ms"] == found["latency_ms"]
    assert "is empty" not in err
    # As after a kill between the log and its tables.
    shutil.rmtree(home / "warehouse")
    code, out, err = accel("serving", "llama-3.1-8b", "--hardware", "H200", "--json", "--home", str(home))
    assert code == 0
    assert json.loads(out)["options"][0]["nearest"]
    assert "holds packs without tables" in err


def test_the_version_is_that_of_the_project(accel: Accel) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert accel("--version") == (0, f"accel {project['version']}\n", "")


def test_statistics_of_an_empty_home_are_an_answer(accel: Accel, tmp_path: Path) -> None:
    code, out, _ = accel("db", "stats", "--json", "--home", str(tmp_path))
    assert code == 0
    assert json.loads(out)["warehouse"] is None


def test_a_rebuild_counts_the_rows_it_made(accel: Accel, tmp_path: Path) -> None:
    append(world(tmp_path, []), [result(MODELS[0], "cpu", 1), verified(MODELS[0], "cpu", 1)], publish=False)
    code, out, _ = accel("db", "rebuild", "--home", str(tmp_path), "--json")
    done = json.loads(out)
    assert (code, list(done)) == (0, ["snapshot_id", "mode", "rows", "checks", "seconds"])
    assert (done["mode"], done["rows"]["results"], done["rows"]["compat_matrix"]) == ("full", 1, 1)
    assert all(check["passed"] for check in done["checks"])


@pytest.mark.parametrize("imported", ["typer.models", "pydantic.main"])
def test_an_interrupt_before_the_command_begins_ends_it_without_a_word(tmp_path: Path, imported: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "accel_platform", "db", "stats", "--home", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.endswith(f" {imported}\n") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    # Python ends by the signal itself where it was amid an `eval`; to a shell both are 130.
    assert process.returncode in (130, -signal.SIGINT)
    assert out == ""
    assert [line for line in said.splitlines() if not line.startswith("import time:")] == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["bench", "run", "--batch-sizes", "1,x"], "whole numbers"),
        (["bench", "run", "--batch-sizes", "0"], "from 1 to 65,536"),
        (["bench", "run", "--batch-sizes", "100000"], "from 1 to 65,536"),
        (["bench", "run", "--models", "bert-bse"], "Did you mean"),
        (["bench", "run", "--hardware", "cpuu"], "Did you mean cpu"),
        (["migrate", "no/such/file.json"], "no/such/file.json"),
        (["recommend", "bert-base", "--batch-size", "100000"], "--batch-size"),
        (["recommend", "bert-base", "--objective", "beauty"], "latency"),
        (["serving", "llama-3.1-8b", "--objective", "beauty"], "cost"),
        (["serving", "llama-3.1-8b", "--users", "0"], "--users"),
        (["serving", "llama-3.1-8b", "--users", "2", "--requests-per-s", "1"], "give --users or --requests-per-s, not"),
        (["serving", "llama-3.1-8b", "--max-end-to-end-ms", "9"], "--max-end-to-end-ms 9 needs a percentile"),
        (["serving"], "--config"),
        (["predict", "bert-base", "--mode", "serving"], "'--mode': 'serving' is not one of 'inference'"),
        (["matrix", "--family", "vit"], "--family takes no value: leave 'vit' out"),
        (
            ["predict", "vit-tiny", "--family", "vit", "--hardware", "cpu"],
            "--family would describe a model in place of vit",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_argument_is_named(accel: Accel, tmp_path: Path, command: list[str], words: str) -> None:
    code, out, err = accel(*command, "--home", str(tmp_path))
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [["recommend"], ["predict", "--hardware", "cpu"], ["serving"]])
def test_a_config_goes_by_its_folder(accel: Accel, tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "config.json"
    missing = accel(*command, "--config", str(tmp_path), "--home", str(tmp_path / "home"))
    assert f"There is no file {file}." in missing[2]
    file.write_text("{")
    for path in (tmp_path, file):
        assert f"{file}, line 1" in accel(*command, "--config", str(path), "--home", str(tmp_path))[2]


@pytest.mark.slow
def test_a_config_is_answered_for_on_a_gpu_nobody_has(accel: Accel, tmp_path: Path) -> None:
    home = str(world(tmp_path).home)
    file = tmp_path / "config.json"
    config = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    file.write_text(json.dumps(config))
    asked = ("--config", str(tmp_path), "--precision", "bfloat16", "--hardware", "H100", "--json", "--home", home)
    for mode in ("inference", "training"):
        code, out, err = accel("recommend", *asked, "--mode", mode)
        assert code == 0, err
        answer = json.loads(out)
        assert [r["provenance"] for r in answer["recommendations"]] == ["predicted"], answer["excluded"]
    code, out, err = accel("predict", *asked)
    assert (code, json.loads(out)["provenance"]) == (0, "predicted"), err


@pytest.mark.slow
def test_what_cannot_be_written_is_named(accel: Accel, tmp_path: Path) -> None:
    home = str(world(tmp_path, measured_grid(MODELS)).home)
    output = str(tmp_path / "no" / "folder" / "out.csv")
    code, _, err = accel("db", "export", "results", "--output", output, "--home", home)
    assert code == 2
    assert str(tmp_path / "no" / "folder") in err
    # Not by permissions: tests may run as root, who may write anywhere.
    (tmp_path / "models").write_text("in the way")
    code, _, err = accel("train", "--home", home)
    assert code == 1
    assert str(tmp_path / "models") in err


@pytest.mark.slow
def test_queries_and_tables_come_in_every_format(accel: Accel, tmp_path: Path) -> None:
    home = str(world(tmp_path, measured_grid(MODELS[:1])).home)
    sql = "SELECT model_id, '=1+1' AS told, count(*) AS results FROM results GROUP BY ALL"
    code, out, _ = accel("db", "query", sql, "--format", "csv", "--home", home)
    assert (code, out) == (0, '"model_id","told","results"\n"bert-base","\'=1+1",6\n')
    for ending, begins in (
        ("md", b"| model_id |"),
        ("html", b"<!doctype html>"),
        ("xlsx", b"PK"),
        ("parquet", b"PAR1"),
    ):
        file = tmp_path / f"out.{ending}"
        code, out, err = accel("db", "query", sql, "--output", str(file), "--home", home)
        assert (code, out, err) == (0, "", f"1 row written to {file}\n")
        assert file.read_bytes().startswith(begins)
    code, _, err = accel("db", "query", sql, "--format", "xlsx", "--home", home)
    assert code == 2
    assert "--output" in err
    code, _, err = accel("db", "query", sql, "--format", "csv", "--json", "--home", home)
    assert code == 2
    assert "choose one" in err
    for ending in ("csv", "json", "parquet", "xlsx", "md", "html", "txt"):
        file = tmp_path / f"results.{ending}"
        code, out, _ = accel("db", "export", "results", "--output", str(file), "--json", "--home", home)
        assert code == 0
        assert json.loads(out)["rows"] == 6
        assert file.stat().st_size
    assert list(tmp_path.glob(".results*")) == []


@pytest.mark.slow
def test_statistics_of_the_past_are_those_of_then(accel: Accel, tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:1]))
    home = str(settings.home)
    assert accel("db", "snapshot", "create", "--name", "then", "--home", home)[0] == 0
    append(settings, measured_grid(MODELS[1:2]))
    for arguments, models in ((["--as-of", "then"], 1), ([], 2)):
        code, out, _ = accel("db", "stats", "--json", "--home", home, *arguments)
        told = json.loads(out)
        assert code == 0
        assert told["warehouse"]["rows"]["models"] == models
        assert told["log"]["snapshot_id"] == told["warehouse"]["snapshot_id"]
        assert told["warehouse"]["up_to_date"]


def test_machines_never_read_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"known": 1.5, "unknown": [float("nan"), float("inf")]})
    assert json.loads(capsys.readouterr().out) == {"known": 1.5, "unknown": [None, None]}


@pytest.mark.parametrize(
    "lengths",
    [
        {"random_input_len": 512, "random_output_len": 128},
        {"dataset_name": "sharegpt", "total_input_tokens": 102_390, "total_output_tokens": 25_610},
    ],
    ids=["fixed", "in the mean"],
)
def test_an_imported_load_of_ones_own_answers_for_itself(
    accel: Accel, tmp_path: Path, lengths: dict[str, object]
) -> None:
    report = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "gpu_type": "NVIDIA L40S",
        "vllm_version": "0.19.0", "tensor_parallel_size": "2", "num_prompts": 200, "completed": 200, "duration": 41.2,
        "request_rate": "inf", "max_concurrency": 16, **lengths,
        "request_throughput": 4.85, "output_throughput": 621.3, "median_ttft_ms": 164.9, "median_tpot_ms": 24.1,
    }  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(report))
    assert accel("migrate", str(tmp_path / "bench.json"), "--home", str(tmp_path / "home"))[0] == 0
    load = (
        "--users",
        "16",
        "--input-tokens",
        "512",
        "--output-tokens",
        "128",
        "--engine",
        "vllm",
        "--hardware",
        "L40S",
    )
    code, out, err = accel("serving", "llama-3.1-8b", *load, "--json", "--home", str(tmp_path / "home"))
    assert code == 0, err
    options = {option["devices"]: option for option in json.loads(out)["options"]}
    assert options[1]["provenance"] == "predicted"
    assert options[2]["provenance"] == "measured"
    assert options[2]["first_token_ms"]["p50"] == 164.9
    assert options[2]["output_token_ms"]["p50"] == 24.1
    assert options[1]["nearest"][0]["engine_version"] == "0.19.0"


@pytest.mark.slow
def test_names_of_devices_are_cut_only_where_a_line_is_too_short(
    accel: Accel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = "Maker of Telephones Model 8 Elite Generation 5"
    rows = [result(MODELS[0], "cuda", size, provenance="imported", device=device) for size in (1, 2)]
    home = str(world(tmp_path, rows).home)
    question = ("recommend", MODELS[0].model_id, "--hardware", device, "--home", home)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert device in accel(*question)[1]
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, accel(*question)[1].splitlines())) <= 80


def test_what_servings_are_ranked_by_is_shown_at_100_columns(
    accel: Accel, adopted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    question = ("serving", "llama-3.1-405b", "--users", "32", "--hardware", "H200 SXM", "--max-devices", "32")
    goal = ("--max-output-token-ms", "100", "--percentile", "99")
    for objective, columns in {
        "cost": ["usd_per_mtok", "at_most"],
        "latency": ["end_to_end_s", "at_most"],
        "throughput": ["tokens_per_s", "at_least"],
        "goodput": ["good_requests_per_s"],
        "energy": ["j_per_token", "at_most"],
    }.items():
        code, out, err = accel(*question, *goal, "--objective", objective, "--home", adopted)
        assert code == 0, err
        header, _, *rows = out.splitlines()
        # The engine is no column where all rows have the same.
        names = [name for name in header.split() if name != "engine"]
        assert names[1 : 1 + len(columns)] == columns
        assert any(row.startswith("2 x 8 x H200 SXM") for row in rows)
        place = header.split().index(columns[-1])
        ranked_by = [float(re.split("  +", row)[place]) for row in rows]
        assert min(ranked_by) > 0
        assert ranked_by == sorted(ranked_by, reverse=objective in ("throughput", "goodput"))
        assert "copies side by side, each with the whole model" in err


def test_runtimes_of_one_device_are_no_several_devices(accel: Accel, adopted: str) -> None:
    _, _, err = accel("recommend", "flux-dev", "--hardware", "RTX 4090", "--precision", "bf16", "--home", adopted)
    assert "left out: cuda (NVIDIA GeForce RTX 4090): does not fit in memory" in err


def test_no_width_cuts_the_limits_of_a_time(accel: Accel, adopted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ("serving", "llama-3.1-8b", "--hardware", "H200 SXM", "--max-devices", "4", "--home", adopted)
    for width in (82, 74):
        monkeypatch.setenv("COLUMNS", str(width))
        code, out, err = accel(*question, "--objective", "latency")
        assert code == 0, err
        assert "]" in out
        assert "…" not in out


def test_serving_names_options_where_the_query_has_fields(accel: Accel, adopted: str) -> None:
    question = ("serving", "llama-3.1-8b", "--hardware", "NVIDIA L40S", "--home", adopted)
    code, _, err = accel(*question, "--input-tokens-p99", "10")
    assert (code, err) == (
        2, "accel: --input-tokens-p99 must be 1 to 15 times --input-tokens (1,024), and is 10.\n"
    )  # fmt: skip
    _, _, err = accel("serving", "llama-3.1-8b", "--hardware", "Apple M2 Ultra", "--home", adopted)
    assert "1 not supported, such as 1 x Apple M2 Ultra: none of these engines was measured on a GPU of Apple" in err
    large = (question[0], "llama-3.1-405b", *question[2:], "--quantization", "bfloat16")
    assert "--max-devices 16 would allow a pipeline over two hosts" in accel(*large)[2]


def test_a_serving_states_its_load_and_slow_requests_where_some_are_slower(accel: Accel, adopted: str) -> None:
    question = ("serving", "llama-3.1-8b", "--hardware", "NVIDIA L4", "--max-devices", "1", "--home", adopted)
    code, _, err = accel(*question, "--users", "8")
    assert code == 0, err
    assert re.search(r"load of the first: 8 users at once, \S+ requests/s, 1,024 tokens in and 256 out", err)
    assert "p99 of the first" not in err
    _, _, err = accel(*question, "--users", "8", "--output-tokens-p99", "900")
    assert "p99 of the first" in err
    code, out, err = accel(*question, "--percentile", "90", "--max-first-token-ms", "1")
    assert (code, out) == (1, "")
    assert "warning: Neither --users nor --requests-per-s given: answering for one user." in err
    assert err.startswith("accel: No deployment serves it so, with 1,024 tokens in and 256 out.\n")
    assert "1 may miss a goal, the nearest is 1 x NVIDIA L4: even a typical request may take" in err


def test_a_serving_with_workers_for_prompts_names_them_and_three_commands(
    accel: Accel, adopted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    question = (
        "serving", "deepseek-v3", "--quantization", "fp4", "--users", "64", "--hardware", "GB200",
        "--max-devices", "8", "--disaggregated", "--engine", "trtllm", "--objective", "cost",
    )  # fmt: skip
    code, out, err = accel(*question, "--home", adopted)
    assert code == 0, err
    assert any(row.startswith("1x4 + 1x4 x GB200") for row in out.splitlines())
    assert "1x4 + 1x4 x GB200: 1 worker of 4 devices for prompts, 1 worker of 4 devices for tokens" in err
    assert not out.splitlines()[2].startswith("1x4 + 1x4")  # its commands are told though it does not come first
    options = "'enable_attention_dp: true' 'kv_cache_config: {dtype: fp8}' 'disable_overlap_scheduler: true'"
    assert f"start a worker for prompts of 1x4 + 1x4 x GB200: printf '%s\\n' {options}" in err
    assert "start the router of 1x4 + 1x4 x GB200: printf '%s\\n' 'hostname: 0.0.0.0'" in err
    code, out, err = accel(*question, "--max-first-token-ms", "1", "--percentile", "50", "--home", adopted)
    assert code == 1
    assert "warning: No deployment with workers for prompts serves it so" in err


def test_commands_that_messages_and_pages_name_have_the_options_they_are_given() -> None:
    command_line = typer.main.get_command(app)
    wrong, named = [], 0
    texts = (path for top in PRODUCT for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".html", ".md"))
    for path in texts:
        for found in re.finditer(r"\baccel((?: +[^\s`\"'<>|;\\]+)+)", path.read_text()):
            command: Any = command_line
            words = found[1].split()
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            if hasattr(command, "commands"):
                continue
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            options = {word.strip(".,:;()").partition("=")[0] for word in words if re.match("--[a-z]", word)}
            named += 1
            if options - known - {"--help"}:
                wrong.append(f"{path.relative_to(ROOT)}: {found[0]}")
    assert named > 500
    assert wrong == []


def test_help_says_where_runs_are_compared(accel: Accel) -> None:
    code, out, _ = accel("compare", "--help")
    assert code == 0
    assert "accel regress check --baseline RUN --candidate RUN" in out
    assert "runs or snapshots" not in accel("--help")[1]


def test_the_audit_of_packs_alone_says_that_it_covers_none(accel: Accel, adopted: str) -> None:
    code, _, err = accel("history", "audit", "--home", adopted)
    assert code == 0
    assert "none; figures of knowledge packs are not audited." in err
