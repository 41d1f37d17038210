"""Traces of a forward pass on the meta device, whose tensors have shapes and no values.

`ComputedOperators` reports each ATen operator that computes something. `FusedOperators` reports, before they are split
into such, the operators that every runtime fuses: attention, and products by experts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_ATEN = torch.ops.aten
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_PRODUCTS_BY_EXPERTS = (torch.nn.functional.grouped_mm, torch._grouped_mm)
_TRACING = threading.Lock()
"""torch's FLOP counter hooks into every module of the process, so two threads may not trace at once."""


def trace(model: Any, inputs: Mapping[str, Any], *modes: AbstractContextManager[Any]) -> None:
    """Run a model on the meta device under these modes, of which the last sees each call first."""
    with _TRACING, torch.no_grad(), torch.device("meta"), ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        model(**inputs)


class ComputedOperators(TorchDispatchMode):
    """Mode that reports the ATen operators of a pass, without views, which compute nothing.

    `report` takes the operator's name, its arguments by position and by name, and its output.
    """

    def __init__(self, report: Callable[[str, Any, dict[str, Any], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report
        self._any = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ATEN._local_scalar_dense.default and args[0].dtype == torch.bool:
            # A meta tensor has no values, but transformers asks for some: is this mask all ones, is nothing packed, is
            # any token masked or global? For our inputs the first two are so, and the last is not.
            return args[0] not in self._any
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is _ATEN.any:
            self._any[out] = True
        if not (func.is_view or func is _ATEN._unsafe_view.default):
            self._report(func.overloadpacket.__name__, args, kwargs or {}, out)
        return out


class FusedOperators(TorchFunctionMode):
    """Mode that computes attention, and products by experts, as one operator each, as every runtime does.

    The meta device would split attention, and it computes products by experts in bfloat16 alone.
    """

    def __init__(
        self, attention: Callable[[Any, Any, Any, bool], Any], product_by_experts: Callable[[Any, Any, Any], None]
    ) -> None:
        """Take two functions.

        Parameters
        ----------
        attention
            Takes queries, keys, values and whether it is causal, and returns a tensor of the output's shape.
        product_by_experts
            Takes tokens, the experts' weights and the output; each token meets one expert.
        """
        super().__init__()
        self._attention, self._product_by_experts = attention, product_by_experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS_BY_EXPERTS:
            tokens, weights = args[0], args[1]
            out = tokens.new_empty((tokens.shape[0], weights.shape[-1]))
            self._product_by_experts(tokens, weights, out)
            return out
        if func is _ATTENTION:
            query, key, value = _operands(*args, **(kwargs or {}))
            return self._attention(query, key, value, bool((kwargs or {}).get("is_causal")))
        if func is torch.tensor and type(args[0]) is int:
            # DeBERTa takes slices at such numbers, so they need their values.
            return func(*args, **{"device": "cpu", **(kwargs or {})})
        return func(*args, **(kwargs or {}))


def _operands(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
    return query, key, value
