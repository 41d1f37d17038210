"""`accel serving`: which devices serve a language model under a load, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.options import Config, FormatOption, Home, Json, OutputFormat
from accel_platform.cli.output import exit_if_nothing, note, print_json, print_table, settings_for, wants_json
from accel_platform.table_io.values import count_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    config: Config = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            help="Of the weights: bfloat16, fp8, int8, fp4, int4, or awq, nvfp4, …. Default: as the hub id "
            "or config states, or as published.",
        ),
    ] = None,
    kv_cache: Annotated[
        str, typer.Option("--kv-cache", help="Type of keys and values: auto (the quantization's), bfloat16 or fp8.")
    ] = "auto",
    input_tokens: Annotated[
        int | None, typer.Option("--input-tokens", help="Tokens of a prompt, in the mean.", show_default="1024")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option("--output-tokens", help="Tokens of an answer, in the mean.", show_default="256")
    ] = None,
    input_tokens_p99: Annotated[
        int | None, typer.Option("--input-tokens-p99", help="99th percentile of prompts.", show_default="all alike")
    ] = None,
    output_tokens_p99: Annotated[
        int | None, typer.Option("--output-tokens-p99", help="99th percentile of answers.", show_default="all alike")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="CSV or JSON Lines of requests, in place of lengths and arrivals.",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    prefix_cached_share: Annotated[
        float, typer.Option("--prefix-cached-share", help="Share of a prompt that the prefix cache holds: 0 to 1.")
    ] = 0.0,
    users: Annotated[int | None, typer.Option("--users", help="Requests under way at once.", show_default="1")] = None,
    requests_per_s: Annotated[
        float | None, typer.Option("--requests-per-s", help="Requests that arrive, in place of --users.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="llama.cpp, vllm, sglang or trtllm.", show_default="the best of the others"),
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(
            "--engine-version", help="Version that the times are of, with --engine.", show_default="the newest measured"
        ),
    ] = None,
    disaggregated: Annotated[
        bool,
        typer.Option("--disaggregated", help="Also deployments whose prompts are computed on devices of their own."),
    ] = False,
    hardware: Annotated[
        list[str] | None,
        typer.Option("--hardware", help="Devices to choose among.", show_default="GPUs of servers and the like"),
    ] = None,
    objective: Annotated[
        str, typer.Option("--objective", help="cost, latency, throughput, goodput or energy.")
    ] = "cost",
    percentile: Annotated[
        int | None,
        typer.Option("--percentile", help="Of the requests that meet the goals of time: 50, 90, 95 or 99."),
    ] = None,
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
    max_devices: Annotated[int, typer.Option("--max-devices", help="Devices of all copies, 32 at most.")] = 8,
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
    from predictor.serving.traces import read_trace

    if (model is None) == (config is None):
        raise InvalidInput("Give one model: its name, or --config FILE.")
    goals = {
        "percentile": percentile,
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
        "kv_cache": kv_cache,
        "prefix_cached_share": prefix_cached_share,
        "engine_version": engine_version,
        "users": users,
        "requests_per_s": requests_per_s,
        "engine": engine,
        "disaggregated": disaggregated,
        "hardware": _names(hardware),
        "objective": objective,
        "goals": {key: value for key, value in goals.items() if value is not None},
    }
    lengths = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "input_tokens_p99": input_tokens_p99,
        "output_tokens_p99": output_tokens_p99,
        "trace": None if trace is None else read_trace(trace),
    }
    fields |= {key: value for key, value in lengths.items() if value is not None}
    query = validate_query(ServingQuery, fields, name=_option)
    settings = settings_for(home)
    adopt_shipped(settings, only_into_empty_log=True)
    answer = Advisor(settings).recommend_serving(query)
    if wants_json(json_, format_):
        print_json(answer)
    else:
        _print_answer(answer, objective, percentile, verbose=verbose)
    exit_if_nothing(answer.options)


def _names(hardware: list[str] | None) -> list[str] | None:
    """Return names, of which several may stand with commas between."""
    from accel_platform.cli.options import split_words
    from accel_platform.hardware.catalog import find_spec

    return (
        [part for name in hardware for part in ([name] if find_spec(name) else split_words(name))] if hardware else None
    )


def _option(path: str) -> str:
    """Return the option of a query's field, for messages."""
    named = {"": "the question", "goals": "--percentile"}
    return named.get(path) or f"--{path.removeprefix('goals.').partition('.')[0].replace('_', '-')}"


_RANKED_BY = {
    "cost": "at_most, the upper limit of what a million output tokens cost",
    "latency": "at_most, the upper limit of the time to the last token",
    "throughput": "at_least, the lower limit of output tokens per second",
    "goodput": "the requests per second that meet all goals of time",
    "energy": "at_most, the upper limit of joules per output token",
}


def _print_answer(answer: ServingAnswer, objective: str, percentile: int | None, *, verbose: bool) -> None:
    shown = answer.options if verbose else answer.options[:_SHOWN]
    empty = f"No deployment serves it so, with {answer.input_tokens:,} tokens in and {answer.output_tokens:,} out."
    print_table([_row(option, objective, percentile) for option in shown], empty=empty)
    if len(shown) < len(answer.options):
        note(f"{len(answer.options) - len(shown)} more deployments (--verbose shows them)")
    if answer.options:
        _print_legend(shown, objective)
        _print_first(answer, shown)
    _print_excluded(answer.excluded, verbose=verbose)
    cautions = dict.fromkeys(caution for option in shown for caution in option.cautions)
    for warning in (*answer.warnings, *(cautions if verbose else list(cautions)[:3])):
        note(f"warning: {warning}")


def _print_legend(shown: Sequence[ServingOption], objective: str) -> None:
    """Explain the order, the columns and the signs of the table."""
    level = next((o.output_token_ms.level for o in shown if o.output_token_ms.level is not None), None)
    if level is not None:
        note(f"[low, high] holds {level:.0%} of the loads on GPUs, and of the models, that were not learned from")
    note(f"ranked by {_RANKED_BY[objective]} (--objective {objective})")
    note("usd_per_mtok: rent per million output tokens; *: no other deployment is both cheaper and faster")
    side_by_side = (option for option in shown if option.copies > 1 and not option.prompt_workers)
    if (several := next(side_by_side, None)) is not None:
        note(f"{_devices(several)}: {several.copies} copies side by side, each with the whole model")
    if any(option.attention_copies > 1 for option in shown):
        note("dp: each device attends for its own users, experts are split over all (data-parallel attention)")
    if (disaggregated := _first_disaggregated(shown)) is not None:
        prompts = _workers(disaggregated.prompt_workers, disaggregated.devices_per_prompt_worker)
        tokens = _workers(disaggregated.copies, disaggregated.devices_per_copy)
        note(f"{_devices(disaggregated)}: {prompts} for prompts, {tokens} for tokens (disaggregated serving)")
    if any(option.stages > 1 for option in shown):
        note("pp: each of several hosts holds some of the layers (pipeline parallelism)")


def _print_first(answer: ServingAnswer, shown: Sequence[ServingOption]) -> None:
    """Print load, memory, commands and evidence of the first deployment, and the day of the prices."""
    first, disaggregated = answer.options[0], _first_disaggregated(shown)
    for line in _load(first, answer):
        note(line)
    note(f"memory of the first: {_memory(first)}")
    _print_commands(first)
    if disaggregated is not None and disaggregated is not first:
        _print_commands(disaggregated)
    if first.nearest:
        note(f"nearest measured: {_nearby(first.nearest[0])}")
    if (price := next((o for o in shown if o.price_date), None)) is not None:
        note(f"prices: on demand, as of {price.price_date} for the {price.device}")


def _first_disaggregated(shown: Sequence[ServingOption]) -> ServingOption | None:
    return next((option for option in shown if option.prompt_workers), None)


def _print_commands(option: ServingOption) -> None:
    if not option.prompt_workers:
        note(f"start it: {option.launch}")
        return
    for what, line in zip(
        ("a worker for prompts", "a worker for tokens", "the router"), option.launch.splitlines(), strict=True
    ):
        note(f"start {what} of {_devices(option)}: {line}")


def _nearby(near: MeasuredNearby) -> str:
    engine = " ".join(filter(None, (near.engine, near.engine_version)))
    load = f"a batch of {near.users}" if near.batch else count_of(near.users, "user")
    first = "" if near.first_token_ms is None else f"{rounded(near.first_token_ms, 4)} ms to the first token, "
    return (
        f"{near.devices} x {near.device}, {engine}, {load}, {near.input_tokens}+{near.output_tokens} tokens: "
        f"{first}{rounded(near.output_token_ms)} ms per token (event {near.event_id})"
    )


def _row(option: ServingOption, objective: str, percentile: int | None) -> dict[str, Any]:
    """Return the columns of a deployment: the objective's comes before the times, so that no width leaves it out."""
    cost, energy = option.usd_per_million_output_tokens, option.j_per_output_token
    tail = percentile if percentile == option.slow.percentile else None
    times, suffix = (option, "") if tail is None else (option.slow, f"_p{tail}")
    tokens = {"tokens_per_s": round(option.output_tokens_per_s.p50)}
    rent = {"usd_per_mtok": "-" if cost is None else f"{cost.p50:.2f}"}
    # The limit that ranks is that of the typical request, at every percentile.
    rate, end = option.output_tokens_per_s, option.end_to_end_ms
    ranking: dict[str, dict[str, Any]] = {
        "cost": rent | {"at_most": "-" if cost is None else f"{cost.high or cost.p50:.2f}"},
        "latency": {"end_to_end_s": _short(end.p50 / 1e3), "at_most": rounded((end.high or end.p50) / 1e3)},
        "throughput": tokens | {"at_least": round(rate.low or rate.p50)},
        "goodput": {"good_requests_per_s": _short(option.goodput_requests_per_s or 0.0)},
        "energy": {"j_per_token": "-", "at_most": "-"}
        if energy is None
        else {"j_per_token": _short(energy.p50), "at_most": rounded(energy.high or energy.p50)},
    }
    return {
        "devices": _devices(option) + (" *" if option.best_trade_off else ""),
        "engine": option.engine
        + (" dp" if option.attention_copies > 1 else "")
        + (f" pp{option.stages}" if option.stages > 1 else ""),
        **ranking[objective],
        f"first_token_s{suffix}": _limits(times.first_token_ms, 1e-3),
        f"output_token_ms{suffix}": _limits(times.output_token_ms),
        **tokens,
        **rent,
        "source": option.provenance,
    }


def _devices(option: ServingOption) -> str:
    """Return `2 x 8 x H200 SXM` for two copies of eight devices, `1x4 + 2x8 x H200 SXM` with a worker for prompts."""
    device = option.device.removeprefix("NVIDIA ").removeprefix("GeForce ")
    if option.prompt_workers:
        prompts = f"{option.prompt_workers}x{option.devices_per_prompt_worker}"
        return f"{prompts} + {option.copies}x{option.devices_per_copy} x {device}"
    copies = f"{option.copies} x " if option.copies > 1 else ""
    return f"{copies}{option.devices_per_copy} x {device}"


def _workers(count: int, devices: int) -> str:
    workers = count_of(count, "worker")
    return f"{workers} of {devices} devices" if devices > 1 else workers


def _load(option: ServingOption, answer: ServingAnswer) -> Iterator[str]:
    users = count_of(option.users, "user")
    rate = _short(option.requests_per_s.p50)
    lengths = f"{answer.input_tokens:,} tokens in and {answer.output_tokens:,} out"
    yield f"load of the first: {users} at once, {rate} requests/s, {lengths}"
    if option.engine_version is not None:
        yield f"times of the first: of {option.engine} {option.engine_version} (--engine-version)"
    if option.has_slow_requests:
        yield _slow(option)
    if option.goodput_requests_per_s is not None:
        yield f"goodput of the first: {_short(option.goodput_requests_per_s)} requests/s meet all goals of time"


def _slow(option: ServingOption) -> str:
    slow = option.slow
    times = (slow.first_token_ms.p50 / 1e3, slow.output_token_ms.p50, slow.end_to_end_ms.p50 / 1e3)
    first, token, end = map(_short, times)
    return f"p{slow.percentile} of the first: {first} s to the first token, {token} ms per token, {end} s in all"


def _limits(interval: Interval, factor: float = 1.0) -> str:
    if interval.low is None or interval.high is None:
        return _short(interval.p50 * factor)
    return f"{_short(interval.p50 * factor)} [{_short(interval.low * factor)}, {_short(interval.high * factor)}]"


def _short(value: float) -> str:
    return rounded(value, 2)


def _memory(option: ServingOption) -> str:
    memory = option.memory
    return (
        f"{rounded(memory.weights_gib)} GiB of weights, {rounded(memory.cache_per_user_gib, 2)} per request, "
        f"{rounded(memory.working_gib, 2)} to work in, of {rounded(memory.limit_gib, 4)}: "
        f"{count_of(memory.max_users, 'request')} at once"
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
            # Of goals the nearest miss stands first; of memory the most devices, which lack least, last.
            such_as, example = ("the nearest is", found[0]) if cause == "goal" else ("such as", found[-1])
            note(f"{len(found)} {words}, {such_as} {example.devices} x {example.device}: {example.reason}")
