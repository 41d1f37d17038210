"""How far the measuring engine's figures can be trusted: against other tools' figures and against its own.

Every ratio is taken side by side: fresh processes in the order A B B A, so that what drifts touches both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accel_platform.analysis.compare import compare, noise_level_of
from accel_platform.bench.contention import moment
from accel_platform.bench.sampling import Sampling, collect, median_ns
from accel_platform.hardware.cpu import cpu_facts, usable_cores
from fidelity_engine import HARDWARE, MODEL, Measured, Prepared, measure, prepare
from fidelity_rivals import benchmark_app, plain_loop, torch_timer

Figure = dict[str, object]
_PLANTED = 1.03
_A_SIDE = 4
"""Processes pooled on each side of an A/A pair."""
_TURNS = (0, 1, 1, 0, 1, 0, 0, 1)
"""Which side of a pair each of eight successive processes belongs to: straight and curved drift cancel."""


@dataclass
class Bench:
    """What the sections share: the prepared model, how much to run, and all that was measured so far."""

    prepared: Prepared
    quick: bool
    seen: list[Measured] = field(default_factory=list)

    def ours(self, hardware: str, threads: int, sampling: Sampling | None = None) -> Measured:
        measured = measure(self.prepared, hardware, threads, sampling or Sampling())
        self.seen.append(measured)
        return measured


@dataclass(frozen=True)
class Beside:
    """One figure of ours beside theirs: the ratio of every round A B B A, and that of the least of each side."""

    rounds: list[float]
    least: float
    """Company only ever slows down, so the least of many processes is what each tool says of a machine left alone."""


def _abba(rounds: int, ours: Callable[[], Sequence[float]], theirs: Callable[[], Sequence[float]]) -> list[Beside]:
    """Every figure that both sides return, measured in `rounds` rounds of A B B A."""
    turns = [(ours(), theirs(), theirs(), ours()) for _ in range(rounds)]
    beside = []
    for figure in range(len(turns[0][0])):
        each = [[answer[figure] for answer in turn] for turn in turns]
        least = min(min(a, a2) for a, _, _, a2 in each) / min(min(b, b2) for _, b, b2, _ in each)
        beside.append(Beside([(a + a2) / (b + b2) for a, b, b2, a2 in each], least))
    return beside


def _ratio_figure(what: str, most: float, beside: Beside) -> Figure:
    got = statistics.median(beside.rounds) - 1
    each = ", ".join(f"{ratio - 1:+.1%}" for ratio in beside.rounds)
    count = len(beside.rounds)
    return {
        "what": what,
        "reach": f"within {most:.0%}",
        "got": f"{got:+.1%}",
        "met": abs(got) <= most,
        "least": f"{beside.least - 1:+.1%}",
        "detail": f"median of {count} rounds A B B A, {2 * count} processes a side; rounds: {each}; "
        f"least of ours to least of theirs {beside.least - 1:+.1%}",
    }


def against_benchmark_app(bench: Bench) -> list[Figure]:
    """One thread on the same ONNX graph."""
    (beside,) = _abba(
        3 if bench.quick else 6,
        lambda: [bench.ours("openvino", 1).p50_ns],
        lambda: [benchmark_app(bench.prepared, 1, 2)],
    )
    return [_ratio_figure("p50 against benchmark_app, 1 thread", 0.03, beside)]


def against_torch(bench: Bench) -> list[Figure]:
    """One thread on the same weights."""
    (beside,) = _abba(
        3 if bench.quick else 6,
        lambda: [bench.ours("cpu", 1).p50_ns],
        lambda: [torch_timer(bench.prepared, 1, 1.5)],
    )
    return [_ratio_figure("p50 against torch.utils.benchmark, 1 thread", 0.03, beside)]


def against_one_process(bench: Bench) -> list[Figure]:
    """As many threads as cores: a parent that spins would show here."""
    cores = usable_cores()
    # A 99th percentile needs 662 samples; they are asked for by count, and the loop gets the same time.
    sampling = Sampling(min_time_s=4.0, min_count=662, target_error=0.05, max_time_s=8.0)
    p50, p99 = _abba(
        3 if bench.quick else 6,
        lambda: _p50_p99(bench.ours("cpu", cores, sampling).samples_ns),
        lambda: _p50_p99(plain_loop(bench.prepared, cores, 5.0)),
    )
    return [
        _ratio_figure(f"p50 against a loop in one process, {cores} threads on {cores} cores", 0.03, p50),
        _ratio_figure(f"p99 against a loop in one process, {cores} threads on {cores} cores", 0.25, p99),
    ]


def _p50_p99(samples_ns: Sequence[int]) -> list[float]:
    return [median_ns(samples_ns), float(sorted(samples_ns)[int(len(samples_ns) * 0.99)])]


def harness_cost(_: Bench) -> list[Figure]:
    """All that the sampling loop does around one run of a model that does nothing."""
    costs = []
    for _pass in range(5):
        start = time.perf_counter_ns()
        samples = collect(lambda: None, Sampling(min_time_s=0.5, target_error=0.5))
        costs.append((time.perf_counter_ns() - start) / (len(samples.samples_ns) + samples.warmup_count) / 1e3)
    got = statistics.median(costs)
    detail = f"{len(samples.samples_ns):,} iterations a pass, 5 passes: {min(costs):.2f} to {max(costs):.2f} µs"
    return [{"what": "harness cost per iteration, no-op model", "reach": "<= 20 µs", "got": f"{got:.2f} µs",
             "met": got <= 20, "detail": detail}]  # fmt: skip


def spread(bench: Bench) -> list[Figure]:
    """p50 over 10 processes with one thread, of the results that do not call themselves noisy."""
    figures: list[Figure] = []
    for hardware in HARDWARE:
        measured = [bench.ours(hardware, 1) for _ in range(10)]
        calm = [m.p50_ns for m in measured if m.noisy is None]
        every = _cv([m.p50_ns for m in measured])
        got = _cv(calm) if len(calm) >= 2 else None
        reasons = sorted({m.noisy.split(":")[0] for m in measured if m.noisy})
        figures.append(
            {
                "what": f"CV of p50 over 10 processes, {hardware}, 1 thread",
                "reach": "<= 2 %, or noisy",
                "got": "all noisy" if got is None else f"{got:.1%}",
                # With every result called noisy none claims anything, but nothing was shown either.
                "met": None if got is None else got <= 0.02,
                "detail": f"{len(calm)} of 10 calm, CV of all ten {every:.1%}" + "".join(f"; {r}" for r in reasons),
            }
        )
    return figures


def _cv(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.mean(values)


def pairs(bench: Bench) -> list[Figure]:
    """A/A pairs of real processes, and the same pairs with every sample of one side made 3 % longer.

    A pair is a window of eight successive processes, four a side; the windows overlap. The noise level comes from
    processes measured before the first window.
    """
    count = 40 if bench.quick else 200
    sampling = Sampling(min_time_s=0.3, max_time_s=1.0)
    history = [bench.ours("onnxruntime", 1, sampling) for _ in range(24)]
    level = noise_level_of([m.p50_ns for m in history if m.noisy is None] or [m.p50_ns for m in history],
                           processes=_A_SIDE)  # fmt: skip
    run = [bench.ours("onnxruntime", 1, sampling) for _ in range(count + len(_TURNS) - 1)]
    false = found = 0
    for first in range(count):
        sides: tuple[list[int], list[int]] = ([], [])
        for side, measured in zip(_TURNS, run[first:], strict=False):
            sides[side].extend(measured.samples_ns)
        false += compare(*sides, noise_level=level).different
        found += compare(sides[0], [round(x * _PLANTED) for x in sides[1]], noise_level=level).verdict == "slower"
    noisy = sum(m.noisy is not None for m in run)
    detail = f"onnxruntime, {len(_TURNS)} processes a pair, noise level {level:.1%}, {noisy} of {len(run)} noisy"
    return [
        {"what": f"{count} A/A pairs called different", "reach": "<= 5 %", "got": f"{false / count:.1%}",
         "met": false / count <= 0.05, "detail": detail},
        {"what": f"3 % slowdown planted in {count} pairs found", "reach": ">= 95 %", "got": f"{found / count:.1%}",
         "met": found / count >= 0.95, "detail": detail},
    ]  # fmt: skip


def parent_and_memory(bench: Bench) -> list[Figure]:
    """Of all children measured: what the parent took meanwhile, and whether their peak memory is the kernel's."""
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


def _others_share(section: Callable[[], list[Figure]]) -> tuple[list[Figure], float]:
    """What the section found, and the share of the machine that neither we nor our children used meanwhile."""
    before, own = moment(), sum(os.times()[:4])
    figures = section()
    after = moment()
    others = after.machine_s - before.machine_s - (sum(os.times()[:4]) - own)
    return figures, max(0.0, others) / ((after.wall_s - before.wall_s) * after.cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pairs")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one section; may be given again")
    parser.add_argument("--home", type=Path, help="keep the prepared model here instead of in a temporary folder")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(prepare(arguments.home or Path(folder), usable_cores()), arguments.quick)
        for name in arguments.only or SECTIONS:
            found, others = _others_share(lambda name=name: SECTIONS[name](bench))  # type: ignore[misc]
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
