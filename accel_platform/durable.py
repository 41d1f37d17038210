"""Small files that survive a crash: the old content or the new one, never half of it. What they hold is not known."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace the file's content, on disk when this returns. Raises OSError."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}.new")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
