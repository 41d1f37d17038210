"""How benchmarks tell their figures. What is measured is in each of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping


def tell(figures: Iterable[Mapping[str, object]], *, for_machines: bool) -> None:
    """Print them as JSON, or a line each: what, what was got, the reach and the details."""
    if for_machines:
        print(json.dumps(list(figures), indent=2))
        return
    for figure in figures:
        print(f"{figure['what']}: {figure['got']} (reach {figure['reach']}; {figure['detail']})")
