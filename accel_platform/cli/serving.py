"""`accel serving`: which devices serve a language model under a load, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import FormatOption, Home, Json, OutputFormat
from accel_platform.cli.output import exit_if_nothing, note, print_json, print_table, settings_for, wants_json

if TYPE_CHECKING:
    from predictor.schemas.responses import Interval
    from predictor.schemas.serving import MeasuredNearby, NotServed, ServingAnswer, ServingOption

_SHOWN = 12
"""Deployments that are printed unless all are asked for."""
_CAUSES = {
    "goal": "may miss a goal",
    "does_not_fit": "do not fit in memory",
    "overloaded": "cannot keep up",
    "unsupported": "are not priced",
}


def serving(
    model: Annotated[str | None, typer.Argument(help="A model's name or hub id.", show_default=False)] = None,
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="The model's config.json.", dir_okay=False, exists=True)
    ] = None,
    quantization: Annotated[
        str, typer.Option("--quantization", help="Of the weights: bfloat16, fp8, int8, fp4, int4, or awq, nvfp4, ….")
    ] = "bfloat16",
    input_tokens: Annotated[int, typer.Option("--input-tokens", help="Tokens of a prompt.")] = 1024,
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="Tokens of an answer.")] = 256,
    users: Annotated[int | None, typer.Option("--users", help="Requests under way at once.", show_default="1")] = None,
    requests_per_s: Annotated[
        float | None, typer.Option("--requests-per-s", help="Requests that arrive, in place of --users.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="llama.cpp, vllm, sglang or trtllm.", show_default="the best of the others"),
    ] = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option("--hardware", help="Devices to choose among.", show_default="GPUs of servers and the like"),
    ] = None,
    objective: Annotated[str, typer.Option("--objective", help="cost, latency or throughput.")] = "cost",
    max_first_token_ms: Annotated[
        float | None, typer.Option("--max-first-token-ms", help="Time to the first token that is allowed.")
    ] = None,
    max_output_token_ms: Annotated[
        float | None, typer.Option("--max-output-token-ms", help="Time per further token that is allowed.")
    ] = None,
    max_end_to_end_ms: Annotated[
        float | None, typer.Option("--max-end-to-end-ms", help="Time to the last token that is allowed.")
    ] = None,
    max_usd_per_hour: Annotated[float | None, typer.Option("--max-usd-per-hour", help="Rent that is allowed.")] = None,
    max_watts: Annotated[float | None, typer.Option("--max-watts", help="Power that is allowed.")] = None,
    max_devices: Annotated[int, typer.Option("--max-devices", help="Devices of one deployment, 8 at most.")] = 8,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="All deployments, memory, evidence, and all that was left out.")
    ] = False,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Rank devices to serve a language model under a load: memory, times with limits, and cost."""
    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import read_object
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.requests import validate_query
    from predictor.schemas.serving import ServingQuery

    if (model is None) == (config is None):
        raise InvalidInput("Give one model: its name, or --config FILE.")
    goals = {
        "max_first_token_ms": max_first_token_ms,
        "max_output_token_ms": max_output_token_ms,
        "max_end_to_end_ms": max_end_to_end_ms,
        "max_usd_per_hour": max_usd_per_hour,
        "max_watts": max_watts,
        "max_devices": max_devices,
    }
    fields: dict[str, Any] = {
        "mode": "serving",
        "model": model if config is None else read_object(config)[0],
        "quantization": quantization,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "users": users,
        "requests_per_s": requests_per_s,
        "engine": engine,
        "hardware": _names(hardware),
        "objective": objective,
        "goals": {key: value for key, value in goals.items() if value is not None},
    }
    query = validate_query(ServingQuery, fields, name=_option)
    answer = Advisor(settings_for(home)).recommend_serving(query)
    if wants_json(json_, format_):
        print_json(answer)
    else:
        _print_answer(answer, verbose=verbose)
    exit_if_nothing(answer.options)


def _names(hardware: list[str] | None) -> list[str] | None:
    """Return names, of which several may stand with commas between."""
    from accel_platform.cli.options import split_words
    from accel_platform.hardware.catalog import find_spec

    return (
        [part for name in hardware for part in ([name] if find_spec(name) else split_words(name))] if hardware else None
    )


def _option(path: str) -> str:
    """Return the option of a query's field; both that exclude each other for the query as a whole."""
    return "--users, --requests-per-s" if not path else f"--{path.rpartition('.')[2].replace('_', '-')}"


def _print_answer(answer: ServingAnswer, *, verbose: bool) -> None:
    shown = answer.options if verbose else answer.options[:_SHOWN]
    print_table([_row(option) for option in shown], empty="No deployment serves it so.")
    if len(shown) < len(answer.options):
        note(f"{len(answer.options) - len(shown)} more deployments (--verbose shows them)")
    if answer.options:
        best = answer.options[0]
        predicted = next((option for option in shown if option.provenance == "predicted"), None)
        if predicted is not None:
            held = f"{predicted.output_token_ms.level:.0%}"
            note(f"[low, high] holds {held} of the loads on GPUs, and of the models, that were not learned from")
        note("usd_per_mtok: rent per million output tokens; *: no other deployment is both cheaper and faster")
        note(f"memory of the first: {_memory(best)}")
        note(f"start it: {best.launch}")
        if best.nearest:
            note(f"nearest measured: {_nearby(best.nearest[0])}")
        if (price := next((o for o in shown if o.price_date), None)) is not None:
            note(f"prices: on demand, as of {price.price_date} for the {price.device}")
    _print_excluded(answer.excluded, verbose=verbose)
    cautions = dict.fromkeys(caution for option in shown for caution in option.cautions)
    for warning in (*answer.warnings, *(cautions if verbose else list(cautions)[:3])):
        note(f"warning: {warning}")


def _nearby(near: MeasuredNearby) -> str:
    engine = " ".join(filter(None, (near.engine, near.engine_version)))
    load = f"a batch of {near.users}" if near.batch else f"{near.users} users"
    first = "" if near.first_token_ms is None else f"{near.first_token_ms:,.4g} ms to the first token, "
    return (
        f"{near.devices} x {near.device}, {engine}, {load}, {near.input_tokens}+{near.output_tokens} tokens: "
        f"{first}{near.output_token_ms:.3g} ms per token (event {near.event_id})"
    )


def _row(option: ServingOption) -> dict[str, Any]:
    cost = option.usd_per_million_output_tokens
    return {
        "devices": f"{option.devices} x {option.device.removeprefix('NVIDIA ').removeprefix('GeForce ')}"
        + (" *" if option.best_trade_off else ""),
        "engine": option.engine,
        "first_token_s": _limits(option.first_token_ms, 1e-3),
        "output_token_ms": _limits(option.output_token_ms),
        "tokens_per_s": round(option.output_tokens_per_s.p50),
        "usd_per_mtok": "-" if cost is None else f"{cost.p50:.2f}",
        "source": option.provenance,
    }


def _limits(interval: Interval, factor: float = 1.0) -> str:
    if interval.low is None or interval.high is None:
        return _short(interval.p50 * factor)
    return f"{_short(interval.p50 * factor)} [{_short(interval.low * factor)}, {_short(interval.high * factor)}]"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _memory(option: ServingOption) -> str:
    memory = option.memory
    return (
        f"{memory.weights_gib:,.3g} GiB of weights, {memory.cache_per_user_gib:.2g} per request, "
        f"{memory.working_gib:.2g} to work in, of {memory.limit_gib:,.4g}: {memory.max_users:,} requests at once"
    )


def _print_excluded(excluded: list[NotServed], *, verbose: bool) -> None:
    """Print what was left out: one line per cause, with an example; all of them if `verbose`."""
    if verbose:
        for item in excluded:
            note(f"left out: {item.devices} x {item.device}: {item.reason}")
        return
    for cause, words in _CAUSES.items():
        found = [item for item in excluded if item.cause == cause]
        if found:
            first = found[-1]
            note(f"{len(found)} {words}, such as {first.devices} x {first.device}: {first.reason}")
