"""In which number format a torch model multiplies: its dispatched operators, counted during one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel_platform.backends.base import share

_PRODUCTS = frozenset(
    (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "linear",
        "matmul",
        "convolution",
        "_convolution",
        "mkldnn_linear",
        "_grouped_mm",
        "_int_mm",
    )
)
_ATTENTION = "_scaled_dot_product"


def precision_share(forward: Callable[[], Any], precision: str) -> float | None:
    """Return the share of products in one call of `forward` whose operands have the precision; int8 ones are
    quantized.
    """
    counts: Counter[bool] = Counter()

    class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            namespace, _, name = func.name().partition("::")
            name = name.partition(".")[0]
            if namespace == "quantized" and name.startswith(("linear", "conv", "matmul")):
                counts[precision == "int8"] += 1
            elif namespace == "aten" and (name in _PRODUCTS or name.startswith(_ATTENTION)):
                operand = next(value for value in args if isinstance(value, torch.Tensor))
                counts[str(operand.dtype) == f"torch.{precision}"] += 1
            return func(*args, **(kwargs or {}))

    # Under inference_mode composite operators would come whole, products and all.
    with torch.no_grad(), Products():  # type: ignore[no-untyped-call]
        forward()
    return share(counts)
