"""Table of ATen operators in terms of jax.numpy and lax.

Signatures are ATen's without storage arguments (device, layout). Operators with several results give only those that
inference reads.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from accel_platform.backends.base import Unsupported

Array = jax.Array

DTYPES: dict[str, Any] = {
    "float64": jnp.float32,
    "float32": jnp.float32,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
    "int64": jnp.int32,
    "int32": jnp.int32,
    "int16": jnp.int16,
    "int8": jnp.int8,
    "uint8": jnp.uint8,
    "bool": jnp.bool_,
}
"""torch's dtypes in JAX without 64-bit types."""


def _same(x: Array, *_: Any, **__: Any) -> Array:
    return x


OPERATORS: dict[str, Callable[..., Any]] = {
    "operator.getitem": operator.getitem,
    "operator.add": operator.add,
    "operator.sub": operator.sub,
    "operator.mul": operator.mul,
    "operator.floordiv": operator.floordiv,
    "operator.mod": operator.mod,
    "operator.neg": operator.neg,
    "aten.sym_size.int": lambda x, dim: x.shape[dim],
    "aten.clone.default": _same,
    "aten.alias.default": _same,
    "aten.detach.default": _same,
    "aten.lift_fresh_copy.default": _same,
    "aten.contiguous.default": _same,
    "aten.dropout.default": _same,
    "aten.view.default": jnp.reshape,
    "aten._unsafe_view.default": jnp.reshape,
    "aten.reshape.default": jnp.reshape,
    "aten.permute.default": jnp.transpose,
    "aten.repeat.default": jnp.tile,
    "aten.unsqueeze.default": jnp.expand_dims,
    "aten.squeeze.dim": lambda x, dim: jnp.squeeze(x, dim) if x.shape[dim] == 1 else x,
    "aten.squeeze.dims": lambda x, dims: jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1)),
    "aten.flip.default": jnp.flip,
    "aten.cat.default": lambda xs, dim=0: jnp.concatenate([x for x in xs if x.shape != (0,)], dim),
    "aten.stack.default": jnp.stack,
    "aten.roll.default": lambda x, shifts, dims: jnp.roll(x, tuple(shifts), tuple(dims)),
    "aten.embedding.default": lambda weight, index, *_: weight[index],
    "aten.where.self": jnp.where,
    "aten.cumsum.default": lambda x, dim, dtype=None: jnp.cumsum(x, dim, dtype=dtype),
    "aten._to_copy.default": lambda x, dtype=None: x if dtype is None else x.astype(dtype),
    "aten.mm.default": jnp.matmul,
    "aten.bmm.default": jnp.matmul,
    "aten.addmm.default": lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
    "aten.baddbmm.default": lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
    "aten._softmax.default": lambda x, dim, _half: jax.nn.softmax(x, dim),
    "aten._log_softmax.default": lambda x, dim, _half: jax.nn.log_softmax(x, dim),
    "aten.gelu.default": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "aten.hardtanh.default": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "aten.leaky_relu.default": lambda x, slope=0.01: jnp.where(x > 0, x, x * slope),
    "aten.clamp.default": lambda x, low=None, high=None: jnp.clip(x, low, high),
    "aten.clamp_min.default": jnp.maximum,
    "aten.clamp_max.default": jnp.minimum,
    "aten.scalar_tensor.default": lambda value, dtype=jnp.float32: jnp.asarray(value, dtype),
    "aten.full.default": lambda size, value, dtype=None: jnp.full(size, value, dtype),
    "aten.full_like.default": lambda x, value, dtype=None: jnp.full(x.shape, value, dtype or x.dtype),
    "aten.zeros_like.default": lambda x, dtype=None: jnp.zeros(x.shape, dtype or x.dtype),
    "aten.ones_like.default": lambda x, dtype=None: jnp.ones(x.shape, dtype or x.dtype),
    "aten.any.default": jnp.any,
    "aten.any.dim": lambda x, dim, keepdim=False: jnp.any(x, dim, keepdims=keepdim),
    "aten.argmax.default": lambda x, dim=None, keepdim=False: jnp.argmax(x, dim, keepdims=keepdim),
    "aten.max.dim": lambda x, dim, keepdim=False: (
        jnp.max(x, dim, keepdims=keepdim),
        jnp.argmax(x, dim, keepdims=keepdim),
    ),
}

_UNARY: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "bitwise_not": jnp.bitwise_not,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "erf": lax.erf,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "logical_not": jnp.logical_not,
    "neg": jnp.negative,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "round": jnp.round,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    # torch gives a NaN no sign.
    "sign": lambda x: jnp.where(jnp.isnan(x), 0, jnp.sign(x)),
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sqrt": jnp.sqrt,
    "tanh": jnp.tanh,
}
OPERATORS |= {f"aten.{name}.default": function for name, function in _UNARY.items()}

_BINARY: dict[str, Callable[..., Any]] = {
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "div": jnp.true_divide,
    "eq": jnp.equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "lt": jnp.less,
    "mul": jnp.multiply,
    "ne": jnp.not_equal,
    "remainder": jnp.remainder,
}
for _kind in ("Tensor", "Scalar"):
    OPERATORS |= {f"aten.{name}.{_kind}": function for name, function in _BINARY.items()}
    OPERATORS[f"aten.add.{_kind}"] = lambda x, y, alpha=1: x + (y if alpha == 1 else alpha * y)
    OPERATORS[f"aten.sub.{_kind}"] = lambda x, y, alpha=1: x - (y if alpha == 1 else alpha * y)
OPERATORS |= {
    "aten.logical_and.default": jnp.logical_and,
    "aten.logical_or.default": jnp.logical_or,
    "aten.maximum.default": jnp.maximum,
    "aten.minimum.default": jnp.minimum,
    "aten.pow.Tensor_Scalar": jnp.power,
    "aten.pow.Tensor_Tensor": jnp.power,
    "aten.pow.Scalar": jnp.power,
}


def _translates(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update({f"aten.{name}": function for name in names})
        return function

    return register


def _reduction(reduce: Callable[..., Array]) -> Callable[..., Array]:
    """Return ATen's form of a reduction: no dimension, or an empty list of them, means all."""

    def function(x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None) -> Array:
        x = x if dtype is None else x.astype(dtype)
        return reduce(x, axis=tuple(dim) if dim else None, keepdims=keepdim)

    return function


OPERATORS |= {
    "aten.mean.dim": _reduction(jnp.mean),
    "aten.sum.dim_IntList": _reduction(jnp.sum),
    "aten.amax.default": _reduction(jnp.max),
    "aten.amin.default": _reduction(jnp.min),
    "aten.any.dims": _reduction(jnp.any),
}


@_translates("var.correction")
def _var(x: Array, dim: Sequence[int] | None = None, correction: float = 1, keepdim: bool = False) -> Array:
    return jnp.var(x, tuple(dim) if dim else None, ddof=correction, keepdims=keepdim)  # type: ignore[arg-type]


@_translates("div.Tensor_mode", "div.Scalar_mode")
def _div(x: Array, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    quotient = jnp.true_divide(x, y)
    if rounding_mode is None:
        return quotient
    return jnp.trunc(quotient).astype(jnp.result_type(x, y))


@_translates("arange.default", "arange.start", "arange.start_step")
def _arange(start: float, end: float | None = None, step: float = 1, dtype: Any = None) -> Array:
    return jnp.arange(start, end, step, dtype)


@_translates("expand.default")
def _expand(x: Array, size: Sequence[int]) -> Array:
    own = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [have if want == -1 else want for have, want in zip(own, size, strict=True)])


@_translates("slice.Tensor")
def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[_at(x, dim, slice(start, end, step))]


@_translates("select.int")
def _select(x: Array, dim: int, index: int) -> Array:
    return x[_at(x, dim, index)]


@_translates("split_with_sizes.default")
def _split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [x[_at(x, dim, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)]


@_translates("index.Tensor")
def _index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[tuple(slice(None) if index is None else index for index in indices)]


@_translates("gather.default")
def _gather(x: Array, dim: int, index: Array) -> Array:
    # ATen lets the index be shorter than x in the other dimensions; NumPy would broadcast.
    dim %= x.ndim
    slices = tuple(slice(None) if axis == dim else slice(length) for axis, length in enumerate(index.shape))
    return jnp.take_along_axis(x[slices], index, dim)


@_translates("index_select.default")
def _index_select(x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, dim, mode="clip")


@_translates("constant_pad_nd.default")
def _pad(x: Array, pad: Sequence[int], value: float = 0) -> Array:
    """Pad by pairs from the last dimension on; a negative pair crops."""
    pairs = [(0, 0, 0)] * (x.ndim - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1], 0) for i in reversed(range(0, len(pad), 2))]
    return lax.pad(x, jnp.asarray(value, x.dtype), pairs)


@_translates("convolution.default")
def _convolution(  # noqa: PLR0917 - ATen's own signature
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    spatial = x.ndim - 2
    stride, padding, dilation = (tuple(v) * (spatial if len(v) == 1 else 1) for v in (stride, padding, dilation))
    pads = [(p, p) for p in padding]
    spread = (1,) * spatial
    if transposed:
        # The gradient of a convolution: the input is spread by the stride and the kernel turned round.
        extra = tuple(output_padding) * (spatial if len(output_padding) == 1 else 1)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)]
        inputs, outputs, *kernel = weight.shape
        weight = jnp.flip(weight, range(2, weight.ndim)).reshape(groups, inputs // groups, outputs, *kernel)
        weight = jnp.swapaxes(weight, 1, 2).reshape(groups * outputs, inputs // groups, *kernel)
        stride, spread = spread, stride
    out = lax.conv_general_dilated(
        x, weight, stride, pads, lhs_dilation=spread, rhs_dilation=dilation, feature_group_count=groups
    )
    return out if bias is None else out + bias.reshape(-1, *(1,) * spatial)


@_translates("max_pool2d_with_indices.default")
def _max_pool2d(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Array]:
    size, step, pads, _, dilation = _window(x, kernel, stride, padding, dilation, ceil_mode)
    return (lax.reduce_window(x, -jnp.inf, lax.max, size, step, pads, window_dilation=dilation),)


@_translates("avg_pool1d.default", "avg_pool2d.default")
def _avg_pool(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    size, step, pads, area, _ = _window(x, kernel, stride, padding, (1,), ceil_mode)
    total: Array = lax.reduce_window(x, 0.0, lax.add, size, step, pads)
    if divisor_override is not None or count_include_pad:
        return total / (divisor_override or area)
    counts: Array = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, size, step, pads)
    return total / counts


@_translates("native_layer_norm.default")
def _layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, epsilon: float
) -> tuple[Array]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    return (_affine(_normalized(x, axes, epsilon), weight, bias),)


@_translates("native_group_norm.default")
def _group_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    items: int,
    channels: int,
    positions: int,
    groups: int,
    epsilon: float,
) -> tuple[Array]:
    grouped = x.reshape(items, groups, channels // groups * positions)
    column = (channels, *(1,) * (x.ndim - 2))
    parts = (None if part is None else part.reshape(column) for part in (weight, bias))
    return (_affine(_normalized(grouped, (-1,), epsilon).reshape(x.shape), *parts),)


@_translates("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    _momentum: float,
    epsilon: float,
) -> tuple[Array]:
    column = (-1, *(1,) * (x.ndim - 2))
    scale = lax.rsqrt(variance + epsilon) * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * scale
    return (x * scale.reshape(column) + shift.reshape(column),)


@_translates("scaled_dot_product_attention.default")
def _attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    _dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = jnp.repeat(key, repeats, -3), jnp.repeat(value, repeats, -3)
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ jnp.swapaxes(key, -1, -2)
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is None:
        return jax.nn.softmax(scores) @ value
    if mask.dtype != jnp.bool_:
        return jax.nn.softmax(scores + mask) @ value
    # A row that may look at nothing gives zeros, as in torch.
    return jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), 0) @ value


def _at(x: Array, dim: int, index: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * (dim % x.ndim), index)


def _normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centered = x - x.mean(axes, keepdims=True)
    return centered * lax.rsqrt((centered**2).mean(axes, keepdims=True) + epsilon)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _window(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Any, Any, Any, int, Any]:
    """Return window, step, padding, area and dilation over all dimensions of x; ATen names only the last ones."""
    if ceil_mode:
        raise Unsupported("Not supported: pooling with ceil_mode has no translation here.")
    count = x.ndim - 2
    sizes, steps, pads, spread = (
        tuple(v) * (count if len(v) == 1 else 1) for v in (kernel, stride or kernel, padding, dilation)
    )
    return (
        (1, 1, *sizes),
        (1, 1, *steps),
        [(0, 0), (0, 0), *((p, p) for p in pads)],
        math.prod(sizes),
        (1, 1, *spread),
    )
