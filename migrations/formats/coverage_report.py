"""Coverage reports: for which hardware a test script has code, in shares and pass rates. Claims about code, derived by
reading it; nothing was run and nothing measured."""

from __future__ import annotations

from migrations.documents import Document

NOT_RESULTS = "a coverage report: claims about code and pass rates, derived, with no measurement"


def recognise(document: Document) -> float:
    """Sure where coverage by platform stands beside counts of models, or pass rates beside counts of tests."""
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    if "platform_coverage" in value or "hardware_coverage" in value:
        return 0.9
    rates = {"coverage_percentage", "pass_rate", "success_rate", "overall_pass_rate", "overall_coverage"}
    counts = {"total_models", "total_tests", "models_tested", "total"}
    summary = value["summary"] if isinstance(value.get("summary"), dict) else {}
    keys = value.keys() | summary.keys()
    return 0.7 if keys & rates and keys & counts and not {"tests", "stats", "results"} & value.keys() else 0.0
