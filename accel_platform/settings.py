"""Settings of one installation, read from ACCEL_* variables or --home."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from accel_platform.errors import InvalidInput


class Settings(BaseModel):
    """Paths of one installation. `ACCEL_HOME` moves everything, `ACCEL_LOG_URI` only the event log.

    Raises InvalidInput for a variable whose value is no such setting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    home: Path = Field(default=Path(".accel"), description="State directory; created when first written to.")
    inbox: Path | None = Field(
        default=None, description="Where old results are put to be imported; default <home>/inbox."
    )
    suite: Path | None = Field(default=None, description="A suite file to measure every night; default: none.")
    webhook_url: SecretStr | None = Field(
        default=None, description="Where failed runs are told, by an HTTP POST; default: nowhere."
    )
    log_uri: str | None = Field(
        default=None, description="A directory, or a prefix at s3://, gs://, az:// or abfss://; default <home>/log."
    )

    engine: Literal["duckdb", "spark"] = Field(default="duckdb", description="What computes the tables.")
    spark: str | None = Field(default=None, description="Address of Spark Connect, e.g. sc://host:15002.")
    spark_dir: Path | None = Field(
        default=None,
        description="Folder that this machine and Spark see under one path; default <home>/warehouse/parquet.",
    )

    postgres_url: str | None = Field(
        default=None,
        description="Where Dagster keeps its runs, for several machines; default: files in <home>/dagster.",
    )

    cluster: Path | None = Field(
        default=None, description="What benchmarks ask of Kubernetes or Slurm, as YAML; default: the platform's own."
    )

    cors_origins: tuple[str, ...] = Field(
        default=(), description="Origins whose pages may ask the service, comma-separated; default: none."
    )
    rate_per_s: float = Field(
        default=100.0, gt=0, description="Requests a second that one API key may send to one worker, on average."
    )

    @model_validator(mode="wrap")
    @classmethod
    def _complete_from_environment(cls, given: dict[str, Any], validate: ModelWrapValidatorHandler[Self]) -> Self:
        # By hand, because importing pydantic-settings takes a tenth of a short command.
        variables = {name: os.environ.get(f"ACCEL_{name.upper()}") for name in cls.model_fields}
        try:
            return validate({name: value for name, value in variables.items() if value} | given)
        except ValidationError as error:
            wrong = [f"ACCEL_{str(one['loc'][0]).upper()} is {one['input']!r}: {one['msg']}." for one in error.errors()]
            raise InvalidInput(" ".join(wrong)) from error

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _separate(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @property
    def log_location(self) -> str:
        return self.log_uri or str(self.home / "log")

    @property
    def inbox_dir(self) -> Path:
        return self.inbox or self.home / "inbox"

    @property
    def own_paths(self) -> tuple[Path, ...]:
        """This installation's own folders on this machine: nothing there is imported or cleaned up."""
        return (self.home, *(() if "://" in self.log_location else (Path(self.log_location),)))

    @property
    def warehouse_dir(self) -> Path:
        return self.home / "warehouse"

    @property
    def models_dir(self) -> Path:
        return self.home / "models"

    @property
    def cache_dir(self) -> Path:
        """Reproducible files: exported graphs, fetched segments."""
        return self.home / "cache"


class SnapshotSettings(Settings):
    """Settings of one snapshot: the same log, and separate tables that receive nothing new."""

    snapshot_id: str

    @property
    def warehouse_dir(self) -> Path:
        return self.cache_dir / "as-of" / self.snapshot_id
