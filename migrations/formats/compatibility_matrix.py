"""Compatibility matrices: `model_families.{f}.hardware_compatibility.{hw}{compatible, performance_rating, …}`, seconds.

Its figures are means over unlike shapes of results stored elsewhere, so they are claims (`original.derived_claim`),
never measurements. `compatible: false` without a result may mean failed or never tried: it says nothing of any model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.formats.hardware_summary import DERIVED, read_families, some_family_has
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import NoResult, Part, child, refuse
from migrations.normalize.units import MS_PER_S, quantity, scaled
from migrations.sources.documents import Document

_UNITS = {"mean_latency": "s", "mean_throughput": "items/s"}


def detect(document: Document) -> float:
    """Return high confidence where some family has compatibility by hardware."""
    return 0.95 if some_family_has(document, "hardware_compatibility") else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per result named; a hardware without any holds none."""
    return read_families(document, "hardware_compatibility", _hardware, nothing="a matrix of no hardware")


def _hardware(document: Document, where: str, family: str, hardware: str, claim: Any) -> Iterator[Part]:
    results = claim.get("benchmark_results") if isinstance(claim, dict) else None
    if results is None and isinstance(claim, dict) and "compatible" in claim:
        results = []
    if not isinstance(results, list):
        yield refuse(where, "unexpected_shape", "an object with a list of results was expected", claim)
        return
    if not results:
        status = f"compatible: {str(claim.get('compatible')).casefold()}"
        yield NoResult(where, f"{status} without a result, of no model: failed or never tried")
    for index, entry in enumerate(results):
        at = child(child(where, "benchmark_results"), index)
        if not isinstance(entry, dict):
            yield refuse(at, "unexpected_shape", "an object was expected", entry)
            continue
        cell = CellDraft(
            document.source_path,
            at,
            NamesInFile((entry.get("model_name"), entry.get("model")), hardware, family=family),
            times=(entry.get("timestamp"), document.value.get("timestamp")),
            original={
                "family": family,
                "derived_claim": DERIVED,
                "performance_rating": claim.get("performance_rating"),
            },
        )
        figures = {
            "latency_mean_ms": scaled(entry.get("mean_latency"), MS_PER_S),
            "throughput_items_per_s": quantity(entry.get("mean_throughput")),
        }
        yield cell.result("ok", figures, units=_UNITS)
