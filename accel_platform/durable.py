"""Small files that survive a crash: the old content or the new one, never half of it. What they hold is not known."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Replace the file's content, on disk when this returns; `mode` less the umask is who may read it. Raises
    OSError."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
