"""What the options of a run mean together. Nothing is read or measured here."""

from __future__ import annotations

from datetime import UTC, datetime

from accel_platform.bench.plan.work import Work
from accel_platform.durations import age_of
from accel_platform.errors import InvalidInput


def work_of(verify_only: bool, benchmark_only: bool) -> Work:
    """Raises InvalidInput where both are wanted."""
    if verify_only and benchmark_only:
        raise InvalidInput("--verify-only and --benchmark-only leave nothing to do: give one of them.")
    return "verify" if verify_only else "measure" if benchmark_only else "all"


def stale_before(age: str | None, *, missing: bool, now: datetime | None = None) -> datetime | None:
    """The time before which a result is stale, of an age such as 30d, 12h or 2w; None without one.

    Raises InvalidInput for another form, and for an age where everything is measured anyway.
    """
    if age is None:
        return None
    if not missing:
        raise InvalidInput("--older-than says what --missing takes for lacking: give both.")
    return (now or datetime.now(UTC)) - age_of(age)
