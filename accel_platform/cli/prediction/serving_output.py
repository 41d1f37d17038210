"""Printed table of deployments that serve a model, with their loads, memory and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel_platform.cli.output import note, print_table
from accel_platform.cli.prediction.query_options import serving_option
from accel_platform.table_io.values import count_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from predictor.schemas.responses import Interval
    from predictor.schemas.serving import MeasuredNearby, NotServed, ServingAnswer, ServingOption

MOST_SHOWN = 12
"""Deployments that are printed unless all are asked for."""
_CAUSES = {
    "goal": "may miss a goal",
    "does_not_fit": "too large for the memory",
    "overloaded": "cannot keep up",
    "unsupported": "not supported",
}
_RANKED_BY = {
    "cost": "at_most, the upper limit of what a million output tokens cost",
    "latency": "at_most, the upper limit of the time to the last token",
    "throughput": "at_least, the lower limit of output tokens per second",
    "goodput": "the requests per second that meet all goals of time",
    "energy": "at_most, the upper limit of joules per output token",
}


def print_answer(answer: ServingAnswer, objective: str, percentile: int | None, *, verbose: bool) -> None:
    """Print the deployments, about the first one more, and what was left out; all of it if `verbose`."""
    shown = answer.options
    missing = f"No deployment serves it so, with {answer.input_tokens:,} tokens in and {answer.output_tokens:,} out."
    rows = [_row(option, objective, percentile) for option in shown]
    # Limits that are cut say nothing, so a column at the end goes rather.
    print_table(rows, missing=missing, whole=[name for name in rows[0] if "token_" in name] if rows else ())
    if len(shown) < answer.options_total:
        note(f"{answer.options_total - len(shown)} more deployments (--verbose shows them)")
    if answer.options:
        _print_legend(shown, objective)
        _print_first(answer, shown)
    _print_excluded(answer.excluded, verbose=verbose)
    cautions = dict.fromkeys(caution for option in shown for caution in option.cautions)
    for warning in (*answer.warnings, *(cautions if verbose else list(cautions)[:3])):
        note(f"warning: {_with_options(warning)}")


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
    """Print load, memory, commands, evidence and rent of the first deployment."""
    first, disaggregated = answer.options[0], _first_disaggregated(shown)
    for line in _load(first, answer):
        note(line)
    note(f"memory of the first: {_memory(first)}")
    _print_commands(first)
    if disaggregated is not None and disaggregated is not first:
        _print_commands(disaggregated)
    if first.nearest:
        note(f"nearest measured: {_nearby(first.nearest[0])}")
    if first.usd_per_hour is not None and first.price_source is not None:
        whose = first.price_source.partition("; ")[0]
        note(f"rent of the first: {rounded(first.usd_per_hour, 4)} USD/h ({whose}, {first.price_date})")


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
    wait = (
        ""
        if near.slot_wait_ms is None
        else f" ({rounded(near.slot_wait_ms)} ms of it a wait: its engine took fewer requests than users)"
    )
    first = "" if near.first_token_ms is None else f"{rounded(near.first_token_ms, 4)} ms to the first token{wait}, "
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
            note(f"left out: {item.devices} x {item.device}: {_with_options(item.reason)}")
        return
    for cause, words in _CAUSES.items():
        found = [item for item in excluded if item.cause == cause]
        if found:
            # Of goals the nearest miss stands first; of memory the most devices, which lack least, last.
            such_as, example = ("the nearest is", found[0]) if cause == "goal" else ("such as", found[-1])
            note(
                f"{len(found)} {words}, {such_as} {example.devices} x {example.device}: {_with_options(example.reason)}"
            )


def _with_options(message: str) -> str:
    from predictor.schemas.messages import name_fields

    return name_fields(message, serving_option)
