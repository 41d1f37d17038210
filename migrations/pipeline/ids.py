"""Event ids that follow from content: the same document gives the same events, whoever imports it and however often.

The warehouse counts an event id once, so an import that was killed and repeated, or two at once, double nothing.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from uuid import UUID

_NUMBER_BITS = 36


def numbered_id(of: str, number: int = 0) -> UUID:
    """Return the id of the numbered event of something: a UUID version 8 (RFC 9562).

    It holds 86 bits of the SHA-256 of `of` and, last, the number below 2^36, so ids of one document differ in few bytes
    and compress well.
    """
    return UUID(int=_base(of) | number)


@lru_cache(maxsize=64)
def _base(of: str) -> int:
    digest = int.from_bytes(hashlib.sha256(of.encode()).digest()[:16], "big")
    return digest >> _NUMBER_BITS << _NUMBER_BITS & ~(0xF << 76) & ~(0x3 << 62) | 8 << 76 | 2 << 62
