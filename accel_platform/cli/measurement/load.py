"""`accel bench serve`: a load on a running server of a language model, recorded like any load generator's report."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import SEVERAL, CommonOptions, split_words
from accel_platform.cli.output import follow_log, note, print_json, print_table, settings_for
from accel_platform.errors import INTERRUPTED
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.bench.load.generator import Shape
    from accel_platform.settings import Settings

_PROGRESS_STEPS = 10
_COLUMNS = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_itl_ms", "output_throughput")


@dataclass(frozen=True)
class RequestOptions:
    """Requests of a load, or of several loads one after the other."""

    concurrency: Annotated[
        str | None, typer.Option(metavar=SEVERAL, help="Requests under way at once.", show_default="1")
    ] = None
    request_rate: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Arrivals per second, at random times.")] = (
        None
    )
    input_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 512
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 128
    requests: Annotated[int, typer.Option(min=1, help="Requests that count, after the warm-up.")] = 200

    def shapes(self, seed: int | None) -> list[Shape]:
        """Return a shape for each concurrency or rate. Raises InvalidInput for both."""
        from accel_platform.bench.load.generator import Shape, shapes_of
        from accel_platform.errors import InvalidInput

        if self.concurrency is not None and self.request_rate is not None:
            raise InvalidInput("Give --concurrency or --request-rate, not both: one follows from the other.")
        # The clock by default, because a prefix cache may know the words of the last time.
        seed = time.time_ns() if seed is None else seed
        base = Shape(self.input_tokens, self.output_tokens, self.requests, seed=seed)
        users = _numbers("--concurrency", self.concurrency, int)
        rates = _numbers("--request-rate", self.request_rate, float)
        return shapes_of(base, users or ([] if rates else [1]), rates)


@dataclass(frozen=True)
class ServerOptions:
    """Facts about the server that it does not tell its clients."""

    device: Annotated[
        str | None, typer.Option(help="Device it runs on, as it cannot be seen from here: NVIDIA L40S.")
    ] = None
    devices: Annotated[int, typer.Option(min=1, help="Devices that share the model.")] = 1
    engine: Annotated[str | None, typer.Option(help="What serves: vllm, sglang, trtllm, llama.cpp.")] = None
    engine_version: Annotated[str | None, typer.Option(help="Its version.")] = None
    quantization: Annotated[str | None, typer.Option(help="How it keeps weights: fp8.")] = None

    def report_fields(self) -> dict[str, Any]:
        """Return the fields of the report."""
        return {
            "backend": self.engine or "unknown",
            "gpu_type": self.device,
            "version": self.engine_version,
            "quantization": self.quantization,
            "tensor_parallel_size": self.devices,
        }

    def missing(self) -> list[str]:
        """Return the options without which no query uses the load."""
        return [option for option, value in (("--device", self.device), ("--engine", self.engine)) if value is None]


def serve(
    url: Annotated[str, typer.Argument(help="Address of the server: http://127.0.0.1:8000.")],
    *,
    model: Annotated[str | None, typer.Option(help="Its model.", show_default="the only one it lists")] = None,
    load: RequestOptions,
    chat: Annotated[bool, typer.Option("--chat", help="Ask as a chat in place of a completion.")] = False,
    server: ServerOptions,
    api_key_env: Annotated[
        str | None, typer.Option(help="Variable of the environment that holds the server's key.")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds a request may take.")] = 300.0,
    seed: Annotated[int | None, typer.Option(help="Of words and arrivals.", show_default="another each time")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the reports.", show_default="loads, in the home")
    ] = None,
    common: CommonOptions,
) -> None:
    """Load a running server with requests, and record times to first and further tokens."""
    from accel_platform.events import EventLog
    from migrations.pipeline.importer import migrate

    shapes = load.shapes(seed)
    settings = settings_for(common.home)
    # Both before the load, so that nothing measured is lost for want of a place.
    log, folder = EventLog.open(settings), _make_folder(output or settings.home / "loads")
    reports: list[tuple[Path, dict[str, Any]]] = []
    try:
        _run(
            _address(url), model, shapes, server.report_fields(), reports, chat=chat, headers=_key(api_key_env),
            timeout_s=timeout_s, folder=folder,
        )  # fmt: skip
    finally:
        if reports:
            migrate([path for path, _ in reports], log)
            follow_log(settings)
    contents = [content for _, content in reports]
    if common.wants_json:
        print_json([{"file": str(path), **content} for path, content in reports])
    else:
        _print_reports(contents)
        if missing := server.missing():
            note(f"Without {' and '.join(missing)} `accel serving` cannot use these loads.")
    stopped = any("stopped" in content for content in contents)
    if stopped or any(not content["completed"] for content in contents):
        raise typer.Exit(INTERRUPTED if stopped else 1)


def _print_reports(contents: list[dict[str, Any]]) -> None:
    """Print a row per load, and each remark once."""
    print_table([_row(content) for content in contents])
    remarks = (remark for content in contents for remark in (*content["remarks"], *content["errors"]))
    for remark in dict.fromkeys(remarks):
        note(f"remark: {remark}")


def _numbers(option: str, text: str | None, kind: type[int] | type[float]) -> list[Any]:
    from accel_platform.errors import InvalidInput

    try:
        numbers = [kind(word) for word in split_words(text)] if text is not None else []
    except ValueError as error:
        raise InvalidInput(f"{option} {text}: numbers are needed, such as 1,4,16.") from error
    if any(number <= 0 for number in numbers):
        raise InvalidInput(f"{option} {text}: numbers above 0 are needed.")
    return numbers


def _address(url: str) -> str:
    from accel_platform.errors import InvalidInput

    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"{url} is no address: http://127.0.0.1:8000 is one.")
    return url.rstrip("/").removesuffix("/v1")


def _make_folder(folder: Path) -> Path:
    from accel_platform.errors import AccelError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "permission denied")
    except OSError as error:
        raise AccelError(f"{folder} cannot be written ({error.strerror}): name another folder by --output.") from error
    return folder


def _key(variable: str | None) -> dict[str, str]:
    from accel_platform.errors import InvalidInput

    if variable is None:
        return {}
    if not os.environ.get(variable):
        raise InvalidInput(f"--api-key-env {variable}: the environment has no such variable.")
    return {"Authorization": f"Bearer {os.environ[variable]}"}


def _run(
    url: str,
    model: str | None,
    shapes: list[Shape],
    stated: dict[str, Any],
    reports: list[tuple[Path, dict[str, Any]]],
    *,
    chat: bool,
    headers: dict[str, str],
    timeout_s: float,
    folder: Path,
) -> None:
    """Run the loads one after the other, and add each report, written to its file, to `reports`."""
    from accel_platform.atomic_write import write_durably
    from accel_platform.bench.load.client import ServerRefused
    from accel_platform.bench.load.generator import prepare, run_load
    from accel_platform.bench.load.http import Server, Unreachable
    from accel_platform.bench.load.report import report
    from accel_platform.errors import AccelError

    async def measure_all() -> None:
        async with Server(url, headers, timeout_s) as server:
            target, words, remark = await prepare(server, model, shapes[0], chat=chat)
            for shape in shapes:
                what = f"{shape.users} at once" if shape.users else f"{shape.requests_per_s:g} per second"
                note(
                    f"{target.model}, {what}: {count_of(shape.warmup, 'request')} to warm up, "
                    f"{shape.requests} that count"
                )
                result = await run_load(target, shape, words, on_answer=_Progress(shape.requests))
                content = report(result, target, stated, [remark] if remark else [])
                path = folder / f"{content['date']}-{len(reports):02}.json"
                write_durably(path, json.dumps({k: v for k, v in content.items() if v is not None}).encode())
                reports.append((path, content))
                if result.stopped:
                    break

    try:
        asyncio.run(measure_all())
    except KeyboardInterrupt:
        # The load ended as it was cancelled, and its report says so; before the first there is nothing to keep.
        if not reports:
            raise
    except ServerRefused as error:
        raise AccelError(f"{url}: {error}. Give its key with --api-key-env.") from error
    except (Unreachable, TimeoutError) as error:
        raise AccelError(f"{url} cannot be reached ({error or 'no answer'}): is the server running?") from error


class _Progress:
    """Progress printer: a line for each tenth of the requests."""

    def __init__(self, requests: int) -> None:
        self._requests, self._said = requests, 0

    def __call__(self, answered: int) -> None:
        tenth = answered * _PROGRESS_STEPS // self._requests
        if tenth > self._said:
            self._said = tenth
            note(f"{answered}/{self._requests} answered")


def _row(content: dict[str, Any]) -> dict[str, Any]:
    rate, users = content["request_rate"], content["max_concurrency"]
    return {
        "load": f"{rate:g}/s" if users is None else count_of(users, "user"),
        "tokens": f"{content['random_input_len']}+{content['random_output_len']}",
        "answered": f"{content['completed']}/{content['num_prompts']}",
        **{name: None if name not in content else float(f"{content[name]:.3g}") for name in _COLUMNS},
    }


def export_report(settings: Settings, path: Path, result: str | None, *, as_json: bool) -> None:
    """Write one load as a Benchmark Report of llm-d, in JSON, which is YAML too."""
    from accel_platform.atomic_write import write_durably
    from accel_platform.bench.load.llm_d import LIST_COMMAND, llm_d_report
    from accel_platform.errors import InvalidInput, NotFound
    from accel_platform.warehouse.reader import Reader

    if result is None:
        raise InvalidInput(f"--as llm-d needs --result EVENT; {LIST_COMMAND} lists them.")
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise InvalidInput(f"{path} would hold JSON: name it {path.with_suffix('.json')}.")
    found = Reader(settings).rows(
        "SELECT CAST(event_id AS VARCHAR) AS event_id, CAST(payload AS VARCHAR) AS payload FROM events"
        " WHERE CAST(event_id AS VARCHAR) = ? AND type = 'ResultRecorded'",
        (result,),
    )
    if not found:
        raise NotFound(f"No result has the event id {result}: {LIST_COMMAND} lists them.")
    report = llm_d_report(result, json.loads(found[0]["payload"]))
    write_durably(path, json.dumps(report, indent=2).encode() + b"\n")
    if as_json:
        print_json({"path": str(path), "result": result})
    else:
        note(f"result {result} written to {path} as a Benchmark Report of llm-d")
