"""Functionality checks: whether a model's test script ended with exit code 0 on a hardware. No figure is measured.

Success means only that the script ended. Its output stays with the row, because it often says that all was mocked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.record_builder import CellDraft, NamesInFile, status_of
from migrations.normalize.records import NoResult, Part, child, refuse
from migrations.sources.documents import Document

_ENTRY = {"model", "hardware", "success"}


def detect(document: Document) -> float:
    """Return high confidence where detailed results name model, hardware and success, or model results are true and
    false by hardware.
    """
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    details, results = value.get("detailed_results"), value.get("model_results")
    if isinstance(details, list) and any(isinstance(e, dict) and e.keys() >= _ENTRY for e in details):
        return 0.95
    if isinstance(results, dict) and isinstance(value.get("stats"), dict):
        return 0.85 if all(isinstance(by_hardware, dict) for by_hardware in results.values()) else 0.0
    return 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per model and hardware: from the details, else from the bare true or false."""
    value = document.value
    stats = value["stats"] if isinstance(value.get("stats"), dict) else {}
    when = (stats.get("timestamp"), value.get("timestamp"))
    recorded = set()
    details = value.get("detailed_results")
    for index, entry in enumerate(details if isinstance(details, list) else ()):
        where = child("/detailed_results", index)
        if not isinstance(entry, dict):
            yield refuse(where, "unexpected_shape", "an object was expected", entry)
            continue
        recorded.add((str(entry.get("model")), str(entry.get("hardware"))))
        yield _record(document, where, entry.get("model"), entry.get("hardware"), entry, when)
    results = value.get("model_results")
    for model, by_hardware in results.items() if isinstance(results, dict) else ():
        at = child("/model_results", model)
        if not isinstance(by_hardware, dict):
            yield refuse(at, "unexpected_shape", "an object was expected", by_hardware)
            continue
        for hardware, success in by_hardware.items():
            if (model, hardware) not in recorded:
                where = child(at, hardware)
                entry = success if isinstance(success, dict) else {"success": success}
                yield _record(document, where, model, hardware, entry, when)
    if not recorded and not results:
        yield NoResult("", "a functionality check of no model")


def _record(
    document: Document, where: str, model: Any, hardware: Any, entry: dict[str, Any], when: tuple[Any, ...]
) -> Part:
    fields = ("return_code", "stdout", "stderr", "command", "elapsed_time", "error_type")
    cell = CellDraft(
        document.source_path,
        where,
        NamesInFile((model,), hardware),
        times=(entry.get("timestamp"), *when),
        original={key: entry.get(key) for key in fields},
    )
    if status_of(entry.get("success")) == "ok":
        return cell.result("ok", {})
    return cell.result("timeout" if entry.get("timeout") is True else "failed", {}, reason=_reason(entry))


def _reason(entry: dict[str, Any]) -> str:
    """Return the file's message, else the last line of the script's error output."""
    message = entry.get("error") or entry.get("error_message")
    if isinstance(message, str) and message.strip():
        return message.strip()
    lines = str(entry.get("stderr") or entry.get("stdout") or "").strip().splitlines()
    if lines:
        return lines[-1].strip()
    code = entry.get("return_code")
    return f"the script ended with exit code {code}" if code is not None else "the file says it failed, and no more"
