"""Encodings of text that is not UTF-8."""

from __future__ import annotations

_LOOKED_AT = 65_536
_LEAST_ASCII = 0.9
_LEAST_NUL = 0.9
_PRINTABLE = bytes((*range(32, 127), 9, 10, 13))
_UNDEFINED = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
"""Bytes that Windows-1252 has no character for."""


def decoded(raw: bytes) -> str:
    """Return the text with normalized line ends. Raises UnicodeDecodeError."""
    text = raw.decode(_encoding(raw) or "utf-8-sig")
    return text if "\n" in text else text.replace("\r", "\n")


def _encoding(raw: bytes) -> str | None:
    """Return the encoding to decode by; None where none fits.

    UTF-16 has a mark, or a NUL in every other byte, as Windows tools write it. Other bytes, nearly all ASCII, are
    Windows-1252: usually a name with an accent or a trade mark (`Xeon®`).
    """
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    begin = raw[:_LOOKED_AT]
    if b"\0" in raw:
        return _with_nul(begin)
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        mostly_ascii = len(begin.translate(None, _PRINTABLE)) <= (1 - _LEAST_ASCII) * len(begin)
        return "cp1252" if mostly_ascii and not _UNDEFINED.intersection(raw) else None
    return "utf-8-sig"


def _with_nul(begin: bytes) -> str | None:
    half = len(begin) / 2
    if begin[1::2].count(0) >= _LEAST_NUL * half and begin[::2].count(0) == 0:
        return "utf-16-le"
    if begin[::2].count(0) >= _LEAST_NUL * half and begin[1::2].count(0) == 0:
        return "utf-16-be"
    return "utf-8-sig"
