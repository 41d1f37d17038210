"""Totals of checks of architectures."""

from __future__ import annotations

from accel_platform.bench.coverage.report import render_markdown, summarize_by_category
from accel_platform.events.types import ArchitectureChecked


def check(
    model_type: str, category: str, hardware: str = "cpu", failure_class: str | None = None
) -> ArchitectureChecked:
    return ArchitectureChecked(
        model_type=model_type,
        family=model_type,
        category=category,
        hardware=hardware,
        status="failed" if failure_class else "ok",
        failure_class=failure_class,
        reason="a | b" if failure_class else None,
        versions={"torch": "2.13.0"},
    )


CHECKS = [
    check("bert", "text"),
    check("esm", "text", failure_class="forward"),
    check("blt", "text", failure_class="export"),
    check("fsmt", "text", failure_class="export"),
    check("vit", "vision"),
    check("vit", "vision", "openvino"),
]


def test_rows_are_counted_by_hardware_and_category() -> None:
    rows = {(row["hardware"], row["category"]): row for row in summarize_by_category(CHECKS)}
    assert list(rows) == [
        ("cpu", "text"),
        ("cpu", "vision"),
        ("cpu", "all"),
        ("openvino", "vision"),
        ("openvino", "all"),
    ]
    assert rows["cpu", "text"]["ok"] == 1
    assert rows["cpu", "text"]["failed"] == 3
    assert rows["cpu", "text"]["failures"] == "export 2, forward 1"
    assert rows["cpu", "all"]["ok"] == 2
    assert rows["openvino", "all"]["failures"] == ""


def test_the_page_holds_the_totals_and_every_reason() -> None:
    page = render_markdown(CHECKS, total=5)
    assert "- `cpu`: 2 of 5 model types run, 5 were checked" in page
    assert "torch 2.13.0" in page
    assert "`accel bench coverage --hardware cpu,openvino --write FILE`" in page
    assert "| export | blt | text | a \\| b |" in page
    assert page.index("## Failures on `cpu`") < page.index("## Failures on `openvino`")
    assert page.endswith("None.\n")
    assert "| hardware | category |" not in render_markdown([], total=5)
