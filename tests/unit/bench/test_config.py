"""Suite files: what is accepted, what each key does, and the sentence that each mistake gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from accel_platform.bench.measure.sampling import Sampling, is_warm
from accel_platform.bench.plan.config import BenchmarkConfig, example_suite, read_config, reference_table, write_example
from accel_platform.bench.plan.config_resolution import ModelNames, resolve_effort, select_models
from accel_platform.bench.plan.run_options import EFFORTS
from accel_platform.bench.plan.schedule import parse_schedule
from accel_platform.benchmark_api import plan_benchmark
from accel_platform.cli import app
from accel_platform.errors import AccelError, InvalidInput, NotFound
from accel_platform.workloads.custom_models import custom_models
from accel_platform.workloads.model_catalog import resolve_model

ROOT = Path(__file__).parents[3]

OLD_GUIDE = {
    "batch_sizes": [1, 4, 8],
    "sequence_lengths": [32, 128, 512],
    "warmup_iterations": 5,
    "benchmark_iterations": 20,
    "timeout": 600,
    "model_families": {"embedding": ["bert-base-uncased"], "vision": ["google/vit-base-patch16-224"]},
    "hardware_types": ["cpu", "cuda", "mps", "openvino"],
    "include_web_platforms": False,
    "parallel": True,
    "use_resource_pool": True,
    "generate_plots": True,
    "update_compatibility_matrix": True,
    "schedule": {"enabled": True, "frequency": "daily", "time": "02:30"},
}


def saved(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "suite.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


def test_a_suite_of_the_old_guide_is_read_as_it_is(tmp_path: Path) -> None:
    config = read_config(saved(tmp_path, OLD_GUIDE))
    assert config.batch_sizes == (1, 4, 8)
    assert config.model_families is not None
    assert config.model_families["vision"] == ("google/vit-base-patch16-224",)
    assert config.schedule == "30 2 * * *"


def test_the_example_has_every_key_with_its_meaning_and_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    write_example(path)
    written = json.loads(path.read_text())
    for key in BenchmarkConfig.model_fields:
        assert key in written
        assert written[f"// {key}"] == BenchmarkConfig.model_fields[key].description
    assert read_config(path).models is None
    with pytest.raises(InvalidInput, match="is there already"):
        write_example(path)
    assert path.read_text() == example_suite()


def test_the_documentation_lists_the_keys_as_they_are() -> None:
    page = (ROOT / "docs/reference/suite-json.md").read_text()
    assert reference_table() in page, "put the output of accel_platform.bench.plan.config.reference_table() there"


def test_the_input_of_an_own_model_is_for_one(tmp_path: Path) -> None:
    (tmp_path / "net.py").touch()
    for words, reason in (
        (["bert-tiny", "--input", "x=3x8x8"], "belongs to one model of your own"),
        ([f"{tmp_path}/net.py:Net", "--input", "3x8x8"], "expected NAME=SHAPE"),
    ):
        done = CliRunner().invoke(app, ["bench", "run", "--home", str(tmp_path), "--models", *words])
        assert done.exit_code != 0
        assert reason in str(done.exception)


def test_paths_are_meant_from_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    weights = {"bert-tiny": "mine", "vit-tiny": "some/hub-id"}
    config = read_config(saved(tmp_path, {"csv": "out/x.csv", "models_file": "m.json", "weights": weights}))
    assert config.csv == tmp_path / "out" / "x.csv"
    assert config.models_file == tmp_path / "m.json"
    assert config.weights == {"bert-tiny": str(tmp_path / "mine"), "vit-tiny": "some/hub-id"}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"batchsizes": [1]}, r"unknown key batchsizes \(line 2\), did you mean batch_sizes\?"),
        ({"zzz": 1}, "unknown key zzz .line 2., known: models, model_families"),
        ({"batch_sizes": "1"}, r'batch_sizes \(line 2\): expected whole numbers from 1 to 65,536.*, got "1"'),
        ({"timeout": 9, "batch_sizes": [1, "four"]}, r"batch_sizes\[1\] \(line 3\): expected whole numbers.*\"four\""),
        ({"batch_sizes": [0]}, r"batch_sizes\[0\].*got 0"),
        ({"batch_sizes": []}, r"batch_sizes .*got \[\]"),
        ({"batch_sizes": [1.5]}, r"got 1.5"),
        ({"batch_sizes": [True]}, r"got true"),
        ({"sequence_lengths": [-1]}, r"sequence_lengths\[0\].*got -1"),
        ({"models": "bert-base"}, r'models .*expected names such as \["bert-base"\].*got "bert-base"'),
        ({"models": [1]}, r"models\[0\].*got 1"),
        ({"models": {"mine": 1}}, r"models\.mine .*got 1"),
        ({"models": {}}, r"models .*got \{\}"),
        ({"model_families": ["bert"]}, r'expected an object of name lists, such as \{"vision"'),
        ({"model_families": {"text": "bert"}}, r'model_families\.text .*got "bert"'),
        ({"modes": ["inferense"]}, r'modes\[0\].*got "inferense"'),
        ({"warmup_iterations": -1}, "a whole number of at least 0, got -1"),
        ({"benchmark_iterations": 2.0}, "a whole number of at least 1, got 2.0"),
        ({"timeout": 0}, "seconds, above 0, got 0"),
        ('{"timeout": NaN}', "seconds, above 0, got NaN"),
        ({"generate_plots": "yes"}, r'generate_plots .*expected true or false, got "yes"'),
        ({"weights": "folder"}, 'weights .*expected an object such as .*got "folder"'),
        ({"schedule": "0 25 * * *"}, "schedule .*'25' is no hour"),
        ({"schedule": {"frequency": "often"}}, "frequency must be hourly, daily, weekly"),
        ({"hardware_types": ["webgpu"], "include_web_platforms": False}, "hardware_types names webgpu, but"),
        ({"csv": 1, "effort": 2}, "effort .*got 2; csv .*got 1"),
        ("[]", r"expected an object \{...\}, got \[\]"),
        ("", "line 1, column 1: no JSON"),
        ('{"timeout": 1,}', "line 1, column 15: no JSON|line 1, column 14: no JSON"),
        ('{"timeout": 1, "timeout": 2}', 'the key "timeout" is there twice'),
    ],
)
def test_every_mistake_gets_one_line_that_says_where_and_what(tmp_path: Path, value: Any, sentence: str) -> None:
    path = saved(tmp_path, value)
    with pytest.raises(AccelError) as caught:
        read_config(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert re.search(sentence, message), message


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no file"):
        read_config(tmp_path / "nothing.json")


def test_iterations_and_timeout_reach_the_sampling() -> None:
    effort = resolve_effort(BenchmarkConfig(warmup_iterations=7, benchmark_iterations=30, timeout=8, effort="quick"))
    assert (effort.sampling.warmup_min_count, effort.sampling.min_count) == (7, 30)
    assert (effort.timeout_s, effort.sampling.limit_s) == (8, 4)
    assert effort.sampling.max_time_s <= 4
    assert resolve_effort(BenchmarkConfig(benchmark_iterations=3)).sampling.min_count == 11
    assert resolve_effort(BenchmarkConfig()) == EFFORTS["standard"]
    with pytest.raises(InvalidInput, match="Try thorough"):
        resolve_effort(BenchmarkConfig(effort="thoroug"))


@given(st.lists(st.integers(1_000_000, 2_000_000_000), max_size=12), st.integers(0, 12))
def test_warming_up_lasts_at_least_as_many_runs_as_were_asked(times_ns: list[int], least: int) -> None:
    asked, usual = Sampling(warmup_min_count=least), Sampling()
    enough = len(times_ns) >= least or sum(times_ns) >= asked.limit_s * 1e9
    assert is_warm(times_ns, asked) == (enough and is_warm(times_ns, usual))


@pytest.mark.parametrize(
    ("given_", "cron"),
    [
        (None, None),
        ("0 2 * * *", "0 2 * * *"),
        (" */15  0-6,22 1 jan-mar MON ", "*/15 0-6,22 1 jan-mar MON"),
        ("0 0 * * 7", "0 0 * * 7"),
        ("@daily", "@daily"),
        ({"enabled": False, "frequency": "daily", "time": "02:00"}, None),
        ({"frequency": "weekly", "time": "2:05"}, "5 2 * * 1"),
        ({"frequency": "hourly", "time": "00:20"}, "20 * * * *"),
    ],
)
def test_schedules_become_cron(given_: Any, cron: str | None) -> None:
    assert parse_schedule(given_) == cron


@pytest.mark.parametrize(
    "wrong",
    ["", "0 2 * *", "60 * * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *", "a * * * *",
     "@never", "1-2-3 * * * *", "-1 * * * *", 3, {"time": "24:00"}, {"enabled": 1}, {"every": "day"}],
)  # fmt: skip
def test_what_is_no_schedule_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_schedule(wrong)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"models": ["bert-tinny"]}, NotFound, "Did you mean bert-tiny"),
        ({"model_families": {"text": ["bert-tinny"]}}, NotFound, "Did you mean bert-tiny"),
        ({"models": {"mine": {"nam": "bert-tiny"}}}, InvalidInput, "models: mine: unknown key nam, did you mean name"),
        ({"hardware_types": ["abacus"]}, InvalidInput, "No hardware is called 'abacus'"),
        ({"set": "custom"}, InvalidInput, "name one"),
        ({"set": "smal"}, NotFound, "No set of models is called 'smal'"),
        ({"effort": "slow"}, InvalidInput, "No effort is called 'slow'"),
        ({"models_file": "nothing.json"}, NotFound, "There is no file"),
        ({"models": ["bert-tiny"], "sequence_lengths": [4096]}, InvalidInput, "Nothing is left to measure: .* at most"),
        ({"models": ["bert-tiny"], "weights": {"vit-tiny": "x/y"}}, InvalidInput, "which is not among the models"),
        ({"models": ["bert-tiny"], "weights": {"bert-tiny": "./x"}}, NotFound, "There is no folder"),
    ],
)
def test_what_a_suite_names_must_be_there(tmp_path: Path, value: Any, kind: type[AccelError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        plan_benchmark(saved(tmp_path, value), home=tmp_path / "home")
    assert "\n" not in str(caught.value)


def test_a_set_may_stand_beside_names_and_ones_own_models_come_first() -> None:
    own = {"bert-base": resolve_model("bert-tiny")}
    assert [m.model_id for m in select_models(("bert-base", "vit-tiny"), None, ModelNames(own, None), {})] == [
        "bert-tiny",
        "vit-tiny",
    ]
    assert [m.model_id for m in select_models(None, None, ModelNames(own, None), {})] == ["bert-tiny"]
    assert len(select_models(None, None, ModelNames({}, None), {})) == 4
    assert select_models(("t5-small",), "small", ModelNames({}, None), {})[0].model_id == "t5-small"


def test_the_how_to_shows_what_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/suites.md").read_text()
    suite, models, sources = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    assert read_config(saved(tmp_path, suite)).schedule == "0 2 * * *"
    entries = json.loads(models)
    del entries["our-finetune"]  # its weights are the reader's
    assert list(custom_models(entries, where="models.json")) == ["our-bert", "bert"]
    (tmp_path / "net.py").touch()
    own = {"our-net": json.loads(sources)["our-net"]}  # the other's file is the reader's
    assert custom_models(own, where="models.json", folder=tmp_path)["our-net"].modality == "vision"
    (python,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    compile(python, "suites.md", "exec")
    (mistake,) = re.findall(r"accel: broken.json: (.*)", page)
    broken = saved(tmp_path, '{\n  "timeout": 5,\n  "batch_sizes": [1, "four"]\n}')
    with pytest.raises(InvalidInput, match=re.escape(mistake)):
        read_config(broken)
