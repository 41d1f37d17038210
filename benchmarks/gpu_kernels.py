"""Times of single operators on a GPU, as one table in the shape that the operator predictor learns from.

float32 is timed operator by operator from Python, and 16 bits in CUDA graphs, as the shipped tables are. tf32 and fp8
go into the table too; the predictor does not price them yet.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from accel_platform.backends.pytorch import set_float32_rounding
from accel_platform.hardware.catalog import catalogued_name

PRECISIONS = ("float32", "tf32", "bfloat16", "float16", "float8")
DIMENSIONS = (
    *("b", "m", "n", "k", "h", "kv", "input_channel", "output_channel", "kernel_size", "input_size", "stride"),
    *("padding", "groups", "edges"),
)
"""Dimensions of operators. Convolutions have 1 of `groups` and 2 `edges` (dimensions besides channels) where null."""
_LARGEST = {"cuda": 1.0, "cpu": 0.125}
"""Share of each dimension's range that a stand-in takes, because it is so much slower."""
_COUNT = {"linear": 120, "batched_matmul": 50, "convolution": 70, "attention": 60, "layer_norm": 30, "softmax": 30}
_UNUSUAL = {"one edge": 30, "positions": 12, "groups": 30}
"""Convolutions over time, those of speech models over 128 samples in groups, and those of images in groups."""
_ELEMENTWISE = ("add", "mul", "div", "pow", "gelu", "relu", "tanh")
_BYTES_MOST = 2**31

Shape = dict[str, int]
Call = Callable[[], Any]


def shapes(scale: float, share: float = 1.0) -> Iterator[tuple[str, Shape]]:
    """Yield operators with dimensions, the same ones each time. `scale` shrinks ranges, `share` their number."""
    draw = random.Random(7)  # noqa: S311 - shapes, no secrets

    def upto(low: int, high: int, step: int = 1) -> int:
        top = max(low, int(high * scale))
        return max(low, round(math.exp(draw.uniform(math.log(low), math.log(top))) / step) * step)

    for operator, count in _COUNT.items():
        for _ in range(max(1, round(count * share))):
            if operator == "linear":
                yield operator, {"b": 1, "m": upto(1, 16_384), "n": upto(64, 16_384, 16), "k": upto(64, 16_384, 16)}
            elif operator == "batched_matmul":
                size = {"m": upto(16, 2048, 8), "n": upto(16, 2048, 8), "k": upto(32, 512, 8)}
                yield operator, {"b": upto(1, 512), **size}
            elif operator == "convolution":
                kernel = draw.choice((1, 3, 3, 5, 7))
                channels = {"input_channel": upto(16, 1024, 8), "output_channel": upto(16, 1024, 8)}
                place = {
                    "kernel_size": kernel,
                    "input_size": max(kernel, upto(7, 224)),
                    "stride": draw.choice((1, 1, 2)),
                }
                yield operator, {"b": upto(1, 128), **channels, **place, "padding": kernel // 2}
            elif operator == "attention":
                heads, length = draw.choice((4, 8, 12, 16, 32)), upto(16, 4096, 8)
                widths = {"m": length, "n": length, "k": draw.choice((64, 128))}
                yield operator, {"b": upto(1, 64), "h": heads, "kv": heads, **widths}
            else:
                yield operator, {"b": upto(1, 65_536), "h": upto(64, 16_384, 8)}
    for operator in _ELEMENTWISE:
        for _ in range(max(1, round(12 * share))):
            yield operator, {"b": upto(1, 65_536), "h": upto(64, 16_384, 8)}
    for kind, count in _UNUSUAL.items():
        for _ in range(max(1, round(count * share))):
            yield "convolution", _unusual(kind, upto, draw)


def _unusual(kind: str, upto: Callable[..., int], draw: random.Random) -> Shape:
    """Return a convolution of a kind of `_UNUSUAL`."""
    shape = {"b": upto(1, 64), "groups": 1, "edges": 1, "stride": 1}
    if kind == "one edge":
        into, out = upto(16, 1024, 8), upto(16, 1024, 8)
        shape |= {"kernel_size": draw.choice((2, 3, 3, 10)), "input_size": upto(64, 16_000)}
        shape["stride"] = draw.choice((1, 2, 5))
    elif kind == "positions":
        into = out = 16 * upto(16, 64, 4)
        shape |= {"groups": 16, "kernel_size": 128, "input_size": upto(50, 1500)}
    else:
        groups = draw.choice((2, 4, 8, 32))
        into = out = groups * upto(4, 64, 4)
        shape |= {"groups": groups, "edges": 2, "kernel_size": 3, "input_size": upto(7, 112)}
        shape["stride"] = draw.choice((1, 1, 2))
    return {**shape, "input_channel": into, "output_channel": out, "padding": shape["kernel_size"] // 2}


def operation(operator: str, shape: Shape, precision: str, device: torch.device) -> Call | None:
    """Return the operator on random inputs; None where the precision does not have it, or it would not fit."""
    if precision == "float8":
        return _scaled_product(shape, device) if operator == "linear" else None
    dtype = {"float32": torch.float32, "tf32": torch.float32}.get(precision) or getattr(torch, precision)
    if precision == "tf32" and operator not in ("linear", "batched_matmul", "convolution"):
        return None
    s = shape
    inputs = {"linear": ("mk", "nk"), "batched_matmul": ("bmk", "bkn"), "attention": ("bhmk",) * 3}.get(operator)
    if inputs is not None:
        sizes = [tuple(s[letter] for letter in letters) for letters in inputs]
    elif operator == "convolution":
        channels, edges, groups = s["input_channel"], s.get("edges", 2), s.get("groups", 1)
        weights = (s["output_channel"], channels // groups, *[s["kernel_size"]] * edges)
        sizes = [(s["b"], channels, *[s["input_size"]] * edges), weights]
    else:
        sizes = [(s["b"], s["h"])] * 2
    if sum(map(math.prod, sizes)) * dtype.itemsize > _BYTES_MOST * _LARGEST[device.type]:
        return None
    x, *more = (torch.randn(size, device=device, dtype=dtype) for size in sizes)
    functional = torch.nn.functional
    calls: dict[str, Call] = {
        "linear": lambda: functional.linear(x, more[0]),
        "batched_matmul": lambda: torch.bmm(x, more[0]),
        "convolution": lambda: (functional.conv1d if edges == 1 else functional.conv2d)(
            x, more[0], stride=s["stride"], padding=s["padding"], groups=groups
        ),
        "attention": lambda: functional.scaled_dot_product_attention(x, more[0], more[1]),
        "layer_norm": lambda: functional.layer_norm(x, (s["h"],)),
        "softmax": lambda: torch.softmax(x, -1),
        "pow": lambda: torch.pow(x, more[0]),
        "add": lambda: torch.add(x, more[0]),
        "mul": lambda: torch.mul(x, more[0]),
        "div": lambda: torch.div(x, more[0]),
    }
    return calls.get(operator) or (lambda: getattr(functional if operator != "tanh" else torch, operator)(x))


def _scaled_product(shape: Shape, device: torch.device) -> Call | None:
    if shape["n"] % 16 or shape["k"] % 16:
        return None
    left, right = (torch.randn(shape[a], shape["k"], device=device).to(torch.float8_e4m3fn) for a in ("m", "n"))
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def time_ms(call: Call, device: torch.device, *, in_graph: bool, seconds: float = 0.012) -> float:
    """Return the median time of one call: by device events, in a CUDA graph where asked for; by the clock on a CPU."""
    with torch.inference_mode():
        for _ in range(3):
            call()
        if device.type != "cuda":
            return _by_clock(call, seconds)
        run, calls = call, 1
        if in_graph:
            graph, calls = torch.cuda.CUDAGraph(), 10
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    call()
            run = graph.replay
        return _by_events(run, seconds) / calls


def _by_events(run: Call, seconds: float) -> float:
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def _by_clock(call: Call, seconds: float) -> float:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def sweep(device: torch.device, until: float, *, share: float = 1.0) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Return the rows, why some could not be timed, and whether all were tried before the monotonic time `until`."""
    name = catalogued_name(torch.cuda.get_device_name(device)) if device.type == "cuda" else "cpu (stand-in)"
    rows: list[dict[str, Any]] = []
    problems: dict[str, None] = {}
    for precision in PRECISIONS:
        set_float32_rounding("tf32" if precision == "tf32" else "ieee")
        if precision == "tf32" and device.type != "cuda":
            problems["tf32: a CPU does not have it"] = None
            continue
        for operator, shape in shapes(_LARGEST[device.type], share):
            if time.monotonic() > until:
                return rows, list(problems), False
            try:
                call = operation(operator, shape, precision, device)
                if call is None:
                    continue
                latency = time_ms(call, device, in_graph=precision not in ("float32", "tf32"))
            except RuntimeError as error:
                problems[f"{operator}, {precision}: {' '.join(str(error).split())[:120]}"] = None
                continue
            framework = f"pytorch {torch.__version__}"
            identity = {"device": name, "precision": precision, "operator": operator, "framework": framework}
            rows.append({**identity, **{d: shape.get(d) for d in DIMENSIONS}, "latency_ms": latency})
    return rows, list(problems), True


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as a kernel table."""
    text = [(name, pa.string()) for name in ("device", "precision", "operator", "framework")]
    schema = pa.schema([*text, *((name, pa.int32()) for name in DIMENSIONS), ("latency_ms", pa.float32())])
    pq.write_table(pa.Table.from_pylist(rows, schema), path, compression="zstd")
