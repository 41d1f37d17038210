"""Classification of exceptions and dead processes into failure classes with a message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from accel_platform.backends.base import Unsupported

_CLASSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "out_of_memory",
        ("out of memory", "bad_alloc", "bad allocation", "can't allocate", "failed to allocate", "alloc_failed"),
    ),
    ("attention", ("scaled_dot_product", "attn_implementation", "flash_attention")),
    (
        "unsupported_operator",
        (
            "unsupported",
            "not supported",
            "not implemented",
            "not_implemented",
            "no kernel",
            "cannot convert",
            "no onnx",
            "does not support",
            "no conversion rule",
            "no op registered",
        ),
    ),
    ("invalid_model", ("invalid_graph", "invalid_protobuf", "load model from", "unable to read the model")),
)
_COLOR = re.compile(r"\x1b\[\d*m")
_MAX_MESSAGE_CHARS = 500
"""Characters kept of a message: some runtimes answer with their whole graph."""


@dataclass(frozen=True)
class FailureReason:
    """The reason that a cell has no measurement."""

    status: Literal["failed", "timeout"]
    failure_class: str
    reason: str


def classify(error: BaseException) -> tuple[str, str]:
    """Return failure class and message of an exception: its own class, a known one, else `error`."""
    # torch's exporter prints general advice before the error.
    words = str(error).rpartition("## Exception summary")[2]
    text = " ".join(_COLOR.sub("", words).split())
    message = f"{type(error).__name__}: {text}"[:_MAX_MESSAGE_CHARS]
    named = getattr(error, "failure_class", None)
    if isinstance(named, str):
        return named, message
    if isinstance(error, MemoryError):
        return "out_of_memory", message
    if isinstance(error, NotImplementedError | Unsupported):
        return "unsupported_operator", message
    lowered = text.casefold()
    for name, signs in _CLASSES:
        if any(sign in lowered for sign in signs):
            return name, message
    return "error", message


def device_lost(error: BaseException) -> bool:
    """Return whether the process cannot use its GPU after this error: a fault in a kernel fails all later calls.

    Memory that ran out is no such error.
    """
    named = type(error).__name__ == "AcceleratorError" or re.search(r"\b(CUDA|HIP) error: ", str(error)) is not None
    return named and classify(error)[0] != "out_of_memory"


def classify_death(epitaph: str) -> str:
    """Return the failure class of a process that ended: the kernel sends SIGKILL when memory runs out.

    Native code that gets no memory ends the process itself, with a last message.
    """
    if "SIGKILL" in epitaph:
        return "killed"
    lowered = epitaph.casefold()
    return "out_of_memory" if any(sign in lowered for sign in dict(_CLASSES)["out_of_memory"]) else "crash"
