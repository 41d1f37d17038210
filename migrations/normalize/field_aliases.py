"""Figures told by the words of their keys, where a file of the old framework names them otherwise than its format does.

`p95_latency_ms`, `latency: {"mean": …}`, `peak_memory_gb` or `"12.3 ms"` mean one thing each; a key without a unit has
the one its format uses. Readers take a figure from here only where the key they know holds none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from migrations.normalize.row_access import NO_VALUE
from migrations.normalize.units import NS_PER_S, count, number, quantity, samples_ns, scaled

_MS = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1e-6),
    **dict.fromkeys(("us", "μs", "usec", "microseconds"), 1e-3),  # "µ" folds to "μ"
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1e3),
}
_MIB = {"b": 1 / 1_048_576, "bytes": 1 / 1_048_576, "kb": 1 / 1024, "kib": 1 / 1024, "mb": 1.0, "mib": 1.0,
        "gb": 1024.0, "gib": 1024.0}  # fmt: skip
"""The old framework's MB and GB are powers of 1024; `values.py` says how that is known."""
_STATISTICS = {
    "": "mean", "avg": "mean", "average": "mean", "mean": "mean", "median": "p50", "p50": "p50", "50p": "p50",
    "p90": "p90", "90p": "p90", "p95": "p95", "95p": "p95", "p99": "p99", "99p": "p99", "min": "min", "minimum": "min",
    "max": "max", "maximum": "max", "std": "std", "stdev": "std", "stddev": "std",
}  # fmt: skip
_WHICH = "|".join(sorted(filter(None, _STATISTICS), key=len, reverse=True))
_UNITS = "|".join(sorted(_MS, key=len, reverse=True))
_LATENCY = re.compile(
    rf"(?:(?P<before>{_WHICH})_)?(?:latency|latencies|inference_time|inference_latency|batch_latency|batch_time"
    rf"|inference(?=_(?:{_UNITS})$))"
    rf"(?:_(?P<unit_first>{_UNITS})(?=_))?(?:_(?P<after>{_WHICH}))?(?:_(?P<unit>{_UNITS}))?"
)
_STATISTIC_KEY = re.compile(rf"(?:value|(?P<which>{_WHICH}))(?:_(?P<unit>{_UNITS}))?")
_RATE = re.compile(
    r"(?:(?:avg|average|mean)_)?(?:throughput(?:_(?:avg|mean|fps|ips|qps|items|samples|inferences|images|imgs?|frames)?"
    r"(?:_?per_(?:s|sec|second))?)?|(?:items|samples|inferences|images|imgs?|frames|sentences)_(?:per_)?(?:s|sec|second)"
    r"|fps)"
)
_TYPICAL = "avg|average|mean|median|p50"
_TOKEN_TIME = re.compile(
    rf"(?:(?:{_TYPICAL})_)?(?:(?P<first>ttft|time_to_first_token)|tpot|time_per_output_token)(?:_(?:{_TYPICAL}))?"
    rf"(?:_(?P<unit>{_UNITS}))?"
)
_TOKEN_RATE = re.compile(
    rf"(?:(?:{_TYPICAL}|output|generated|generation|throughput)_)*(?:(?:tokens?|toks?)_(?:per_)?(?:s|sec|second)|tps)"
)
"""Rates of new tokens: those of a prompt or of one phase, such as `prefill_tps`, are others."""
_MEMORY = re.compile(
    rf"(?:(?:peak|max)_)?(?:memory|ram)(?:_(?:usage|used|peak|max|consumption))*_(?P<unit>{'|'.join(_MIB)})"
)
_OF_SPEED = re.compile(r"(?:^|_)(?:time|latency|latencies|throughput|fps)(?:_|$)")
"""Other names of times and rates, of which only a number below zero is surely none."""
_SOUNDS = re.compile(
    r"(?:^|_)(?:time|latency|latencies|throughput|memory|ram|fps|qps|ips|tokens|per_\w+|energy|power)(?:_|$)"
    r"|_(?:ns|us|ms|s|kb|mb|gb)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_WORD = re.compile(r"[^a-z0-9μ]+")
_MISSING = NO_VALUE | {"inf", "infinity", "-inf", "-infinity"}
_OF_TIME = re.compile(r"(?:^|_)(?:time|latency|latencies)(?:_|$)")
_LIKE_TIME = re.compile(r"\s*-?\d[\d.,]*\s*[A-Za-zµμ]{0,12}\s*")
_WITH_UNIT = re.compile(r"\s*(?P<value>[\d.,eE+-]+)\s*(?P<unit>[A-Za-zµμ][A-Za-z/]*)\s*")
_RATE_UNITS = {
    "items/s",
    "samples/s",
    "it/s",
    "fps",
    "inferences/s",
    "images/s",
    "items/sec",
    "samples/sec",
    "infer/sec",
}


def named_figures(content: Mapping[str, Any], *, seconds: bool) -> dict[str, Any]:
    """Return latency statistics, samples, rate and memory by the fields of ResultRecorded, as keys name them.

    Times without a unit are seconds if `seconds`, else milliseconds.
    """
    default = "s" if seconds else "ms"
    found: dict[str, Any] = {}
    for key, value in content.items():
        for field, figure in _figures(_plain(str(key)), value, default):
            if figure is not None:
                found.setdefault(field, figure)
    if found.get("samples_ns"):
        found = {field: value for field, value in found.items() if not field.startswith("latency_")}
    return found


def token_figures(content: Mapping[str, Any]) -> dict[str, float]:
    """Return the times to the first and per output token, and the rate of new tokens, by the fields of ResultRecorded.

    A time without a unit is in milliseconds.
    """
    found: dict[str, float] = {}
    for key, value in content.items():
        meaning = _token_meaning(_plain(str(key)))
        if meaning is None:
            continue
        field, unit = meaning
        figure = quantity(value) if unit is None else time_ms(value, unit or "ms")
        if figure:
            found.setdefault(field, figure)
    return found


def names_token_figure(key: str) -> bool:
    """Return whether `token_figures` may find a figure under a key."""
    return _token_meaning(key.strip().casefold()) is not None


@lru_cache(maxsize=8192)
def _token_meaning(key: str) -> tuple[str, str | None] | None:
    """Return the field of ResultRecorded for a key in lower case, and its time's unit, which a rate has not."""
    if time := _TOKEN_TIME.fullmatch(key):
        return "time_to_first_token_ms" if time["first"] else "time_per_output_token_ms", time["unit"] or ""
    return ("throughput_tokens_per_s", None) if _TOKEN_RATE.fullmatch(key) else None


def unit_in(key: str) -> str | None:
    """Return the unit that the name of a latency or of a time of tokens states, empty without one; None for another."""
    plain = key.strip().casefold()
    meaning = _meaning(plain)
    if meaning is not None and meaning.figure == "latency":
        return meaning.unit
    of_tokens = _token_meaning(plain)
    return of_tokens[1] if of_tokens else None


def names_speed(key: str) -> bool:
    """Return whether a key or column names a latency or a rate."""
    plain = key.strip().casefold()
    return _LATENCY.fullmatch(plain) is not None or _RATE.fullmatch(plain) is not None


def names_figure(key: str) -> bool:
    """Return whether `named_figures` may find a figure under a key."""
    return _meaning(key.strip().casefold()) is not None


@lru_cache(maxsize=8192)
def _plain(key: str) -> str:
    """Return a key in the form of the figures' names: `latencyMs` and `Latency (ms)` are latency_ms."""
    words = _CAMEL.sub("_", key).casefold()
    return _NO_WORD.sub("_", words).strip("_")


def other_figures(content: Mapping[str, Any], *read: str) -> dict[str, Any]:
    """Return values that sound like figures, such as `memory`, but are neither in `named_figures` nor in `read`."""
    return {
        key: value
        for key, value in content.items()
        if key not in read
        and _meaning(_plain(str(key))) is None
        and _SOUNDS.search(_plain(str(key)))
        and (number(value) is not None or (isinstance(value, str) and _WITH_UNIT.fullmatch(value)))
    }


def unread_figures(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in place of figures that are none: a negative time, true, a text, a list of samples with holes.

    Values that say that nothing was measured (null, "N/A", NaN, 0) are not among them.
    """
    return {key: content[key] for key in _speed_keys(tuple(content)) if _is_unread(str(key), content[key])}


@lru_cache(maxsize=1024)
def _speed_keys(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the keys known for a figure, or that sound like one. The rows of a table share their keys."""
    plain = {key: _plain(str(key)) for key in keys}
    return tuple(key for key in keys if _meaning(plain[key]) is not None or _OF_SPEED.search(plain[key]) is not None)


def _is_unread(key: str, value: Any) -> bool:
    figure = number(value)
    if (figure is not None and figure >= 0) or is_missing(value):
        return False
    plain = _plain(key)
    if _meaning(plain) is None:
        return figure is not None or (_OF_TIME.search(plain) is not None and _is_unread_time(value))
    found = [read for _, read in _figures(plain, value, "ms")]
    # An object without a word for a statistic is of a format that has its own.
    return bool(found) and found.count(None) == len(found)


def _is_unread_time(value: Any) -> bool:
    """Return whether a text is written like a time and is none: `12,5`, `-5 ms`; a date is not written so."""
    return isinstance(value, str) and _LIKE_TIME.fullmatch(value) is not None and stated_ms(value, "s") is None


def is_missing(value: Any) -> bool:
    """Return whether a value says that there is none: null, "N/A", NaN, an empty list."""
    if isinstance(value, str):
        return value.strip().casefold() in _MISSING
    if isinstance(value, list):
        return all(map(is_missing, value))
    return value is None or value == {} or (isinstance(value, float) and not math.isfinite(value))


def completed(figures: Mapping[str, Any], content: Mapping[str, Any], *, seconds: bool) -> dict[str, Any]:
    """Complete a reader's figures by others that the content names.

    Statistics are added only where the reader found no latency, each other figure where it is missing.
    """
    if any(value for field, value in figures.items() if field.startswith(("latency_", "samples_ns"))):
        content = {key: value for key, value in content.items() if not _names_latency(str(key))}
    more = named_figures(content, seconds=seconds)
    return {**figures, **{field: value for field, value in more.items() if not figures.get(field)}}


def _names_latency(key: str) -> bool:
    meaning = _meaning(_plain(key))
    return meaning is not None and meaning.figure == "latency"


class _KeyMeaning(NamedTuple):
    """Meaning of a key: a kind of figure, the statistic of a latency, and the unit that the key names."""

    figure: Literal["latency", "rate", "memory"]
    statistic: str = ""
    unit: str = ""


@lru_cache(maxsize=8192)
def _meaning(key: str) -> _KeyMeaning | None:
    """Return the meaning of a key in lower case, None for another one. The rows of a table share their keys."""
    if latency := _LATENCY.fullmatch(key):
        unit = latency["unit_first"] or latency["unit"] or ""
        return _KeyMeaning("latency", _STATISTICS[latency["before"] or latency["after"] or ""], unit)
    if _RATE.fullmatch(key):
        return _KeyMeaning("rate")
    memory = _MEMORY.fullmatch(key)
    return _KeyMeaning("memory", unit=memory["unit"]) if memory else None


def _figures(key: str, value: Any, default: str) -> Iterator[tuple[str, Any]]:
    meaning = _meaning(key)
    if meaning is None:
        return
    if meaning.figure == "latency":
        unit = meaning.unit or default
        if isinstance(value, list):
            yield "samples_ns", samples_ns(value, ns_per_unit=round(_MS[unit] * NS_PER_S / 1000)) or None
        elif isinstance(value, Mapping):
            stated = str(value.get("unit")).casefold()
            unit = stated if stated in _MS else unit
            for name, member in value.items():
                if inner := _STATISTIC_KEY.fullmatch(str(name).casefold()):
                    statistic = _STATISTICS[inner["which"]] if inner["which"] else meaning.statistic
                    yield f"latency_{statistic}_ms", time_ms(member, inner["unit"] or unit)
        else:
            yield f"latency_{meaning.statistic}_ms", time_ms(value, unit)
    elif meaning.figure == "rate":
        if isinstance(value, Mapping):
            yield from (("throughput_items_per_s", _rate(value[n])) for n in ("mean", "avg", "value") if n in value)
        else:
            yield "throughput_items_per_s", _rate(value)
    else:
        yield "memory_peak_mib", _converted(value, _MIB[meaning.unit], _MIB)


def stated_ms(value: Any, unit: str) -> float | None:
    """Return a time in ms from the unit of its key, or of the text if it carries one; None for no time."""
    plain = scaled(value, _MS[unit])
    return plain if plain is not None else time_ms(value, unit)


def time_ms(value: Any, unit: str) -> float | None:
    """Return a time in ms from the unit of its key, or of the text if it carries one; None for 0 and no time."""
    return _converted(value, _MS[unit], _MS)


def _converted(value: Any, factor: float, units: Mapping[str, float]) -> float | None:
    """Convert from the unit of the key, or of the text if it carries one. A zero is no figure."""
    if number(value) is not None:
        return scaled(value, factor) or None
    parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
    own = units.get(parts["unit"].casefold()) if parts else None
    return scaled(parts["value"], own) or None if parts and own is not None else None


def _rate(value: Any) -> float | None:
    if number(value) is not None:
        return quantity(value) or None
    parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
    if parts is None or parts["unit"].casefold() not in _RATE_UNITS:
        return None
    return quantity(parts["value"]) or None


def batch_in(key: str) -> int | None:
    """Return the batch size in a key such as `batch_4_seq_128`, `batch_size_8`, `b4_s128` or `4`."""
    found = re.fullmatch(r"(?:batch|bs|b)?(?:_?size)?_?(?P<size>\d+)(?:_.*)?", key.strip().casefold())
    return count(found["size"], at_least=1) if found else None


def length_in(key: str) -> int | None:
    """Return the sequence length in such a key."""
    found = re.search(r"_(?:seq(?:uence)?(?:_?len(?:gth)?)?|s)_?(?P<length>\d+)(?:_|$)", key.strip().casefold())
    return count(found["length"], at_least=1) if found else None
