"""`accel serving`: which devices serve a language model under a load, and what that costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.options import NAMES, CommonOptions, Config
from accel_platform.cli.output import exit_if_nothing, print_json, settings_for
from accel_platform.cli.prediction.query_options import given_fields, serving_option, split_device_names


@dataclass(frozen=True)
class LoadOptions:
    """Requests that come to the deployment; the names are those of the query."""

    input_tokens: Annotated[int | None, typer.Option(help="Tokens of a prompt, in the mean.", show_default="1024")] = (
        None
    )
    output_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer, in the mean.", show_default="256")] = (
        None
    )
    input_tokens_p99: Annotated[
        int | None, typer.Option(help="99th percentile of prompts.", show_default="all alike")
    ] = None
    output_tokens_p99: Annotated[
        int | None, typer.Option(help="99th percentile of answers.", show_default="all alike")
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV or JSON Lines of requests, in place of lengths and arrivals.",
            dir_okay=False,
            exists=True,
        ),
    ] = None
    prefix_cached_share: Annotated[
        float, typer.Option(help="Share of a prompt that the prefix cache holds: 0 to 1.")
    ] = 0.0
    users: Annotated[int | None, typer.Option(help="Requests under way at once.", show_default="1")] = None
    requests_per_s: Annotated[float | None, typer.Option(help="Requests that arrive, in place of --users.")] = None


@dataclass(frozen=True)
class EngineOptions:
    """Engines to choose among; the names are those of the query."""

    engine: Annotated[
        str | None,
        typer.Option(help="llama.cpp, vllm, sglang or trtllm.", show_default="the best of the others"),
    ] = None
    engine_version: Annotated[
        str | None,
        typer.Option(help="Version that the times are of, with --engine.", show_default="the newest measured"),
    ] = None
    disaggregated: Annotated[
        bool,
        typer.Option("--disaggregated", help="Also deployments whose prompts are computed on devices of their own."),
    ] = False


@dataclass(frozen=True)
class GoalOptions:
    """Goals and limits that deployments must meet; the names are those of the query."""

    percentile: Annotated[
        int | None,
        typer.Option(help="Of the requests that meet the goals of time: 50, 90, 95 or 99."),
    ] = None
    max_first_token_ms: Annotated[float | None, typer.Option(help="Time to the first token that is allowed.")] = None
    max_output_token_ms: Annotated[float | None, typer.Option(help="Time per further token that is allowed.")] = None
    max_end_to_end_ms: Annotated[float | None, typer.Option(help="Time to the last token that is allowed.")] = None
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Rent that is allowed.")] = None
    max_watts: Annotated[float | None, typer.Option(help="Power that is allowed.")] = None
    max_devices: Annotated[int, typer.Option(help="Devices of all copies, 32 at most.")] = 8


def serving(
    model: Annotated[str | None, typer.Argument(help="A model's name or hub id.", show_default=False)] = None,
    *,
    config: Config = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Of the weights: bfloat16, fp8, int8, fp4, int4, or awq, nvfp4, …. Default: as the hub id "
            "or config states, or as published.",
        ),
    ] = None,
    kv_cache: Annotated[
        str, typer.Option(help="Type of keys and values: auto (the quantization's), bfloat16 or fp8.")
    ] = "auto",
    load: LoadOptions,
    engine: EngineOptions,
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            metavar=NAMES,
            help="Devices to choose among.",
            show_default="GPUs of servers and the like",
        ),
    ] = None,
    objective: Annotated[str, typer.Option(help="cost, latency, throughput, goodput or energy.")] = "cost",
    goals: GoalOptions,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="All deployments, memory, evidence, and all that was left out.")
    ] = False,
    common: CommonOptions,
) -> None:
    """Rank devices to serve a language model under a load: memory, times with limits, and cost."""
    from accel_platform.cli.prediction.serving_output import MOST_SHOWN, print_answer
    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import read_object
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.messages import name_fields
    from predictor.schemas.requests import validate_query
    from predictor.schemas.serving import ServingQuery
    from predictor.serving.traces import read_trace

    if (model is None) == (config is None):
        raise InvalidInput("Give one model: its name, or --config FILE.")
    fields = {
        "mode": "serving",
        "model": model if config is None else read_object(config)[0],
        "quantization": quantization,
        "kv_cache": kv_cache,
        **asdict(load),
        "trace": None if load.trace is None else read_trace(load.trace),
        **asdict(engine),
        "hardware": split_device_names(hardware) if hardware else None,
        "objective": objective,
        "goals": given_fields(asdict(goals)),
    }
    limit = None if verbose or common.wants_json else MOST_SHOWN
    query = validate_query(ServingQuery, {**given_fields(fields), "limit": limit}, name=serving_option)
    settings = settings_for(common.home)
    adopt_shipped(settings, only_into_empty_log=True)
    try:
        answer = Advisor(settings).recommend_serving(query)
    except InvalidInput as error:
        raise InvalidInput(name_fields(str(error), serving_option)) from error
    if common.wants_json:
        print_json(answer)
    else:
        print_answer(answer, objective, goals.percentile, verbose=verbose)
    exit_if_nothing(answer.options)
