"""Data rules that every result row must keep, stated once and rendered as SQL and as Great Expectations.

SQL sends a breaking row to quarantine while the table is built, and audits tables before they are published. Great
Expectations audit the same rules for Dagster's asset checks and `accel db validate`: a second implementation that takes
seconds to import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from accel_platform.events.types import Hardware, Mode, Provenance, Status

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    from great_expectations.expectations.expectation import Expectation


COMPUTED = {
    "hours_after_recording": "(epoch(coalesce(occurred_at, timezone('UTC', occurred_local - INTERVAL 14 HOUR)))"
    " - epoch(recorded_at)) / 3600",
    "min_over_mean": "latency_min_ms / nullif(latency_mean_ms, 0)",
    "mean_over_max": "latency_mean_ms / nullif(latency_max_ms, 0)",
}
"""SQL of the columns that rules use beside those of `results`.

`hours_after_recording` is the least number of hours by which a result's time is after its recording. A time without a
zone may be up to 14 hours ahead of UTC.
"""


class Rule(Protocol):
    """Named rule over the columns of `results` and COMPUTED. An unknown value (NULL) breaks only `Required`."""

    @property
    def name(self) -> str: ...

    def columns(self) -> tuple[str, ...]: ...

    def describe(self) -> str:
        """Return the rule as a sentence for a person, with its columns and bounds."""
        ...

    def broken_sql(self) -> str:
        """Return a condition that is true for a row that breaks the rule."""
        ...

    def applies_sql(self) -> str:
        """Return a condition that is true for the rows that the rule applies to."""
        ...

    def expectation(self) -> Expectation: ...


@dataclass(frozen=True)
class Between:
    """The column lies in [low, high], or in ]low, high] where `above`; None is no bound."""

    name: str
    column: str
    low: float | None = None
    high: float | None = None
    above: bool = False

    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def describe(self) -> str:
        bounds = [] if self.low is None else [f"{'above' if self.above else 'at least'} {self.low:,}"]
        bounds += [] if self.high is None else [f"at most {self.high:,}".removesuffix(".0")]
        return f"{self.column} is {' and '.join(bounds)}, where it is known."

    def broken_sql(self) -> str:
        column = _expression(self.column)
        too_low = [] if self.low is None else [f"{column} {'<=' if self.above else '<'} {self.low}"]
        too_high = [] if self.high is None else [f"{column} > {self.high}"]
        return f"({' OR '.join(too_low + too_high)})"

    def applies_sql(self) -> str:
        return "true"

    def expectation(self) -> Expectation:
        import great_expectations.expectations.core as gxe

        return gxe.ExpectColumnValuesToBeBetween(
            column=self.column, min_value=self.low, max_value=self.high, strict_min=self.above, meta={"rule": self.name}
        )


@dataclass(frozen=True)
class OneOf:
    """The column is one of these values."""

    name: str
    column: str
    values: tuple[str, ...]

    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def describe(self) -> str:
        return f"{self.column} is one of {', '.join(self.values)}."

    def broken_sql(self) -> str:
        return f"{self.column} NOT IN ({', '.join(repr(v) for v in self.values)})"

    def applies_sql(self) -> str:
        return "true"

    def expectation(self) -> Expectation:
        import great_expectations.expectations.core as gxe

        return gxe.ExpectColumnValuesToBeInSet(
            column=self.column, value_set=list(self.values), meta={"rule": self.name}
        )


@dataclass(frozen=True)
class Ordered:
    """`smaller` is at most `larger`, where both are known."""

    name: str
    smaller: str
    larger: str

    def columns(self) -> tuple[str, ...]:
        return (self.smaller, self.larger)

    def describe(self) -> str:
        return f"{self.smaller} is at most {self.larger}, where both are known."

    def broken_sql(self) -> str:
        return f"{self.smaller} > {self.larger}"

    def applies_sql(self) -> str:
        return "true"

    def expectation(self) -> Expectation:
        import great_expectations.expectations.core as gxe

        return gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A=self.larger,
            column_B=self.smaller,
            or_equal=True,
            ignore_row_if="either_value_is_missing",
            meta={"rule": self.name},
        )


@dataclass(frozen=True)
class Required:
    """The column is known; with `when`, in rows where that other column has that value (or, with `unless`, has not)."""

    name: str
    column: str
    when: tuple[str, str] | None = None
    unless: bool = False

    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.when is None else (self.column, self.when[0])

    def describe(self) -> str:
        if self.when is None:
            return f"{self.column} is known."
        column, value = self.when
        return f"{self.column} is known where {column} is {'not ' if self.unless else ''}{value}."

    def broken_sql(self) -> str:
        missing = f"{self.column} IS NULL"
        return missing if self.when is None else f"({missing} AND {self.applies_sql()})"

    def applies_sql(self) -> str:
        if self.when is None:
            return "true"
        column, value = self.when
        return f"{column} {'<>' if self.unless else '='} '{value}'"

    def expectation(self) -> Expectation:
        import great_expectations.expectations.core as gxe
        from great_expectations.expectations.row_conditions import Column

        condition: Any = None
        if self.when is not None:
            column, value = self.when
            condition = Column(column) != value if self.unless else Column(column) == value
        return gxe.ExpectColumnValuesToNotBeNull(column=self.column, row_condition=condition, meta={"rule": self.name})


@dataclass(frozen=True)
class Unique:
    """No value occurs twice. It is a property of the table `audited`, so no row goes to quarantine for it."""

    name: str
    column: str

    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def describe(self) -> str:
        return f"No {self.column} occurs twice."

    def broken_sql(self) -> str:
        return f"{self.column} IN (SELECT {self.column} FROM audited GROUP BY ALL HAVING count(*) > 1)"

    def applies_sql(self) -> str:
        return "true"

    def expectation(self) -> Expectation:
        import great_expectations.expectations.core as gxe

        return gxe.ExpectColumnValuesToBeUnique(column=self.column, meta={"rule": self.name})


_TEN_HOURS_MS = 36_000_000
_SIXTEEN_TIB_MIB = 16 * 1024 * 1024
_MOST_ITEMS = 1_000_000
"""Largest batch size. The largest in published tables is 65,536."""
_MOST_TOKENS = 100_000_000
"""Largest sequence length. The longest context on the market is 10 million."""
_MOST_PER_S = 1e12
_A_DAY_H = 24
"""Largest tolerated difference of clocks of different machines."""
_OF_OTHERS = ("xpu", "tpu", "qaic", "hpu", "hailo", "sambanova", "neuron", "vulkan", "opencl", "directml", "unknown")
"""Accelerators that imported results name and this platform does not run; `unknown` where a file names none."""
_ORDER = ("min", "p50", "p90", "p95", "p99", "max")
_WITHIN = ("min", "p50")
"""Statistics that must not exceed the maximum. High percentiles of few samples may, because Python's
`statistics.quantiles` extrapolates."""
_ROUNDED = 1.01
"""Factor by which a mean of equal figures may differ from them through summing and rounding."""

RULES: tuple[Rule, ...] = (
    Unique("result_id_unique", "result_id"),
    Required("model_named", "model_id"),
    Required("hardware_named", "hardware"),
    OneOf("hardware_known", "hardware", (*get_args(Hardware), *_OF_OTHERS)),
    OneOf("status_known", "status", get_args(Status)),
    OneOf("mode_known", "mode", get_args(Mode)),
    OneOf("provenance_known", "provenance", get_args(Provenance)),
    Between("latency_plausible", "latency_mean_ms", 0, _TEN_HOURS_MS, above=True),
    Between("latency_min_positive", "latency_min_ms", 0, above=True),
    *(
        Between(f"latency_{part}_plausible", f"latency_{part}_ms", 0, _TEN_HOURS_MS, above=True)
        for part in _ORDER
        if part != "min"
    ),
    Between("throughput_plausible", "throughput_items_per_s", 0, _MOST_PER_S, above=True),
    Between("memory_plausible", "memory_peak_mib", 0, _SIXTEEN_TIB_MIB, above=True),
    Between("device_memory_plausible", "memory_device_peak_mib", 0, _SIXTEEN_TIB_MIB),
    Between("batch_size_plausible", "batch_size", 1, _MOST_ITEMS),
    Between("sequence_length_plausible", "sequence_length", 1, _MOST_TOKENS),
    *(
        Ordered(f"{lower}_not_above_{upper}", f"latency_{lower}_ms", f"latency_{upper}_ms")
        for number, lower in enumerate(_ORDER)
        for upper in _ORDER[number + 1 :]
        if upper != "max" or lower in _WITHIN
    ),
    Between("min_not_above_mean", "min_over_mean", high=_ROUNDED),
    Between("mean_not_above_max", "mean_over_max", high=_ROUNDED),
    Between("not_in_the_future", "hours_after_recording", high=_A_DAY_H),
    Between("first_token_plausible", "time_to_first_token_ms", 0, _TEN_HOURS_MS),
    Between("output_token_plausible", "time_per_output_token_ms", 0, _TEN_HOURS_MS),
    Between("tokens_per_s_positive", "throughput_tokens_per_s", 0, above=True),
    Between("scaling_efficiency_positive", "scaling_efficiency", 0, above=True),
    Ordered("prefill_not_above_first_token", "prefill_ms", "time_to_first_token_ms"),
    Ordered("first_token_not_above_max", "time_to_first_token_ms", "latency_max_ms"),
    Ordered("forward_not_above_max", "forward_ms", "latency_max_ms"),
    Required("failure_has_reason", "reason", ("status", "ok"), unless=True),
    Required("measured_names_device", "device_id", ("provenance", "measured")),
    Required("measured_has_fingerprint", "fingerprint", ("provenance", "measured")),
)


def broken_rules_sql() -> str:
    """Return SQL for one `results` row: the sorted names of the rules it breaks, NULL for none.

    The list is built only where something is broken, so a clean row costs the comparisons alone.
    """
    of_rows = [rule for rule in RULES if not isinstance(rule, Unique)]
    tests = ", ".join(f"CASE WHEN {rule.broken_sql()} THEN '{rule.name}' END" for rule in sorted(of_rows, key=_name))
    any_broken = " OR ".join(rule.broken_sql() for rule in of_rows)  # NULL where nothing is broken but a value unknown
    return f"CASE WHEN {any_broken} THEN list_filter([{tests}], lambda name: name IS NOT NULL) END"


@dataclass(frozen=True)
class CheckResult:
    """Result of checking one rule over a table."""

    rule: str
    expectation: str
    passed: bool
    rows: int
    broken: int
    examples: tuple[str, ...] = ()


def audit(con: duckdb.DuckDBPyConnection, rows: str) -> list[CheckResult]:
    """Check every rule in SQL over `rows`, a SELECT from `results`, and return the results in the order of `RULES`.

    Defines the temporary view `audited` in `con`. Rules over rows share one scan.
    """
    con.execute(f"CREATE OR REPLACE TEMP VIEW audited AS {rows}")
    of_rows = [rule for rule in RULES if not isinstance(rule, Unique)]
    unique = [rule for rule in RULES if isinstance(rule, Unique)]
    conditions = [condition for rule in of_rows for condition in (rule.applies_sql(), rule.broken_sql())]
    # FILTER takes three times as long as CASE.
    counts = {c: "count(*)" if c == "true" else f"count(CASE WHEN {c} THEN 1 END)" for c in ("true", *conditions)}
    distincts = [f"count(DISTINCT {rule.column})" for rule in unique]
    [row] = con.execute(f"SELECT {', '.join([*counts.values(), *distincts])} FROM audited").fetchall()
    counted = dict(zip(counts, row, strict=False))
    total = counted["true"]
    found = {rule: (counted[rule.applies_sql()], counted[rule.broken_sql()]) for rule in of_rows}
    for rule, distinct in zip(unique, row[len(counts) :], strict=True):
        broken = 0
        if distinct < total:
            [(broken,)] = con.execute(f"SELECT count(*) FROM audited WHERE {rule.broken_sql()}").fetchall()
        found[rule] = (total, broken)
    return [
        CheckResult(
            rule.name,
            f"NOT {rule.broken_sql()}",
            not found[rule][1],
            *found[rule],
            _examples(con, rule, found[rule][1]),
        )
        for rule in RULES
    ]


def audit_of_no_rows() -> list[CheckResult]:
    """Return the results of `audit` over no rows."""
    return [CheckResult(rule.name, f"NOT {rule.broken_sql()}", passed=True, rows=0, broken=0) for rule in RULES]


def _examples(con: duckdb.DuckDBPyConnection, rule: Rule, broken: int) -> tuple[str, ...]:
    if not broken:
        return ()
    values = ", ".join(f"coalesce(({_expression(column)})::VARCHAR, 'NULL')" for column in rule.columns())
    rows = con.execute(f"SELECT concat_ws(', ', {values}) FROM audited WHERE {rule.broken_sql()} LIMIT 5").fetchall()
    return tuple(text for (text,) in rows)


def audit_by_expectations(results: pd.DataFrame) -> list[CheckResult]:
    """Check every rule as a Great Expectation over `results`, in the order of `RULES`. Importing GX takes 2-4 s."""
    with _without_spark():
        import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]  # GX accepts the plain form
    asset = context.data_sources.add_pandas("warehouse").add_dataframe_asset("results")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": results})

    def verdicts(selected: Sequence[Rule], detail: Literal["BOOLEAN_ONLY", "SUMMARY"]) -> dict[str, Any]:
        suite = gx.ExpectationSuite(name="results", expectations=[rule.expectation() for rule in selected])
        found: list[Any] = batch.validate(suite, result_format=detail).results
        return {result.expectation_config.meta["rule"]: result for result in found}

    # Counts and examples take twice the time, so they are computed only for broken rules and those with a condition.
    found = verdicts(RULES, "BOOLEAN_ONLY")
    if more := [rule for rule in RULES if not found[rule.name].success or _condition(found[rule.name]) is not None]:
        found |= verdicts(more, "SUMMARY")
    return [_check_result(rule, found[rule.name], len(results)) for rule in RULES]


@contextmanager
def _without_spark() -> Iterator[None]:
    """Hide an installed pyspark from Great Expectations, which would load it at once.

    Its import takes a second, warns of pandas, and ends a process whose main module is no file (a spawned one).
    """
    if "pyspark" in sys.modules:  # loaded by an engine
        yield
        return
    sys.modules["pyspark"] = None  # type: ignore[assignment]  # as Python has it: the import fails
    try:
        yield
    finally:
        del sys.modules["pyspark"]


def _condition(result: Any) -> Any:
    """Return the condition that limits the rows a rule applies to; None if it applies to all."""
    return result.expectation_config.kwargs.get("row_condition")


def _check_result(rule: Rule, result: Any, rows: int) -> CheckResult:
    details = result.result or {}
    error = (result.exception_info or {}).get("exception_message")
    examples = [str(error)] if error else [str(v) for v in details.get("partial_unexpected_list", [])[:5]]
    return CheckResult(
        rule=rule.name,
        expectation=result.expectation_config.type,
        passed=bool(result.success),
        rows=int(details.get("element_count", rows)),
        broken=int(details.get("unexpected_count") or 0),
        examples=tuple(examples),
    )


def audited_columns() -> dict[str, str]:
    """Return the columns that the rules use, each with its SQL expression over `results`."""
    return {column: _expression(column) for rule in RULES for column in rule.columns()}


def _expression(column: str) -> str:
    return COMPUTED.get(column, column)


def _name(rule: Rule) -> str:
    return rule.name
