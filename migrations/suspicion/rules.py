"""Reasons to doubt imported figures: pure rules over the results of one document and what it claims about itself.

A rule never changes a figure. It marks rows with its name, evidence, a verdict (`simulated`: somebody made it up;
`suspect`: evidence contradicts it) and a confidence in that verdict; `judge` sets the provenance from the marks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from accel_platform.events.types import ResultRecorded, Suspicion
from migrations.normalize.records import Record
from migrations.normalize.units import count, quantity
from migrations.suspicion.claims import Claims
from migrations.suspicion.statistics import (
    apart,
    as_text,
    equal_figures,
    has_other_figure,
    latency_ms,
    median_ms,
    ratio,
    spread,
    stated,
    with_figures,
)

CONTRADICTION = 1.25
"""Throughput may differ from batch / latency by this factor: runners that divide by the total time include pauses
between passes (within 1.1 in the real archive)."""
AGREEMENT = 1.10
"""Medians of two hardware on one host closer than this are as alike as two runs on one CPU; OpenVINO and ONNX Runtime
proper are about twice as fast as PyTorch on the same cores."""
AGREEING_SHARE = 0.75
CHANCE = 0.1
LOOSE_AGREEMENT = 1.3
MANY_PAIRS = 6
"""So many cells of another processor whose median ratio is 1 and of which most lie within 30 % are the CPU's as well:
no accelerator keeps the CPU's time from the smallest batch to the largest, while a shared host is as noisy as that."""
CPU_RUNTIMES = ("openvino", "onnxruntime")
"""They run on the host's CPU, so one likeness is no proof: at least three cells must agree."""

_STAND_IN = re.compile(r"^/tmp/|_test_model|::?simple_model")

Verdict = Literal["simulated", "suspect"]
Mark = tuple[int, Suspicion]
Rule = Callable[[Sequence[Record], Claims], Iterator[Mark]]


def suspicions_of(records: Sequence[Record], claims: Claims) -> list[Record]:
    """The records with every suspicion attached and the provenance it leads to; `simulated` outweighs `suspect`."""
    marks: dict[int, list[Suspicion]] = defaultdict(list)
    for rule in RULES:
        for index, suspicion in rule(records, claims):
            marks[index].append(suspicion)
    judged = list(records)
    for index, found in marks.items():
        simulated = any(s.verdict == "simulated" for s in found)
        found.sort(key=lambda s: (s.rule, s.evidence))
        update = {"provenance": "simulated" if simulated else "suspect", "suspicions": tuple(found)}
        result = records[index].result.model_copy(update=update)
        judged[index] = replace(records[index], result=result)
    return judged


def simulation_label(records: Sequence[Record], claims: Claims) -> Iterator[Mark]:
    """The document says in so many words that a figure is mocked or simulated.

    A label speaks for the results in the object it stands in; where there are none (`platform_support.simulated`), for
    those in the closest object around it. One that names a hardware speaks for that hardware alone.
    """
    present = {record.result.hardware for record in records}
    for label in claims.labels:
        scope = label.scope
        of = {label.hardware} & present or present
        while not (
            inside := [i for i, r in enumerate(records) if _within(r.pointer, scope) and r.result.hardware in of]
        ):
            if not scope:
                break
            scope = scope.rpartition("/")[0]
        yield from _mark(inside, "simulation_label", "simulated", label.evidence, 0.95 if label.is_flag else 0.8)


def blanket_label(records: Sequence[Record], claims: Claims) -> Iterator[Mark]:
    """A list at the end of the file declares whole hardware simulated: evidence, not proof, for it is often put there
    later and on files whose CPU figures are real."""
    if claims.blanket is None:
        return
    for index in with_figures(records):
        hardware = records[index].result.hardware
        if hardware in claims.blanket.hardware:
            when = f", verified {claims.blanket.verified}" if claims.blanket.verified else ""
            evidence = f"the file lists {hardware} as simulated hardware{when}"
            yield from _mark([index], "blanket_label", "suspect", evidence, 0.5)


def constant_over_models(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """Unlike models with exactly the same stated figures on one hardware and shape: constants, not clocks.

    They must be a tenth of the models there, for among a thousand some share their figures by chance.
    """
    models_on = defaultdict(set)
    for index in with_figures(records):
        models_on[records[index].result.hardware].add(records[index].result.model_id)
    for group in equal_figures(records, lambda r: (r.hardware, r.batch_size, r.sequence_length)):
        first = records[group[0]].result
        models = {records[i].result.model_id for i in group}
        if len(models) > 1 and len(models) >= CHANCE * len(models_on[first.hardware]):
            evidence = f"{as_text(first)} for {_listed(models)}"
            yield from _mark(group, "constant_over_models", "simulated", evidence, 0.7 if len(models) == 2 else 0.9)


def constant_over_batches(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """One model on one hardware with exactly the same latency whatever the batch size."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in with_figures(records):
        r = records[index].result
        if (latency := latency_ms(r)) is not None and r.batch_size is not None:
            groups[r.model_id, r.hardware, r.precision, r.sequence_length, latency].append(index)
    for group in groups.values():
        batches = {records[i].result.batch_size for i in group}
        if len(batches) > 1:
            evidence = f"latency {latency_ms(records[group[0]].result):g} ms at batch sizes {_listed(batches)}"
            yield from _mark(group, "constant_over_batches", "suspect", evidence, 0.8)


def identical_across_hardware(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """One model and shape with exactly the same figures on several hardware: copied or invented."""
    for group in equal_figures(records, lambda r: (r.model_id, r.batch_size, r.sequence_length, r.precision)):
        hardware = {records[i].result.hardware for i in group}
        if len(hardware) > 1:
            evidence = f"{as_text(records[group[0]].result)} on {_listed(hardware)}"
            yield from _mark(group, "identical_across_hardware", "simulated", evidence, 0.95)


def round_figures(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """Latency, throughput and memory of every cell are whole numbers, and no sample stands behind them."""
    known = with_figures(records)
    figures = [stated(records[i].result) for i in known]
    if not figures or sum(len(f) for f in figures) < 6:
        return
    if all(len(f) == 3 and all(v == int(v) for v in f.values()) for f in figures):
        for index in known:
            evidence = f"{as_text(records[index].result)}: no clock gives only whole numbers"
            yield from _mark([index], "round_figures", "suspect", evidence, 0.85)


def throughput_contradiction(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """Throughput is neither batch / latency nor near it, times the batches in flight where the file says how many.

    Where requests come at a rate of their own, nothing follows from the latency.
    """
    for index in with_figures(records):
        r = records[index].result
        latency, throughput = latency_ms(r), r.throughput_items_per_s
        in_flight = count(r.original.get("concurrency", 1), at_least=1)
        if not latency or not throughput or r.batch_size is None or in_flight is None or "request_rate" in r.original:
            continue
        expected = r.batch_size * in_flight * 1000 / latency
        if apart(throughput / expected) > CONTRADICTION:
            claimed = f"the file says {throughput:.4g}"
            batches = f"batch {r.batch_size}" if in_flight == 1 else f"{in_flight} x batch {r.batch_size}"
            evidence = f"{batches} in {latency:.4g} ms is {expected:.4g} items/s, {claimed}"
            yield from _mark([index], "throughput_contradiction", "suspect", evidence, 0.9)


def total_time_contradiction(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """The total time over the number of iterations is not near the latency."""
    for index in with_figures(records):
        r = records[index].result
        statements = r.original.get("stated")
        total_s = quantity(statements.get("total_time_seconds")) if isinstance(statements, dict) else None
        latency = latency_ms(r)
        if not total_s or not r.iterations or not latency:
            continue
        each_ms = total_s * 1000 / r.iterations
        if apart(each_ms / latency) > CONTRADICTION:
            evidence = f"{r.iterations} iterations in {total_s:.4g} s are {each_ms:.4g} ms each, not {latency:.4g} ms"
            yield from _mark([index], "total_time_contradiction", "suspect", evidence, 0.85)


def round_time(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """A lone time in seconds of one or two digits under a key such as `elapsed_time`, where the old scripts wrote what
    the clock gave: 0.05 was typed, not measured. Other tools round, so their keys are not looked at."""
    for index in with_figures(records):
        r = records[index].result
        units, latency = r.original.get("units"), r.latency_mean_ms
        clocked = isinstance(units, dict) and any(u == "s" and str(key).endswith("_time") for key, u in units.items())
        lone = not r.samples_ns and r.throughput_items_per_s is None
        if clocked and lone and latency and _significant_digits(latency) <= 2:
            yield from _mark([index], "round_time", "suspect", f"exactly {latency / 1000:g} s", 0.7)


def stand_in_model(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """The model was a small local stand-in made for a test, so its speed is not that of the model it is named after."""
    for index in with_figures(records):
        name = records[index].result.original.get("model")
        if isinstance(name, str) and _STAND_IN.search(name):
            yield from _mark([index], "stand_in_model", "suspect", f"the model is {name!r}", 0.8)


def derived_figure(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """Computed by the file's writer from other results: a claim about them, and no measurement of its own."""
    for index, record in enumerate(records):
        if derived := record.result.original.get("derived_claim"):
            yield from _mark([index], "derived_figure", "suspect", f"the file's figure is {derived}", 1.0)


def success_without_figures(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """Said to have succeeded, with no latency, no rate, and no memory of the device."""
    for index, record in enumerate(records):
        r = record.result
        if r.status == "ok" and not r.throughput_items_per_s and not latency_ms(r) and not has_other_figure(r):
            yield from _mark([index], "success_without_figures", "suspect", "success, and no figure of it", 1.0)


def absent_device(records: Sequence[Record], claims: Claims) -> Iterator[Mark]:
    """Figures for hardware that the same file says its host did not have."""
    for index in with_figures(records):
        hardware = records[index].result.hardware
        if claims.host_has.get(hardware) is False:
            evidence = f"the file says its host had no {hardware}"
            yield from _mark([index], "absent_device", "suspect", evidence, 0.9)


def relabelled_cpu(records: Sequence[Record], _claims: Claims) -> Iterator[Mark]:
    """The CPU's figures under another name: paired cells of one file whose medians agree within noise.

    All cells of a hardware fall with the verdict, paired or not. The CPU's own cells are not touched.
    """
    cells: dict[str, dict[Hashable, ResultRecorded]] = defaultdict(dict)
    for index in with_figures(records):
        r = records[index].result
        if median_ms(r):
            host = records[index].host_id
            cells[r.hardware][host, r.model_id, r.mode, r.batch_size, r.sequence_length, r.precision] = r
    cpu = cells.pop("cpu", {})
    for hardware, own in cells.items():
        pairs = [(result, cpu[key]) for key, result in own.items() if key in cpu]
        if len(pairs) < (3 if hardware in CPU_RUNTIMES else 1):
            continue
        at_least = LOOSE_AGREEMENT if hardware not in CPU_RUNTIMES and len(pairs) >= MANY_PAIRS else AGREEMENT
        ratios = [ratio(a, b) for a, b in pairs]
        agreeing = sum(_alike(how, a, b, at_least) for how, (a, b) in zip(ratios, pairs, strict=True))
        middle = median(ratios)
        if apart(middle) <= AGREEMENT and agreeing >= AGREEING_SHARE * len(pairs):
            evidence = f"{len(pairs)} cells beside the CPU's, median ratio {middle:.3f}, {agreeing} within noise"
            every = [i for i in with_figures(records) if records[i].result.hardware == hardware]
            yield from _mark(every, "relabelled_cpu", "suspect", evidence, 0.6 if len(pairs) < 3 else 0.95)


RULES: tuple[Rule, ...] = (
    simulation_label,
    blanket_label,
    constant_over_models,
    constant_over_batches,
    identical_across_hardware,
    round_figures,
    throughput_contradiction,
    total_time_contradiction,
    round_time,
    stand_in_model,
    derived_figure,
    success_without_figures,
    absent_device,
    relabelled_cpu,
)


def _alike(ratio_: float, a: ResultRecorded, b: ResultRecorded, at_least: float) -> bool:
    """Within this factor, or within what the spread of the samples explains (up to 30 %)."""
    return apart(ratio_) <= at_least or apart(ratio_) <= 1 + min(0.3, 2 * max(spread(a), spread(b)))


def _significant_digits(value: float) -> int:
    """How many digits a number takes to write, without leading and trailing zeros."""
    digits = f"{value:.15e}".partition("e")[0].replace(".", "").rstrip("0")
    return max(1, len(digits))


def _within(pointer: str, scope: str) -> bool:
    """Whether the pointer is the scope, lies inside it, or the scope lies inside the result at the pointer."""
    return pointer == scope or pointer.startswith(f"{scope}/") or (pointer != "" and scope.startswith(f"{pointer}/"))


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(value) for value in values))


def _mark(indexes: Iterable[int], rule: str, verdict: Verdict, evidence: str, confidence: float) -> Iterator[Mark]:
    suspicion = Suspicion(rule=rule, verdict=verdict, evidence=evidence, confidence=confidence)
    return ((index, suspicion) for index in indexes)
