"""Fidelity of the measuring engine: its figures against those of other tools and against its own.

Both sides of a ratio run in fresh processes in the order A B B A, so that drift affects both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accel_platform.analysis.stats.medians import disagreement_reason, median_ns
from accel_platform.analysis.stats.significance import (
    compare,
    estimate_comparison_noise,
    estimate_noise_level,
    processes_needed,
)
from accel_platform.bench.measure.contention import measure_contention, read_load_counters
from accel_platform.bench.measure.sampling import Sampling, collect_samples
from accel_platform.hardware.cpu import cpu_facts, usable_cores
from fidelity_engine import HARDWARE, MODEL, Measured, Prepared, measure, prepare
from fidelity_rivals import benchmark_app, plain_loop, torch_timer
from fidelity_rounds import Figure, abba, ratio_figure

_PLANTED = 1.03
_A_SIDE_MOST = 24
_FOUR_TURNS = (0, 1, 1, 0)
"""Side of the pair that each of four successive processes belongs to, in an order in which linear drift cancels."""


@dataclass
class Bench:
    """State that the sections share: the prepared model, how much to run, and all that was measured so far."""

    prepared: Prepared
    quick: bool
    most_s: float
    """Seconds after which a section begins no further round or process, and reports what it has."""
    seen: list[Measured] = field(default_factory=list)
    ends_at: float = 0.0

    def ours(self, hardware: str, threads: int, sampling: Sampling | None = None) -> Measured:
        measured = measure(self.prepared, hardware, threads, sampling or Sampling())
        self.seen.append(measured)
        return measured

    def several(self, count: int, hardware: str, sampling: Sampling | None = None) -> list[Measured]:
        """Measure as many processes with one thread as asked for, or as there is time for."""
        found: list[Measured] = []
        while len(found) < count and time.monotonic() < self.ends_at:
            found.append(self.ours(hardware, 1, sampling))
        return found


def against_benchmark_app(bench: Bench) -> list[Figure]:
    """Compare with OpenVINO's benchmark_app on the same ONNX graph, with one thread."""
    (rounds,) = abba(
        3 if bench.quick else 6,
        bench.ends_at,
        lambda: [bench.ours("openvino", 1).p50_ns],
        lambda: [benchmark_app(bench.prepared, 1, 2)],
    )
    return [ratio_figure("p50 against benchmark_app, 1 thread", 0.03, rounds)]


def against_torch(bench: Bench) -> list[Figure]:
    """Compare with torch's own timer on the same weights, with one thread."""
    (rounds,) = abba(
        3 if bench.quick else 6,
        bench.ends_at,
        lambda: [bench.ours("cpu", 1).p50_ns],
        lambda: [torch_timer(bench.prepared, 1, 1.5)],
    )
    return [ratio_figure("p50 against torch.utils.benchmark, 1 thread", 0.03, rounds)]


def against_one_process(bench: Bench) -> list[Figure]:
    """Compare with a loop in one process, with as many threads as cores: a parent that spins would show here."""
    cores = usable_cores()
    # A 99th percentile needs 662 samples; they are asked for by count, and the loop gets the same time.
    sampling = Sampling(min_time_s=4.0, min_count=662, target_error=0.05, max_time_s=8.0)
    p50, p99 = abba(
        3 if bench.quick else 6,
        bench.ends_at,
        lambda: _p50_p99(bench.ours("cpu", cores, sampling).samples_ns),
        lambda: _p50_p99(plain_loop(bench.prepared, cores, 5.0)),
    )
    return [
        ratio_figure(f"p50 against a loop in one process, {cores} threads on {cores} cores", 0.03, p50),
        ratio_figure(f"p99 against a loop in one process, {cores} threads on {cores} cores", 0.25, p99),
    ]


def _p50_p99(samples_ns: Sequence[int]) -> list[float]:
    return [median_ns(samples_ns), float(sorted(samples_ns)[int(len(samples_ns) * 0.99)])]


def harness_cost(_: Bench) -> list[Figure]:
    """Measure all that the sampling loop does around one run of a model that does nothing."""
    costs = []
    for _pass in range(5):
        start = time.perf_counter_ns()
        samples = collect_samples(lambda: None, Sampling(min_time_s=0.5, target_error=0.5))
        costs.append((time.perf_counter_ns() - start) / (len(samples.samples_ns) + samples.warmup_count) / 1e3)
    got = statistics.median(costs)
    detail = f"{len(samples.samples_ns):,} iterations a pass, 5 passes: {min(costs):.2f} to {max(costs):.2f} µs"
    return [{"what": "harness cost per iteration, no-op model", "reach": "<= 20 µs", "got": f"{got:.2f} µs",
             "met": got <= 20, "detail": detail}]  # fmt: skip


def spread(bench: Bench) -> list[Figure]:
    """Return the spread of p50 over 10 processes with one thread, of results that do not call themselves noisy."""
    figures: list[Figure] = []
    for hardware in HARDWARE:
        bench.ends_at = time.monotonic() + bench.most_s / len(HARDWARE)
        measured = bench.several(10, hardware)
        medians = [m.p50_ns for m in measured]
        # Doubts that a result states about itself, given the log's earlier results of its cell.
        words = [m.noisy or disagreement_reason(medians[: number + 1]) for number, m in enumerate(measured)]
        calm = [median for median, word in zip(medians, words, strict=True) if word is None]
        every = _cv(medians)
        got = _cv(calm)
        reasons = Counter(re.sub(r"[\d.]+%?", "…", word) for word in words if word)
        figures.append(
            {
                "what": f"CV of p50 over 10 processes, {hardware}, 1 thread",
                "reach": "<= 2 %, or noisy",
                "got": _percent(got),
                # With all but one called noisy none claims anything, but nothing was shown either.
                "met": None if got is None else got <= 0.02,
                "detail": f"{len(calm)} of {len(measured)} calm, CV of all {_percent(every)}"
                + "".join(f"; {count} because {reason}" for reason, count in reasons.most_common()),
            }
        )
    return figures


def _cv(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / statistics.mean(values) if len(values) >= 2 else None


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def pairs(bench: Bench) -> list[Figure]:
    """Compare A/A pairs of real processes, and the same pairs with every sample of one side made 3 % longer.

    A pair is a window of successive processes that take turns; the windows overlap. Processes measured before the
    first window give the number a side and the noise level. Processes that are noisy by their own samples are left out
    unless too few remain; the detail has the figures with them too.
    """
    sampling = Sampling(min_time_s=0.3, max_time_s=1.0)
    history = bench.several(24, "onnxruntime", sampling)
    run = bench.several(80 if bench.quick else 224, "onnxruntime", sampling)
    every = _told_apart(history, run)
    calm = _told_apart([m for m in history if m.noisy is None], [m for m in run if m.noisy is None])
    used = calm if calm is not None and calm.pairs >= 20 else every
    if every is None or used is None:
        return [{"what": "A/A pairs called different", "reach": "<= 5 %", "got": "unknown", "met": None,
                 "detail": f"only {len(history) + len(run)} processes in {bench.most_s:g} s"}]  # fmt: skip
    which = "calm ones" if used is calm else "noisy ones among them"
    detail = (
        f"onnxruntime, {used.a_side} processes a side, {which}, noise level {used.level:.1%}; "
        f"with all {len(run)} processes: {every.pairs} pairs, {every.a_side} a side, {every.false:.1%} called "
        f"different, {every.found:.1%} found, noise level {every.level:.1%}"
    )
    return [
        {"what": f"{used.pairs} A/A pairs called different", "reach": "<= 5 %", "got": f"{used.false:.1%}",
         "met": used.false <= 0.05, "detail": detail},
        {"what": f"3 % slowdown planted in {used.pairs} pairs found", "reach": ">= 95 %", "got": f"{used.found:.1%}",
         "met": used.found >= 0.95, "detail": detail},
    ]  # fmt: skip


@dataclass(frozen=True)
class ToldApart:
    """Number of pairs, and shares of them called different: `false` without a difference, `found` with one planted."""

    pairs: int
    a_side: int
    level: float
    false: float
    found: float


def _told_apart(history: Sequence[Measured], run: Sequence[Measured]) -> ToldApart | None:
    """Compare successive pairs; None where there are too few processes for a noise level or for one pair."""
    if len(history) < 5:
        return None
    before = [m.p50_ns for m in history]
    # An even number, so that turns come out whole.
    a_side = min(_A_SIDE_MOST, 2 * math.ceil(processes_needed(before, effect=_PLANTED - 1) / 2))
    count = len(run) - 2 * a_side + 1
    if count < 1:
        return None
    known = estimate_noise_level(before, processes=a_side)
    false = found = 0
    levels = []
    for first in range(count):
        samples: tuple[list[int], list[int]] = ([], [])
        medians: tuple[list[float], list[float]] = ([], [])
        for side, measured in zip(_FOUR_TURNS * (a_side // 2), run[first:], strict=False):
            samples[side].extend(measured.samples_ns)
            medians[side].append(measured.p50_ns)
        level = max(known, estimate_comparison_noise(*medians, in_turns=True))
        levels.append(level)
        false += compare(*samples, noise_level=level).different
        slower = [round(x * _PLANTED) for x in samples[1]]
        found += compare(samples[0], slower, noise_level=level).verdict == "slower"
    return ToldApart(count, a_side, statistics.median(levels), false / count, found / count)


def parent_and_memory(bench: Bench) -> list[Figure]:
    """Return the parent's processor time over all measured children, and the error of their peak memory."""
    share = max(m.parent_cpu_share for m in bench.seen)
    errors = [m.memory_peak_mib / m.kernel_peak_mib - 1 for m in bench.seen if m.kernel_peak_mib]
    worst = max(errors, key=abs)
    return [
        {"what": "CPU time of the parent while a child measures", "reach": "< 1 % of a core", "got": f"{share:.3%}",
         "met": share < 0.01, "detail": f"largest of {len(bench.seen)} children"},
        {"what": "reported peak memory against VmHWM", "reach": "within 2 %", "got": f"{worst:+.2%}",
         "met": abs(worst) <= 0.02, "detail": f"worst of {len(errors)} children, read by the parent from /proc"},
    ]  # fmt: skip


SECTIONS: dict[str, Callable[[Bench], list[Figure]]] = {
    "benchmark-app": against_benchmark_app,
    "torch": against_torch,
    "one-process": against_one_process,
    "harness": harness_cost,
    "spread": spread,
    "pairs": pairs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pairs")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one section; may be given again")
    parser.add_argument("--seconds", type=float, default=150, help="the most that a section may take")
    parser.add_argument("--home", type=Path, help="keep the prepared model here instead of in a temporary folder")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(arguments.home or Path(folder), usable_cores())
        bench = Bench(prepared, arguments.quick, arguments.seconds)
        for name in arguments.only or SECTIONS:
            before = read_load_counters()
            bench.ends_at = time.monotonic() + bench.most_s
            found = SECTIONS[name](bench)
            others = measure_contention(before, read_load_counters()).others_share
            figures += [{**figure, "others_share": round(others, 3)} for figure in found]
        if bench.seen:
            figures += parent_and_memory(bench)
    if arguments.json:
        facts = cpu_facts()
        machine = {"processor": facts["name"], "cores": usable_cores(), "model": MODEL}
        print(json.dumps({"machine": machine, "figures": figures}, indent=2, ensure_ascii=False))
        return
    for figure in figures:
        word = {True: "met", False: "MISSED", None: "not shown"}[figure["met"]]  # type: ignore[index]
        busy = f"; others used {figure['others_share']:.0%} of the machine" if "others_share" in figure else ""
        print(f"{figure['what']}: {figure['got']} (reach {figure['reach']}, {word}; {figure['detail']}{busy})")


if __name__ == "__main__":
    main()
