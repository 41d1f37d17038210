"""Suspicion rules over the results of one document and its claims about itself.

A rule never changes a figure. It marks results with its name, evidence, a verdict (`simulated`: invented; `suspect`:
contradicted) and a confidence. `apply_rules` sets the provenance from the marks.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Literal

from accel_platform.events import Event
from accel_platform.events.types import ResultRecorded, Suspicion
from accel_platform.table_io.values import count_of
from migrations.normalize.records import Record, pointer_to
from migrations.normalize.units import count, quantity
from migrations.suspicion.claims import Claims, labels_in
from migrations.suspicion.statistics import (
    RecordSet,
    describe_figures,
    has_latency,
    has_other_figure,
    latency_ms,
    median_ms,
    rank_correlation,
    relative_standard_error,
    stated_figures,
    symmetric_ratio,
    time_ms,
)

CONTRADICTION_RATIO = 1.25
"""Throughput may differ from batch / latency by this factor: runners that divide by the total time include pauses
between passes (within 1.1 in the real archive)."""
CLOCK_TICK_MS = 1e-7
"""A tick of a clock of 10 GHz, which no processor has."""
MEAN_ROUNDING = 1.05
"""Factor by which rounding may lower a mean, or raise a median."""
AGREEMENT_RATIO = 1.10
"""Medians of two hardware on one host closer than this are as alike as two runs on one CPU; OpenVINO and ONNX Runtime
proper are about twice as fast as PyTorch on the same cores."""
MIN_AGREEING_SHARE = 0.75
MIN_MODEL_SHARE = 0.1
LOOSE_AGREEMENT_RATIO = 1.3
"""`AGREEMENT_RATIO` for many cells, and for cells whose samples scatter that much."""
MIN_LOOSE_PAIRS = 6
"""Fewest cells of another processor that are the CPU's as well if their median ratio is 1 and most lie within 30 %.

No accelerator keeps the CPU's time from the smallest batch to the largest, while a shared host is as noisy as that.
"""
MIN_RANKING_PLACES = 5
MIN_RANKED_CELLS = 10
"""Devices and runtimes of a document that tell which cells take long, and cells that one of them must share with them.
Of 353 such places in the published tables one has a negative rank correlation, -0.56; the next lowest is 0.20."""
MIN_COPIED_CELLS = 10
"""Cells with equal figures that two devices need before one table is taken to have two names; chosen."""
MIN_COPIED_SHARE = 0.9
"""Share of such cells among those that two devices share; chosen."""
CPU_RUNTIMES = ("openvino", "onnxruntime")
"""Runtimes on the host's CPU. One equal cell is no proof of a relabelled CPU there: at least three must agree."""

_STAND_IN = re.compile(r"^/tmp/|_test_model|::?simple_model")

Verdict = Literal["simulated", "suspect"]
Mark = tuple[int, Suspicion]
DocumentRule = Callable[[RecordSet, Claims], Iterator[Mark]]
ResultRule = Callable[[Record, Claims], Suspicion | None]


def apply_rules(records: Sequence[Record], claims: Claims) -> list[Record]:
    """Return the records with all suspicions and the resulting provenance; `simulated` outweighs `suspect`."""
    marks: dict[int, list[Suspicion]] = defaultdict(list)
    judged = RecordSet(records)
    for compare in DOCUMENT_RULES:
        for index, suspicion in compare(judged, claims):
            marks[index].append(suspicion)
    for indexes, rules in ((judged.with_figures, FIGURE_RULES), (range(len(judged)), RESULT_RULES)):
        for index in indexes:
            record = judged[index]
            for rule in rules:
                if (doubt := rule(record, claims)) is not None:
                    marks[index].append(doubt)
    marked = list(records)
    for index, found in marks.items():
        simulated = any(s.verdict == "simulated" for s in found)
        found.sort(key=lambda s: (s.rule, s.evidence))
        update = {"provenance": "simulated" if simulated else "suspect", "suspicions": tuple(found)}
        result = records[index].result.model_copy(update=update)
        marked[index] = replace(records[index], result=result)
    return marked


def mark_suspicious(events: Sequence[Event]) -> list[Event]:
    """Return events that arrive without a document, with the suspicions that one of their results would get.

    Events other than results are returned unchanged.
    """
    places = [index for index, event in enumerate(events) if isinstance(event.payload, ResultRecorded)]
    records, own_words = [], []
    for row, index in enumerate(places):
        event = events[index]
        assert isinstance(event.payload, ResultRecorded)
        records.append(Record(event.payload, pointer_to(row), event.occurred_at, event.host_id))
        own_words.append({"environment": event.payload.environment, "original": event.payload.original})
    marked = list(events)
    for index, record in zip(places, apply_rules(records, labels_in(own_words)), strict=True):
        marked[index] = events[index].model_copy(update={"payload": record.result})
    return marked


def simulation_label(records: RecordSet, claims: Claims) -> Iterator[Mark]:
    """Mark results that the document itself calls mocked or simulated.

    A label covers the results in its object, or (`platform_support.simulated`) in the closest object with any. One that
    names a hardware covers that hardware alone.
    """
    present = {record.result.hardware for record in records} if claims.labels else set()
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


def constant_over_models(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark different models with exactly equal stated figures on one hardware and shape.

    They must be a tenth of the models there, because among a thousand some agree by chance.
    """
    models_on = defaultdict(set)
    for index in records.with_figures if records.repeated else ():
        models_on[records[index].result.hardware].add(records[index].result.model_id)
    for group in records.equal_figures(lambda r: (r.hardware, r.batch_size, r.sequence_length)):
        first = records[group[0]].result
        models = {records[i].result.model_id for i in group}
        if len(models) > 1 and len(models) >= MIN_MODEL_SHARE * len(models_on[first.hardware]):
            evidence = f"{describe_figures(first)} for {_join_sorted(models)}"
            yield from _mark(group, "constant_over_models", "simulated", evidence, 0.7 if len(models) == 2 else 0.9)


def constant_over_batches(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark a model on one hardware whose latency is exactly equal at every batch size."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in records.with_figures:
        r = records[index].result
        if (latency := latency_ms(r)) is not None and r.batch_size is not None:
            groups[r.model_id, r.hardware, r.precision, r.sequence_length, latency].append(index)
    for group in groups.values():
        batches = {records[i].result.batch_size for i in group}
        if len(batches) > 1:
            evidence = f"latency {latency_ms(records[group[0]].result):g} ms at batch sizes {_join_sorted(batches)}"
            yield from _mark(group, "constant_over_batches", "suspect", evidence, 0.8)


def identical_across_hardware(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark one model and shape with exactly equal figures on several hardware."""
    for group in records.equal_figures(lambda r: (r.model_id, r.batch_size, r.sequence_length, r.precision)):
        hardware = {records[i].result.hardware for i in group}
        if len(hardware) > 1:
            evidence = f"{describe_figures(records[group[0]].result)} on {_join_sorted(hardware)}"
            yield from _mark(group, "identical_across_hardware", "simulated", evidence, 0.95)


def identical_across_devices(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark two devices whose latencies are exactly equal in nearly all cells that they share: one table, two names.

    A name that says it is a proxy is the copy; else both are marked, because either may be.
    """
    places: dict[str, dict[Hashable, int]] = defaultdict(dict)
    for index in records.with_figures:
        r = records[index].result
        if r.device_name is not None and has_latency(r):
            size = (r.batch_size, r.sequence_length, r.output_tokens, str(r.original.get("image_size")))
            places[r.device_name][r.hardware, r.backend, r.model_id, r.mode, r.precision, *size] = index
    if len(places) < 2:
        return
    holders: dict[Hashable, list[str]] = defaultdict(list)
    for name, cells in places.items():
        for cell, index in cells.items():
            holders[cell, latency_ms(records[index].result)].append(name)
    equal = Counter(pair for names in holders.values() for pair in itertools.combinations(sorted(names), 2))
    for (one, other), cells_equal in equal.items():
        shared = places[one].keys() & places[other].keys()
        if cells_equal >= max(MIN_COPIED_CELLS, MIN_COPIED_SHARE * len(shared)):
            evidence = f"{one} and {other} have equal latencies in {cells_equal} of {count_of(len(shared), 'cell')}"
            stand_ins = [name for name in (one, other) if "proxy" in name.casefold()]
            copies = stand_ins if len(stand_ins) == 1 else [one, other]
            marked = sorted(places[name][cell] for cell in shared for name in copies)
            yield from _mark(marked, "identical_across_devices", "suspect", evidence, 0.9)


def round_figures(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark a document whose latencies, throughputs and memory are all whole numbers without samples."""
    figures = (stated_figures(records[index].result) for index in records.with_figures)
    whole = all(len(stated) == 3 and all(value == int(value) for value in stated.values()) for stated in figures)
    if whole and len(records.with_figures) > 1:
        for index in records.with_figures:
            evidence = f"{describe_figures(records[index].result)}: no clock gives only whole numbers"
            yield from _mark([index], "round_figures", "suspect", evidence, 0.85)


def blanket_label(record: Record, claims: Claims) -> Suspicion | None:
    """Mark hardware that a list at the end of the file declares simulated.

    Evidence, not proof, because the list is often added later, also to files whose CPU figures are real.
    """
    hardware = record.result.hardware
    if claims.blanket is None or hardware not in claims.blanket.hardware:
        return None
    when = f", verified {claims.blanket.verified}" if claims.blanket.verified else ""
    return _suspicion("blanket_label", "suspect", f"the file lists {hardware} as simulated hardware{when}", 0.5)


def throughput_contradiction(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark throughput that is not near batch / latency, times the batches in flight if stated.

    Requests at a rate of their own are skipped, because there nothing follows from the latency.
    """
    r = record.result
    latency, throughput = latency_ms(r), r.throughput_items_per_s
    in_flight = count(r.original["concurrency"], at_least=1) if "concurrency" in r.original else 1
    if not latency or not throughput or r.batch_size is None or in_flight is None or "request_rate" in r.original:
        return None
    expected = r.batch_size * in_flight * 1000 / latency
    if symmetric_ratio(throughput / expected) <= CONTRADICTION_RATIO:
        return None
    batches = f"batch {r.batch_size}" if in_flight == 1 else f"{in_flight} x batch {r.batch_size}"
    evidence = f"{batches} in {latency:.4g} ms is {expected:.4g} items/s, the file says {throughput:.4g}"
    return _suspicion("throughput_contradiction", "suspect", evidence, 0.9)


def impossible_time(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark a batch in less than a tick of any processor's clock, which nothing is computed in."""
    time = time_ms(record.result)
    if time is None or time >= CLOCK_TICK_MS:
        return None
    evidence = f"a batch in {time:.4g} ms, and a tick of a 10 GHz clock takes {CLOCK_TICK_MS:g} ms"
    return _suspicion("impossible_time", "suspect", evidence, 0.95)


def mean_contradiction(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark a mean below half the median: half of all times are the median or more, and none is negative."""
    r = record.result
    mean, middle = r.latency_mean_ms, r.latency_p50_ms
    if r.samples_ns or mean is None or middle is None or mean * MEAN_ROUNDING >= middle / 2:
        return None
    evidence = f"a median of {middle:.4g} ms is a mean of {middle / 2:.4g} ms or more, the file says {mean:.4g}"
    return _suspicion("mean_contradiction", "suspect", evidence, 1.0)


def total_time_contradiction(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark a total time over iterations that is not near the latency."""
    r = record.result
    statements = r.original.get("stated")
    total_s = quantity(statements.get("total_time_seconds")) if isinstance(statements, dict) else None
    if not total_s or not r.iterations or not (latency := latency_ms(r)):
        return None
    each_ms = total_s * 1000 / r.iterations
    if symmetric_ratio(each_ms / latency) <= CONTRADICTION_RATIO:
        return None
    evidence = f"{r.iterations} iterations in {total_s:.4g} s are {each_ms:.4g} ms each, not {latency:.4g} ms"
    return _suspicion("total_time_contradiction", "suspect", evidence, 0.85)


def round_time(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark a lone time in seconds with one or two digits under keys such as `elapsed_time`.

    Old scripts wrote clock values there, so 0.05 was typed. Other tools round, so their keys are skipped.
    """
    r = record.result
    latency = r.latency_mean_ms
    if r.samples_ns or r.throughput_items_per_s is not None or not latency or _significant_digits(latency) > 2:
        return None
    units = r.original.get("units")
    clocked = isinstance(units, dict) and any(u == "s" and str(key).endswith("_time") for key, u in units.items())
    return _suspicion("round_time", "suspect", f"exactly {latency / 1000:g} s", 0.7) if clocked else None


def stand_in_model(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark a small stand-in made for a test, whose speed is not that of its namesake."""
    name = record.result.original.get("model")
    if not isinstance(name, str) or not _is_stand_in(name):
        return None
    return _suspicion("stand_in_model", "suspect", f"the model is {name!r}", 0.8)


def absent_device(record: Record, claims: Claims) -> Suspicion | None:
    """Mark figures for hardware that the same file says its host did not have."""
    hardware = record.result.hardware
    if claims.host_has.get(hardware) is not False:
        return None
    return _suspicion("absent_device", "suspect", f"the file says its host had no {hardware}", 0.9)


def derived_figure(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark figures that the file's writer computed from other results."""
    derived = record.result.original.get("derived_claim")
    return _suspicion("derived_figure", "suspect", f"the file's figure is {derived}", 1.0) if derived else None


def success_without_figures(record: Record, _claims: Claims) -> Suspicion | None:
    """Mark successes without latency, rate and device memory."""
    r = record.result
    if r.status != "ok" or r.throughput_items_per_s or latency_ms(r) or has_other_figure(r):
        return None
    return _suspicion("success_without_figures", "suspect", "success, and no figure of it", 1.0)


def relabelled_cpu(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark the CPU's figures under another name: paired cells of one file that agree within noise.

    All cells of the hardware are marked, paired or not; the CPU's own cells are not.
    """
    cells: dict[str, dict[Hashable, tuple[ResultRecorded, float]]] = defaultdict(dict)
    for index in records.with_figures:
        r = records[index].result
        if time := median_ms(r):
            host = records[index].host_id
            cells[r.hardware][host, r.model_id, r.mode, r.batch_size, r.sequence_length, r.precision] = r, time
    cpu = cells.pop("cpu", {})
    for hardware, own in cells.items():
        pairs = [(cell, cpu[key]) for key, cell in own.items() if key in cpu]
        if len(pairs) < (3 if hardware in CPU_RUNTIMES else 1):
            continue
        is_loose = hardware not in CPU_RUNTIMES and len(pairs) >= MIN_LOOSE_PAIRS
        limit = LOOSE_AGREEMENT_RATIO if is_loose else AGREEMENT_RATIO
        ratios = [time / cpu_time for (_, time), (_, cpu_time) in pairs]
        agreeing = sum(_agrees(ratio, a, b, limit) for ratio, ((a, _), (b, _)) in zip(ratios, pairs, strict=True))
        middle = median(ratios)
        if symmetric_ratio(middle) <= AGREEMENT_RATIO and agreeing >= MIN_AGREEING_SHARE * len(pairs):
            evidence = (
                f"{count_of(len(pairs), 'cell')} beside the CPU's, median ratio {middle:.3f}, {agreeing} within noise"
            )
            every = [i for i in records.with_figures if records[i].result.hardware == hardware]
            yield from _mark(every, "relabelled_cpu", "suspect", evidence, 0.6 if len(pairs) < 3 else 0.95)


def inverted_ranking(records: RecordSet, _claims: Claims) -> Iterator[Mark]:
    """Mark a place where cells that take long elsewhere take little, as with a driver that ends without computing."""
    by_place: dict[Hashable, list[int]] = defaultdict(list)
    for index in records.with_figures:
        r = records[index].result
        by_place[records[index].host_id, r.device_name, r.hardware, r.backend, r.mode, r.precision].append(index)
    if len(by_place) < MIN_RANKING_PLACES:
        return
    places: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    members: dict[Hashable, list[int]] = defaultdict(list)
    for place, indexes in by_place.items():
        for index in indexes:
            r = records[index].result
            cell = (r.model_id, r.batch_size, r.sequence_length, r.output_tokens, str(r.original.get("image_size")))
            if (time := time_ms(r)) is not None:
                places[place][cell].append(time)
                members[place].append(index)
    everywhere: dict[Hashable, list[float]] = defaultdict(list)
    for times in places.values():
        for key, found in times.items():
            everywhere[key].append(median(found))
    usual = {key: median(found) for key, found in everywhere.items() if len(found) >= MIN_RANKING_PLACES}
    for where, times in places.items():
        shared = times.keys() & usual.keys()
        correlation = rank_correlation([median(times[key]) for key in shared], [usual[key] for key in shared])
        if len(shared) >= MIN_RANKED_CELLS and correlation < 0:
            evidence = (
                f"of {len(shared)} cells, those that take long elsewhere take little: "
                f"rank correlation {correlation:.2f}"
            )
            yield from _mark(members[where], "inverted_ranking", "suspect", evidence, 0.9)


DOCUMENT_RULES: tuple[DocumentRule, ...] = (
    simulation_label,
    constant_over_models,
    constant_over_batches,
    identical_across_hardware,
    identical_across_devices,
    round_figures,
    relabelled_cpu,
    inverted_ranking,
)
"""Rules that compare the results of a document, or find results by their place in it."""
FIGURE_RULES: tuple[ResultRule, ...] = (
    blanket_label,
    throughput_contradiction,
    impossible_time,
    mean_contradiction,
    total_time_contradiction,
    round_time,
    stand_in_model,
    absent_device,
)
"""Rules for each success with a latency or a throughput."""
RESULT_RULES: tuple[ResultRule, ...] = (derived_figure, success_without_figures)
"""Rules for every result."""
RULES = (*DOCUMENT_RULES, *FIGURE_RULES, *RESULT_RULES)


def _agrees(ratio: float, a: ResultRecorded, b: ResultRecorded, limit: float) -> bool:
    """Return whether the ratio is within the limit, or within two standard errors of the samples, up to 30 %."""
    factor = symmetric_ratio(ratio)
    if factor <= limit or factor > LOOSE_AGREEMENT_RATIO:
        return factor <= limit
    return factor <= 1 + 2 * max(relative_standard_error(a), relative_standard_error(b))


@lru_cache(maxsize=1024)
def _is_stand_in(name: str) -> bool:
    return _STAND_IN.search(name) is not None


def _significant_digits(value: float) -> int:
    """Return the digits of a number without leading and trailing zeros."""
    digits = f"{value:.15e}".partition("e")[0].replace(".", "").rstrip("0")
    return max(1, len(digits))


def _within(pointer: str, scope: str) -> bool:
    """Return whether the pointer is the scope or inside it, or the scope is inside the result at the pointer."""
    return pointer == scope or pointer.startswith(f"{scope}/") or (pointer != "" and scope.startswith(f"{pointer}/"))


def _join_sorted(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(value) for value in values))


def _mark(indexes: Iterable[int], rule: str, verdict: Verdict, evidence: str, confidence: float) -> Iterator[Mark]:
    suspicion = _suspicion(rule, verdict, evidence, confidence)
    return ((index, suspicion) for index in indexes)


def _suspicion(rule: str, verdict: Verdict, evidence: str, confidence: float) -> Suspicion:
    return Suspicion(rule=rule, verdict=verdict, evidence=evidence, confidence=confidence)
