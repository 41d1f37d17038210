"""Manifest of an artifact: the JSON form of everything but trees and samples."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

import predictor.calibration
import predictor.data
import predictor.models
import predictor.schemas
from predictor.calibration.conformal import Calibration
from predictor.calibration.cross_validation import Regime
from predictor.calibration.memory_model import MemoryModel

FORMAT = 5
"""Version of the manifest: artifacts of another version are rejected."""


@cache
def fitting_code_sha256() -> str:
    """Return a hash of the code and data that turn samples into models: with it, equal samples give equal models."""
    packages = (predictor.schemas, predictor.data, predictor.models, predictor.calibration)
    return hash_code(Path(package.__path__[0]) for package in packages)


def hash_code(folders: Iterable[Path]) -> str:
    """Return a hash of the files in these folders: the syntax trees of Python files, the bytes of all others.

    Data files count, because fits read some of them, such as the operator mixes of published models. Comments and
    docstrings do not count, because they change no fit.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                content = path.read_bytes()
                digest.update(f"{path.name}\n".encode())
                digest.update(_without_text(content) if path.suffix == ".py" else hashlib.sha256(content).digest())
    return digest.hexdigest()


def _without_text(source: bytes) -> bytes:
    """Return the syntax tree of Python code as text, without docstrings; a syntax tree holds no comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.dump(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Codes = tuple[tuple[str, dict[str, int]], ...]
"""Codes by name, in the order of the columns, which JSON's sorted keys would lose."""


class StoredTrees(_Part):
    """Residual trees; `files` names the files of their two boosted models."""

    factors: tuple[float, ...]
    levels: dict[str, float]
    codes: Codes
    terms: bool
    """True if roofline terms are features."""
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    files: tuple[str, str]


class StoredMode(_Part):
    """Models of one mode; `cases` names the file of its samples and residuals, `held_out` that of held-out errors."""

    specialist: StoredTrees
    generalists: dict[str, StoredTrees]
    calibrations: dict[Regime, dict[str, Calibration]]
    flops_range: tuple[float, float]
    batch_range: tuple[float, float]
    size_range: tuple[float, float]
    typical: float
    cases: str
    held_out: str


class StoredFailureModel(_Part):
    """Failure model, with one file of trees per class of failure."""

    curve: tuple[float, float] | None
    codes: Codes
    files: dict[str, str]


class Manifest(_Part):
    """Contents, origin and metrics of an artifact."""

    format: int
    snapshot_id: str
    dataset_sha256: str
    feature_schema: int
    case_columns: tuple[str, ...]
    features: dict[str, tuple[str, ...]]
    """Names of the features, by mode."""
    lightgbm: str
    code_sha256: str = ""
    """Hash of the code and data that fitted it; empty where an older version did not say."""
    rows: int
    families: tuple[str, ...]
    devices: tuple[str, ...]
    modes: dict[str, StoredMode]
    memory: MemoryModel | None
    risks: StoredFailureModel
    metrics: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of every other file."""
