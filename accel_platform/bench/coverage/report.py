"""Coverage report: a table by category, and a Markdown page with every failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from accel_platform.events.types import ArchitectureChecked
from accel_platform.table_io.text import markdown, table_of
from accel_platform.workloads.architectures import CATEGORIES


def summarize_by_category(checks: Iterable[ArchitectureChecked]) -> list[dict[str, Any]]:
    """Return one row per hardware name and category, and their sum, with failure classes, most frequent first."""
    checks = list(checks)
    rows = []
    for hardware in dict.fromkeys(check.hardware for check in checks):
        mine = [check for check in checks if check.hardware == hardware]
        parts = [(category, [c for c in mine if c.category == category]) for category in CATEGORIES]
        for name, part in (*parts, ("all", mine)):
            if part:
                classes = Counter(c.failure_class for c in part if c.status != "ok")
                ok = sum(c.status == "ok" for c in part)
                rows.append(
                    {
                        "hardware": hardware,
                        "category": name,
                        "ok": ok,
                        "failed": len(part) - ok,
                        "failures": ", ".join(f"{kind} {count}" for kind, count in classes.most_common()),
                    }
                )
    return rows


def render_markdown(checks: Sequence[ArchitectureChecked], *, total: int) -> str:
    """Return the page: versions, the table by category, and every failure with its reason."""
    versions = {name: version for check in checks for name, version in check.versions.items()}
    ok = {
        name: sum(check.status == "ok" for check in checks if check.hardware == name)
        for name in dict.fromkeys(check.hardware for check in checks)
    }
    hardware_option = f"--hardware {','.join(ok)} " if ok else ""
    lines = [
        "# Which architectures run",
        "",
        f"Written on {datetime.now(UTC):%Y-%m-%d} from checks made with",
        f"{', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}.",
        f"`accel bench coverage {hardware_option}--write FILE` checks what is not on record yet,",
        "and writes this page again. How a check is made is in [howto/coverage.md](howto/coverage.md).",
        "",
        *(
            f"- `{name}`: {count} of {total} model types run, {sum(c.hardware == name for c in checks)} were checked"
            for name, count in ok.items()
        ),
        "",
        *markdown(table_of(summarize_by_category(checks))),
    ]
    for hardware in ok:
        failed = sorted(
            (c for c in checks if c.hardware == hardware and c.status != "ok"),
            key=lambda c: (c.failure_class or "", c.model_type),
        )
        lines += ["", f"## Failures on `{hardware}`", ""]
        rows = [
            {"class": c.failure_class, "model type": c.model_type, "category": c.category, "reason": _shorten(c.reason)}
            for c in failed
        ]
        lines += markdown(table_of(rows)) if rows else ["None."]
    return "\n".join(lines) + "\n"


def _shorten(reason: str | None) -> str:
    # Drop the library's path, because it reveals the layout of this machine.
    plain = re.sub(r"/\S*/site-packages/", "", " ".join((reason or "").split()))
    return plain if len(plain) <= 160 else plain[:157] + "..."
