"""Which wheels travel to a host that only measures."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from accel_platform.carried_wheels import CORE, TargetHost, collect_wheels, measuring_packages, read_installed
from accel_platform.errors import AccelError, InvalidInput, package_missing

HEAVY = {"dagster", "duckdb", "altair", "fastapi", "great-expectations", "obstore", "pandas", "scikit-learn"}
MEASURE = (
    "accel_platform.benchmark_api",
    "accel_platform.bench.run.campaign",
    "accel_platform.bench.measure.worker",
    "accel_platform.bench.prepare.worker",
    "accel_platform.backends.detect",
    "accel_platform.requested_benchmarks",
    "accel_platform.reports.run_export",
    "accel_platform.cli.measurement.bench_output",
)


def bare(**installed: str) -> TargetHost:
    return TargetHost("3.12", "linux_x86_64", installed)


def names(hardware: list[str], target: TargetHost) -> set[str]:
    return set(measuring_packages(hardware, target))


def test_a_bare_host_gets_what_measuring_imports_and_nothing_else() -> None:
    lacking = names(["cpu"], bare())
    assert set(CORE) | {"transformers", "pydantic-core"} <= lacking
    assert not lacking & (HEAVY | {"torch", "onnxruntime"})
    assert {"onnxruntime", "onnxscript", "onnx"} <= names(["onnxruntime"], bare())
    assert "nvidia-ml-py" in names(["cuda"], bare()) - lacking


def test_what_the_host_has_in_the_allowed_range_stays_here() -> None:
    there = bare(numpy="2.5.2", transformers=version("transformers"), pyarrow="26.0.0")
    assert not names(["cpu"], there) & {"numpy", "transformers", "pyarrow", "tokenizers"}
    assert measuring_packages(["cpu"], bare(numpy="1.26.0"))["numpy"] == f"numpy=={version('numpy')}"


def test_a_torch_out_of_range_is_refused_because_it_never_travels() -> None:
    with pytest.raises(InvalidInput, match=r"has torch 2\.1\.0, and torch.*is needed"):
        measuring_packages(["cpu"], bare(torch="2.1.0"))


def test_markers_are_the_hosts_own() -> None:
    windows = TargetHost("3.12", "win_amd64", {})
    assert "colorama" in names(["cpu"], windows) - names(["cpu"], bare())
    assert windows.environment()["sys_platform"] == "win32"
    assert "manylinux_2_28_x86_64" in bare().pip_options()
    assert "win_amd64" in windows.pip_options()


def test_the_list_of_the_host_is_read_as_pip_writes_it(tmp_path: Path) -> None:
    listed = tmp_path / "installed.txt"
    listed.write_text("pydantic_core==2.50.5\nNumPy==2.5.2\n-e git+https://example.org/x\n")
    assert read_installed(listed) == {"pydantic-core": "2.50.5", "numpy": "2.5.2"}
    listed.write_text("nothing\n")
    with pytest.raises(InvalidInput, match="pip list --format=freeze"):
        read_installed(listed)
    with pytest.raises(InvalidInput, match="Cannot read"):
        read_installed(tmp_path / "absent.txt")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InvalidInput, match="name a new folder"):
        collect_wheels(tmp_path, ["cpu"], bare())


def test_measuring_imports_nothing_of_the_rest() -> None:
    forbidden = sorted(HEAVY - {"great-expectations", "scikit-learn"} | {"great_expectations", "sklearn"})
    script = f"import sys, {', '.join(MEASURE)}; print([m for m in {forbidden} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_told_and_a_missing_module_of_ours_is_a_bug() -> None:
    told = package_missing(ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    assert isinstance(told, AccelError)
    assert "needs duckdb" in str(told)
    assert "scikit-learn" in str(package_missing(ModuleNotFoundError("…", name="sklearn.gaussian_process")))
    for other in ("accel_platform.nothing", "somebodys_module", "duck"):
        assert package_missing(ModuleNotFoundError("…", name=other)) is None
    assert package_missing(ImportError("…")) is None


def test_a_missing_package_is_told_where_the_platform_is_run_from_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", nowhere)
    assert "needs duckdb-not-here" in str(package_missing(ModuleNotFoundError("…", name="duckdb_not_here")))
    assert package_missing(ModuleNotFoundError("…", name="accel_platform.nothing")) is None
