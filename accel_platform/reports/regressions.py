"""Regression checks as Markdown for pull requests and JUnit XML for CI servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from accel_platform.analysis.regressions.changepoint_history import decision_id
from accel_platform.analysis.regressions.check import CANNOT_DECIDE, Check
from accel_platform.analysis.regressions.decision import MAX_PROCESSES_NEEDED, Decision, State
from accel_platform.events.types import RegressionFound
from accel_platform.table_io.values import count_of, rounded

Outcome = State | Literal["accepted"]
_HEADINGS: dict[Outcome, str] = {
    "regressed": "Regressed",
    "suspicious": "Suspicious, nobody is alerted",
    "improved": "Improved",
    "insufficient_data": "Not decided",
    "accepted": "Accepted",
    "ok": "Unchanged",
}
_SHOWN = 50
"""Rows of a Markdown table, because comments have a size limit; JSON has all."""
_IN_A_LINE = 3
"""Regressions that one line names."""
_LEAST_ALIKE = 3
"""Fewest cells whose common shift may be that of the host."""
_MAX_HOST_SHIFT_PERCENT = 30
"""Largest change of the latencies that is likely a host's: more was only seen where other processes used the cores."""
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def title(checked: Check) -> str:
    """Return the outcome in one line."""
    found = Counter(map(_outcome, checked.decisions))
    counts = [f"{found[outcome]} {_words(outcome)}" for outcome in _HEADINGS if found[outcome]]
    outcome = {0: "No regression", 1: "Regression", 2: "Cannot decide"}[checked.exit_code]
    return f"{outcome}: {', '.join(counts) or 'no cell was measured on either side'}"


def name_regressions(checked: Check) -> str:
    """Return what regressed in one line: the first with their figures, and the number of others."""
    found = [
        f"{decision.series.model_id}, {text}, {measure_name(decision.measure)}: {describe_decision(decision)}"
        for text, decision in named_decisions(checked)
        if decision.state == "regressed"
    ]
    return _in_a_line(found)


def name_shifts(shifts: Sequence[RegressionFound]) -> str:
    """Return shifts that the history found in one line: the first with their figures, and the number of others."""
    rows = [vars(shift) for shift in shifts]
    return _in_a_line(
        [
            f"{row['model_id']}, {text}, {_describe_shift(row)}"
            for row, text in zip(rows, distinct_cells(rows), strict=True)
        ]
    )


def _describe_shift(shift: Mapping[str, Any]) -> str:
    """Return what moved, and since which commit."""
    figures = shift["reason"] or ""
    if shift["change_percent"] is not None:
        before, after = sides_in_words(shift)
        figures = f"{before} -> {after}, {shift['change_percent']:+.1f} %"
    commits = ", ".join(commit[:12] for commit in shift["commits_after"][:1])
    return f"{measure_name(shift['measure'])}: {figures}{f', since commit {commits}' if commits else ''}"


def _in_a_line(found: Sequence[str]) -> str:
    others = [f"and {len(found) - _IN_A_LINE} more"] if len(found) > _IN_A_LINE else []
    return "; ".join([*found[:_IN_A_LINE], *others])


def next_step(decisions: Sequence[Decision], *, recorded: bool) -> str | None:
    """Return what to do about the regressions among these decisions; None without one."""
    regressed = [decision for decision in decisions if decision.state == "regressed"]
    ids = [name for decision in regressed if (name := decision_id(decision)) is not None]
    if not regressed:
        return None
    if not recorded or not ids:
        return "Check again with `--record` to accept it, if it is as it should be, or to reject it."
    return (
        f"If that is as it should be: `accel regress accept {' '.join(ids)} --reason WHY --by NAME`; "
        "`reject` where it is the machine's fault."
    )


def common_shift(checked: Check) -> str | None:
    """Return a hint at the host where all latencies grew alike; None if they did not, or none regressed.

    Stored baselines cannot tell the two apart: on shared machines equal code takes a tenth longer for minutes.
    """
    latencies = [decision for decision in checked.decisions if decision.measure == "latency"]
    changes = [decision.change_percent for decision in latencies if decision.change_percent is not None]
    if len(changes) < _LEAST_ALIKE or not any(decision.state == "regressed" for decision in latencies):
        return None
    least, most = min(changes), max(changes)
    if 2 * least < most or most > _MAX_HOST_SHIFT_PERCENT:
        return None
    return (
        f"All {len(changes)} latencies grew alike, by {least:.0f} to {most:.0f} %: that may be the host and not the "
        "code. To tell, measure the baseline's commit again; its earlier runs count, too."
    )


def markdown(checked: Check, *, recorded: bool) -> str:
    """Return a section per state, worst first, with unchanged cells folded away, and what to do about regressions."""
    again = f", measured again {checked.confirming_runs} times" if checked.confirming_runs else ""
    sides = f"Baseline {checked.baseline.name}, candidate {checked.candidate.name}{again}."
    if any(decision.accepted_baseline for decision in checked.decisions):
        sides += " Where a level was accepted since, it takes the baseline's place."
    if (hint := common_shift(checked)) is not None:
        sides += f" {hint}"
    lines = [f"### {title(checked)}", "", sides]
    named = named_decisions(checked)
    for state, heading in _HEADINGS.items():
        decisions = [(text, decision) for text, decision in named if _outcome(decision) == state]
        if not decisions:
            continue
        table = [
            "| model | cell | measure | before | after | change | noise | processes | why |",
            "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
            *("| " + " | ".join(map(_in_table, _row(*one))) + " |" for one in decisions[:_SHOWN]),
        ]
        if len(decisions) > _SHOWN:
            table += ["", f"… and {len(decisions) - _SHOWN} more."]
        if state == "ok":
            table = [f"<details><summary>{heading} ({len(decisions)})</summary>", "", *table, "", "</details>"]
        else:
            table = [f"**{heading}**", "", *table]
        lines += ["", *table]
        if state == "regressed" and (step := next_step(checked.decisions, recorded=recorded)) is not None:
            lines += ["", step]
    return "\n".join(lines) + "\n"


def junit(checked: Check, *, recorded: bool) -> str:
    """Return a test case per decision: regressed fails, suspicious passes with a reason.

    Undecided is skipped, and an error where the whole check decides nothing, so that no CI server shows it as passed.
    """
    undecided = "error" if checked.exit_code == CANNOT_DECIDE else "skipped"
    cases = []
    for text, decision in named_decisions(checked):
        series = decision.series
        of_latency = decision.measure == "latency"
        name = quoteattr(_clean(text if of_latency else f"{text}, {measure_name(decision.measure)}"))
        classname = quoteattr(_clean(f"{series.model_id}.{series.hardware}"))
        message = _clean(describe_decision(decision))
        inside = {
            "regressed": f"<failure message={quoteattr(message)} type={quoteattr('regression')}>"
            f"{escape(next_step([decision], recorded=recorded) or '')}</failure>",
            "insufficient_data": f"<{undecided} message={quoteattr(message)}/>",
        }.get(decision.state, f"<system-out>{escape(f'{_words(_outcome(decision))}: {message}')}</system-out>")
        cases.append(f"    <testcase classname={classname} name={name}>{inside}</testcase>")
    of_kind = {"failure": checked.count("regressed"), undecided: checked.count("insufficient_data")}
    counts = (
        f'tests="{len(cases)}" failures="{of_kind["failure"]}"'
        f' errors="{of_kind.get("error", 0)}" skipped="{of_kind.get("skipped", 0)}"'
    )
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {counts}>\n  <testsuite name="accel regress" {counts}>'
    return "\n".join([head, *cases, "  </testsuite>", "</testsuites>", ""])


def named_decisions(checked: Check) -> list[tuple[str, Decision]]:
    """Return each decision with its configuration in words."""
    cells = distinct_cells([dict(decision.series) for decision in checked.decisions])
    return list(zip(cells, checked.decisions, strict=True))


def cell(row: Mapping[str, Any]) -> str:
    """Return the configuration of a row, with the fields of `MeasuredSeries`, in words without default values."""
    choice = f":{row['choice']}" if row["choice"] else ""
    return f"{row['hardware']}{choice}, {shape(row)}"


def distinct_cells(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each row's configuration in words, with the device's id where another device measured the same."""
    cells = [cell(row) for row in rows]
    devices: dict[tuple[str, str], set[str]] = {}
    for row, text in zip(rows, cells, strict=True):
        devices.setdefault((row["model_id"], text), set()).add(row["device_id"])
    return [
        f"{text}, {row['device_id']}" if len(devices[row["model_id"], text]) > 1 else text
        for row, text in zip(rows, cells, strict=True)
    ]


def with_cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, each with its configuration in words as `cell`."""
    return [{**row, "cell": text} for row, text in zip(rows, distinct_cells(rows), strict=True)]


def shape(row: Mapping[str, Any]) -> str:
    """Return the shape of a row in words, without the hardware."""
    size, weights = row.get("image_size"), row.get("weights_sha256")
    parts = [
        row["mode"] if row["mode"] != "inference" else None,
        f"{row['processes']} processes" if (row["processes"] or 1) > 1 else None,
        f"batch {row['batch_size']}" if row["batch_size"] is not None else "batch unknown",
        f"length {row['sequence_length']}" if row["sequence_length"] else None,
        f"{size:g} px" if size else None,
        row["precision"] or "precision unknown",
        f"weights {weights[:8]}" if weights else None,
    ]
    return ", ".join(part for part in parts if part)


def describe_decision(decision: Decision) -> str:
    """Return a decision's figures and reason in a sentence."""
    figures = None
    if decision.change_percent is not None:
        before, after = sides_in_words(vars(decision))
        figures = (
            f"{before} -> {after}, {decision.change_percent:+.1f} %"
            f" ({'' if decision.accepted else f'noise {_percent(decision.noise_percent)}, '}"
            f"{decision.processes_before} against {count_of(decision.processes_after, 'process')})"
        )
    return "; ".join(part for part in (figures, why(decision)) if part)


def why(decision: Decision) -> str:
    """Return a decision's reason, the number of processes that would settle it, and of those left out."""
    needed, there = decision.processes_needed, min(decision.processes_before, decision.processes_after)
    more = None
    if needed and needed > there:
        few = needed <= MAX_PROCESSES_NEEDED
        more = f"{needed} processes a side would tell" if few else "more processes would hardly tell here"
    left_out = f"{decision.left_out} failed or in doubt, left out" if decision.left_out else None
    return "; ".join(part for part in (decision.reason, more, left_out) if part)


def _row(text: str, decision: Decision) -> list[str]:
    change = decision.change_percent
    return [
        decision.series.model_id,
        text,
        measure_name(decision.measure),
        *sides_in_words(vars(decision)),
        "" if change is None else f"{change:+.1f} %",
        "" if decision.accepted else _percent(decision.noise_percent),
        f"{decision.processes_before} / {decision.processes_after}",
        why(decision),
    ]


def measure_name(measure: str) -> str:
    """Return what a measure is called in texts."""
    return measure.replace("_", " ")


def sides_in_words(shift: Mapping[str, Any]) -> tuple[str, str]:
    """Return the figures before and after with their unit; "fails" where there is none as all failed, "" if unknown.

    `shift` has the fields of a decision or a recorded shift.
    """
    unit = "mib" if shift["before_mib"] is not None else "ms"
    before, after = shift[f"before_{unit}"], shift[f"after_{unit}"]
    known = before is not None or after is not None
    words = [
        f"{rounded(value, 4)} {'MiB' if unit == 'mib' else 'ms'}" if value is not None else "fails" if known else ""
        for value in (before, after)
    ]
    return words[0], words[1]


def short_shift(shift: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a shift as tables on a terminal show them."""
    before, after = sides_in_words(shift)
    return {
        "measure": measure_name(shift["measure"]),
        "before": before or None,
        "after": after or None,
        "change_percent": shift["change_percent"],
    }


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"±{value:.1f} %"


def _outcome(decision: Decision) -> Outcome:
    return "accepted" if decision.accepted else decision.state


def _words(state: str) -> str:
    return {"ok": "unchanged", "insufficient_data": "not decided"}.get(state, state)


def _in_table(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _clean(text: str) -> str:
    """Remove characters that XML cannot represent."""
    return _NOT_XML.sub("", text)
