"""JSON documents in xz files, as fitted predictors ship."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any


def write_packed(content: Any, path: Path) -> None:
    """Write a document; equal ones give equal bytes."""
    path.write_bytes(lzma.compress(json.dumps(content, sort_keys=True).encode(), preset=9))


def read_packed(path: Path) -> Any:
    """Read a document that `write_packed` wrote."""
    return json.loads(lzma.decompress(path.read_bytes()))
