"""Logs that hypothesis makes up, in any order of arrival. Their figures test the software and are no results."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from accel_platform.events import Event
from accel_platform.events.types import (
    ArchitectureChecked,
    BenchmarkClaimed,
    BenchmarkClosed,
    BenchmarkRequested,
    DeviceObserved,
    DocumentImported,
    HostObserved,
    KnowledgeAdded,
    KnowledgeRemoved,
    ModelDescribed,
    RecordQuarantined,
    RegressionFound,
    ResultSuspected,
    RunFinished,
    RunStarted,
    SegmentQuarantined,
    ShiftAccepted,
    ShiftRejected,
    ShiftReopened,
    Suspicion,
    SuspicionOverruled,
)
from factories import event, result, verification

_sizes = st.sampled_from([1, 4])
_figures = st.one_of(st.none(), st.floats(1e-6, 1e6), st.integers(1, 10**6).map(float))
_ids = st.integers(0, 3).map(lambda number: UUID(int=number))
"""Few, so that events refer to the same things; `arrivals` gives the first results these ids, too."""
_SUSPICION: Any = {"rule": st.sampled_from("rs"), "verdict": st.sampled_from(["simulated", "suspect"]),
                   "evidence": st.just("e"), "confidence": st.floats(0, 1)}  # fmt: skip
_SERIES: Any = {"model_id": st.just("bert-base"), "hardware": st.just("cpu"), "device_id": st.just("cpu-test"),
                "fingerprint": st.just("test"), "mode": st.just("inference"), "precision": st.just("float32"),
                "batch_size": st.just(1), "sequence_length": st.just(128)}  # fmt: skip
_payloads = st.one_of(
    st.builds(
        result,
        hardware=st.sampled_from(["cpu", "openvino"]),
        model_id=st.sampled_from(["bert-base", "vit-base"]),
        batch_size=_sizes,
        samples_ns=st.lists(st.integers(1, 10**9), max_size=70).map(tuple),
    ),
    st.builds(
        result, status=st.just("failed"), reason=st.sampled_from(["out of memory", None]), samples_ns=st.just(())
    ),
    st.builds(
        result,
        mode=st.sampled_from(["generation", "training"]),
        output_tokens=st.sampled_from([None, 32]),
        prefill_ms=st.sampled_from([None, 1.0, 3.0]),
        time_to_first_token_ms=st.sampled_from([None, 2.0]),
        processes=st.sampled_from([None, 1, 2]),
    ),
    st.builds(verification, mode=st.sampled_from(["generation", "training"]), processes=st.sampled_from([None, 1, 2])),
    st.builds(result, provenance=st.just("imported"), samples_ns=st.just(()), latency_mean_ms=st.floats(0, 100)),
    st.builds(verification, batch_size=_sizes, passed=st.booleans()),
    st.builds(HostObserved, hostname=st.sampled_from("ab"), os=st.just("x"), cpu_model=st.just("c"),
              cpu_cores_logical=st.integers(1, 8), memory_mib=st.just(1.0)),
    st.builds(DeviceObserved, hardware=st.just("cpu"), backend=st.just("pytorch"), available=st.booleans(),
              device_id=st.sampled_from(["d1", "d2", None]), name=st.sampled_from(["h100_sxm", 'é "1"', None])),
    st.builds(ModelDescribed, model_id=st.just("bert-base"), architecture=st.just("bert"), family=st.just("bert"),
              modality=st.just("text"), parameters=st.integers(1, 9)),
    st.builds(RunStarted, kind=st.sampled_from(["bench", "import"]), labels=st.sampled_from([{}, {"commit": "c"}])),
    st.builds(RegressionFound, **_SERIES, regression_id=st.sampled_from("ab"), found_by=st.just("check"),
              state=st.just("regressed"), before_ms=st.just(1.0), after_ms=st.sampled_from([None, 2.0, 500.0]),
              measure=st.sampled_from(["latency", "failures"]),
              processes_before=st.just(1), processes_after=st.just(2), first_result=st.just(UUID(int=0)),
              evidence=st.just(())),
    st.builds(RegressionFound, **_SERIES, regression_id=st.just("c"), found_by=st.just("history"),
              measure=st.sampled_from(["memory", "device_memory"]), state=st.sampled_from(["regressed", "improved"]),
              before_mib=st.just(1.0), after_mib=st.sampled_from([2.0, 500.0]), processes_before=st.just(8),
              processes_after=st.just(3), first_result=st.just(UUID(int=0)), evidence=st.just(())),
    st.builds(ShiftAccepted, **_SERIES, regression_id=st.sampled_from("ab"), first_result=st.just(UUID(int=0)),
              by=st.just("b"), reason=st.sampled_from("rs")),
    st.builds(ShiftRejected, **_SERIES, regression_id=st.sampled_from("ab"), first_result=st.just(UUID(int=0)),
              results=st.sampled_from([(), (UUID(int=0), UUID(int=1))]), by=st.just("b"), reason=st.sampled_from("rs")),
    st.builds(ShiftReopened, **_SERIES, regression_id=st.sampled_from("ab"), first_result=st.just(UUID(int=0)),
              by=st.just("b"), reason=st.sampled_from("rs")),
    st.builds(RunFinished, status=st.just("succeeded"), duration_s=st.just(1.0)),
    st.builds(DocumentImported, source_path=st.just("f"), content_sha256=st.just("0"), format=st.just("x"),
              outcome=st.just("imported"), size_bytes=st.just(1)),
    st.builds(RecordQuarantined, source_path=st.just("f"), rule=st.just("r"), reason=st.just("?"),
              content=st.just("c")),
)  # fmt: skip
_LATER = st.one_of(
    st.builds(
        result,
        provenance=st.sampled_from(["imported", "suspect", "simulated"]),
        device_name=st.sampled_from(["NVIDIA H100 SXM5 80GB", "4 x h100_sxm", "Nvidia A100 (tm)", 'é "1"', None]),
        samples_ns=st.just(()),
        latency_mean_ms=_figures,
        latency_p50_ms=_figures,
        throughput_items_per_s=_figures,
        memory_peak_mib=_figures,
        occurred_local=st.sampled_from([None, datetime(2026, 1, 2, 3, 4, 5, 678901), datetime(2099, 1, 1)]),  # noqa: DTZ001
        original=st.sampled_from([{}, {"image_size": 224}, {"image_size": "224x224", "other": [1, {"a": None}]}]),
        environment=st.sampled_from([{}, {"contention": {"others_share": 0.16, "waiting_share": 0.01}}]),
        suspicions=st.lists(st.builds(Suspicion, **_SUSPICION), max_size=2).map(tuple),
    ),
    st.builds(
        result,
        samples_ns=st.lists(st.integers(1, 10**12), min_size=130, max_size=700).map(tuple),
        environment=st.sampled_from([{}, {"contention": {"others_share": 0.05, "waiting_share": 0.06}}]),
        fingerprint=st.sampled_from(["test", "other"]),
        reason=st.sampled_from([None, "line\nbreak\t\\ ' \" é"]),
    ),
    st.builds(ResultSuspected, **_SUSPICION, result_id=_ids),
    st.builds(SuspicionOverruled, result_id=_ids, rule=st.sampled_from("rs"), by=st.just("b"), reason=st.just("?")),
    st.builds(
        KnowledgeAdded,
        pack=st.sampled_from("pq"),
        version=st.sampled_from(["1", "2"]),
        card=st.sampled_from([{}, {"share": 1e-6, "n": 1.50, "of": ["x", 1e22]}]),
    ),
    st.builds(KnowledgeRemoved, pack=st.sampled_from("pq"), by=st.sampled_from([None, "b"])),
    st.builds(
        BenchmarkRequested,
        requested_by=st.just("cli"),
        hardware=st.just("cpu"),
        config=st.sampled_from([{}, {"models": ["a"], "seconds": 0.1}]),
    ),
    st.builds(BenchmarkClaimed, request_id=_ids, attempt=st.integers(1, 3), claimed_by=st.sampled_from("ab")),
    st.builds(
        BenchmarkClosed,
        request_id=_ids,
        status=st.sampled_from(["done", "failed"]),
        run_ids=st.sampled_from([(), ("r1", "r2")]),
    ),
    st.builds(
        ArchitectureChecked,
        model_type=st.sampled_from(["bert", "vit"]),
        family=st.just("f"),
        category=st.just("c"),
        hardware=st.just("cpu"),
        status=st.just("ok"),
        relative_error=_figures,
        parameters=st.integers(0, 10**12),
        inputs=st.sampled_from([(), ("input_ids",)]),
        versions=st.sampled_from([{}, {"torch": "2.13"}]),
    ),
    st.builds(SegmentQuarantined, key=st.just("k"), moved_to=st.just("m"), reason=st.just("r"), segments=st.just(())),
)
"""Payloads that only the comparison of engines needs: every other type, text and figures of any shape."""
_SOURCES: Any = {"host_id": st.sampled_from(["h1", "h2"]), "run_id": st.sampled_from(["r1", "r2", None])}
_FOREIGN: Any = {"host_id": st.sampled_from(["h1", "imported-x", None]),
                 "source": st.sampled_from(["test", "pack:p@1"]),
                 "run_id": st.sampled_from(["r1", None]), "causation_id": st.sampled_from([None, UUID(int=9)]),
                 "occurred_at": st.sampled_from([None, datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)])}  # fmt: skip


@st.composite
def arrivals(draw: st.DrawFn, *, everything: bool = False) -> tuple[list[Event], list[list[Event]]]:
    """A set of events, and one way for them to arrive: any order, any doubles, any split into batches.

    With `everything` the events are of any type, and refer to one another.
    """
    some = st.builds(event, _payloads, **_SOURCES)
    if everything:
        some = st.one_of(
            some, st.builds(event, _LATER, **_FOREIGN), st.builds(event, _LATER, event_id=_ids, **_FOREIGN)
        )
    events = draw(st.lists(some, min_size=1, max_size=25 if everything else 15, unique_by=lambda e: e.event_id))
    stream = draw(st.permutations(events + draw(st.lists(st.sampled_from(events), max_size=6))))
    cuts = sorted(draw(st.sets(st.integers(1, len(stream)), max_size=4)))
    batches = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    return events, batches
