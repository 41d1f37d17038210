"""Body of the old skill tests, which several formats contain: keys, examples and times of each hardware.

A body is nested (`status`, `examples`, `metadata`) or flat (`cpu_init`, `cuda_output_example`, `cuda_generation_time`).
Its seconds are those of one call. An outcome text that begins with an error is a failure, whatever the label beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accel_platform.events.types import Hardware, Status
from migrations.normalize.canonical_names import hardware_named, hardware_of_key, model_of_script
from migrations.normalize.field_aliases import unread_figures
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Part, Remark, child, refuse
from migrations.normalize.timings import Timing, operation_time, timing_in
from migrations.normalize.units import number
from migrations.normalize.unread_figures import refuse_figures
from migrations.sources.documents import Document

_CHECKED = re.compile(r"_(init|tests?|handler|error|platform)$")
_FAILURE = re.compile(r"\W*(errors?\b|fail|exception|traceback|invalid\b|missing\b)", re.IGNORECASE)
_ABSENT = re.compile(r"\bnot (available|installed|supported|tested)\b|\bunavailable\b", re.IGNORECASE)
_SUCCESS = re.compile(r"\W*(success|valid|real|mock|ready|passed|ok)\b", re.IGNORECASE)
_SOFTWARE = re.compile(r"(torch|transformers|numpy|python|openvino|onnxruntime|cuda)_version")
_MODEL_KEYS = ("model_name", "test_model", "model", "best_model", "model_id")
_WHEN_KEYS = ("test_timestamp", "timestamp", "test_date")
_NO_MODEL = {"unknown", "none", ""}


def is_body(value: Any) -> bool:
    """Return whether this is the body of a skill test, nested or flat."""
    if not isinstance(value, dict):
        return False
    status = value.get("status")
    if isinstance(status, dict):
        return _is_status(status) or "test_error" in status
    return _is_status(value)


def _is_status(value: Mapping[str, Any]) -> bool:
    checked = [key for key in value if hardware_of_key(key) and _CHECKED.search(str(key))]
    named = [key for key in value if hardware_of_key(key) == str(key).casefold()]
    return bool(checked) or (bool(named) and len(named) == len(value) and all(isinstance(value[k], str) for k in named))


def read_body(
    document: Document, pointer: str, body: Any, models: tuple[Any, ...], times: tuple[Any, ...]
) -> list[Part]:
    """Return every part of a body at `pointer`; `models` and `times` of the document around are tried last."""
    if not isinstance(body, dict):
        return [_homeless(pointer, body)]
    nested = isinstance(body.get("status"), dict)
    metadata = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    own = [source.get(key) for source in (metadata, body) for key in _MODEL_KEYS]
    names = [name for name in (*own, *models, model_of_script(document.source_path)) if _names(name)]
    whole = CellDraft(
        document.source_path,
        pointer,
        NamesInFile(names, None),
        times=(*(metadata.get(key) for key in _WHEN_KEYS), *times),
        machine=_machine(metadata, body["status"] if nested else body),
        original={"model_type": metadata.get("model_type")},
    )
    status = body["status"] if nested else {k: v for k, v in body.items() if k != "metadata"}
    parts: list[Part] = []
    examples = body.get("examples")
    for index, example in enumerate(examples if isinstance(examples, list) else ()):
        where = child(child(pointer, "examples"), index)
        hardware = hardware_named(example.get("platform")) if isinstance(example, dict) else None
        if hardware is None:
            parts.append(refuse(where, "hardware_unknown", "the example names no hardware", example))
        elif (part := _example(replace(whole, pointer=where), example["platform"], example)) is not None:
            parts.append(part)
    at = child(pointer, "status") if nested else pointer
    for spoken, entries in _by_hardware(status).items():
        parts += _Hardware(replace(whole, pointer=at), spoken, entries, parts).read()
    for where, source, key in ((at, status, "test_error"), (pointer, body, "error")):
        if source.get(key) and not (parts and key == "error"):
            parts.append(_homeless(child(where, key), {"error": source[key], "traceback": metadata.get("traceback")}))
    return parts


def _homeless(pointer: str, content: Any) -> Part:
    """Return a failure of the whole test as a refused part, because a result needs one hardware."""
    message = content.get("error", "") if isinstance(content, dict) else content
    return refuse(
        pointer, "failure_without_hardware", f"a failure that names no hardware: {str(message)[:200]}", content
    )


def _names(name: Any) -> bool:
    return isinstance(name, str) and name.strip().casefold() not in _NO_MODEL


def _by_hardware(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of each hardware, by the file's word for it."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in status.items():
        if hardware_of_key(key) is not None:
            found.setdefault(str(key).partition("_")[0], {})[key] = value
    return found


@dataclass
class _Hardware:
    """Keys of a body about one hardware. `before` are the parts from its examples."""

    whole: CellDraft
    spoken: str
    entries: Mapping[str, Any]
    before: list[Part]
    parts: list[Part] = field(default_factory=list)
    result_stated: bool = False

    def read(self) -> list[Part]:
        """Return timed objects, loose times, then failures; one success without figures where nothing else is."""
        pointers = {part.pointer: part for part in self.before if not isinstance(part, Remark)}
        hardware = hardware_of_key(self.spoken)
        self.result_stated = any(
            getattr(getattr(part, "result", None), "hardware", None) == hardware for part in pointers.values()
        )
        outputs = set()
        for key, value in self.entries.items():
            if isinstance(value, dict):
                outputs.add(str(value.get("output")))
                self._add(_example(self._at(key), self.spoken, value))
        self._loose_times()
        for key, value in self.entries.items():
            if isinstance(value, str) and value not in outputs:
                self._outcome(key, value)
        success = next((k for k, v in self.entries.items() if isinstance(v, str) and _SUCCESS.match(v)), None)
        if success is not None and not self.result_stated:
            self._add(self._at(success).result("ok", {}))
        return self.parts

    def _at(self, key: str) -> CellDraft:
        named = replace(
            self.whole.named, hardware=self.spoken if hardware_named(self.spoken) else hardware_of_key(self.spoken)
        )
        times = (self.entries.get(f"{self.spoken}_timestamp"), *self.whole.times)
        original = {
            **self.whole.original,
            "key": key,
            "said": self.entries[key] if isinstance(self.entries[key], str) else None,
        }
        return replace(self.whole, pointer=child(self.whole.pointer, key), named=named, times=times, original=original)

    def _add(self, part: Part | None) -> None:
        if part is not None:
            self.parts.append(part)
            self.result_stated = True

    def _outcome(self, key: str, text: str) -> None:
        failing, absent = _FAILURE.match(text), _ABSENT.search(text) and not _SUCCESS.match(text)
        if failing or absent:
            status: Status = "failed" if failing else "unavailable"
            self._add(self._at(key).result(status, {}, reason=f"{key}: {text.strip()}"))

    def _loose_times(self) -> None:
        """Read times under keys of their own (`cuda_generation_time`), unless an object says the same."""
        known = {str(value) for entry in self.entries.values() if isinstance(entry, dict) for value in _leaves(entry)}
        numbers = {k: v for k, v in self.entries.items() if number(v) is not None and not _is_time_or_shape(k)}
        plain = {k.partition("_")[2]: v for k, v in numbers.items() if str(v) not in known}
        if (timing := timing_in(plain)) is not None:
            self._add(_with_timing(self._at(f"{self.spoken}_{timing.key}"), timing))
        for name, value in plain.items():
            if name.endswith("_time") and timing_in({name: value}) is None:
                self._add(_with_timing(self._at(f"{self.spoken}_{name}"), operation_time(name, value)))


def _example(cell: CellDraft, spoken: Any, example: Mapping[str, Any]) -> Part | None:
    """Return the result of one call; None for one that is neither timed nor failed."""
    output = example.get("output")
    text = output if isinstance(output, str) else _first_text(output) if isinstance(output, dict) else None
    hardware = spoken if hardware_named(spoken) else hardware_of_key(spoken)
    original = {
        **cell.original,
        "test_type": example.get("test_type"),
        "implementation_type": example.get("implementation_type") or example.get("implementation"),
        "said": text,
    }
    times = (example.get("timestamp"), *cell.times)
    cell = replace(cell, named=replace(cell.named, hardware=hardware), times=times, original=original)
    timing = timing_in(example)
    error = text.strip() if text is not None and _FAILURE.match(text) else example.get("error")
    if error:
        # How long it took to fail is no latency.
        took = {} if timing is None else {**timing.stated, timing.key: example.get(timing.key)}
        return replace(cell, original={**original, "stated": took}).result("failed", {}, reason=str(error))
    if timing is None and (unread := unread_figures(example)):
        return refuse_figures(cell.pointer, unread, example, is_result=False)
    return _with_timing(cell, timing)


def _with_timing(cell: CellDraft, timing: Timing | None) -> Part | None:
    if timing is None:
        return None
    cell = replace(cell, original={**cell.original, "stated": timing.stated})
    return cell.result("ok", timing.figures, units=timing.units)


def _first_text(output: Mapping[str, Any]) -> str | None:
    return next(
        (output[k] for k in ("generated_text", "text", "output", "error") if isinstance(output.get(k), str)), None
    )


def _is_time_or_shape(key: str) -> bool:
    return key.endswith(("timestamp", "_shape"))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for member in value.values():
            yield from _leaves(member)
    else:
        yield value


def _machine(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> Machine:
    """Return versions from the metadata, and the GPU's name from any CUDA key that says it."""
    software = {key: str(text) for key, text in metadata.items() if _SOFTWARE.fullmatch(str(key)) and text}
    names: dict[Hardware, str] = {}
    for section in (status.get("cuda_capabilities"), status.get("cuda_benchmark")):
        for key in ("device_name", "cuda_device"):
            if isinstance(section, dict) and isinstance(section.get(key), str):
                names["cuda"] = section[key]
    return Machine(device_names=names, software=software)
