"""Output of the figures of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

Figure = dict[str, object]
"""Name, value, bound to reach and details of a figure: `what`, `got`, `reach` and `detail`."""


def tell(figures: Iterable[Mapping[str, object]], *, for_machines: bool) -> None:
    """Print the figures as JSON, or one line each: name, value, bound to reach and details."""
    if for_machines:
        print(json.dumps(list(figures), indent=2))
        return
    for figure in figures:
        print(f"{figure['what']}: {figure['got']} (reach {figure['reach']}; {figure['detail']})")
