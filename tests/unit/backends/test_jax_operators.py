"""Every translated operator gives what torch gives; no operator of the table is left out."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jax", reason="the extra `jax` is not installed")

import jax
import jax.numpy as jnp

from accel_platform.backends.jax_operators import DTYPES, OPERATORS

torch.manual_seed(0)
F = torch.randn(3, 4, 5)
G = torch.randn(3, 4, 5)
POSITIVE = torch.rand(3, 4, 5) + 0.1
WHOLE = torch.arange(-10, 10).reshape(4, 5)
NATURAL = torch.arange(1, 21).reshape(4, 5)
BOOLS = WHOLE > 2
ODD = torch.tensor([math.inf, -math.inf, math.nan, -2.5, 0.5, 1.5])
IMAGE = torch.randn(2, 4, 9, 8)
CHANNELS = torch.rand(4) + 0.5
QUERY, KEY, VALUE = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
MASK = torch.rand(2, 1, 6, 7) > 0.4
MASK[0, 0, 1] = False
F32 = torch.float32

Case = tuple[str, tuple[Any, ...], dict[str, Any]]


def case(name: str, *args: Any, **kwargs: Any) -> Case:
    return name, args, kwargs


def convolution(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> Case:
    return case("convolution.default", x, w, *rest)


_FLOAT = ("abs", "cos", "erf", "exp", "expm1", "floor", "ceil", "neg", "reciprocal", "relu", "round", "sigmoid")
_FLOAT = (*_FLOAT, "sign", "silu", "sin", "tanh")
CASES: list[Case] = [
    *(case(f"{name}.default", F) for name in _FLOAT),
    *(case(f"{name}.default", POSITIVE) for name in ("log", "log1p", "sqrt", "rsqrt")),
    *(case(f"{name}.default", ODD) for name in ("isinf", "isnan", "round", "relu", "sign")),
    *(case(f"{name}.default", BOOLS) for name in ("bitwise_not", "logical_not")),
    case("abs.default", WHOLE),
    *(case(f"{n}.Tensor", F, G) for n in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "remainder")),
    *(case(f"{n}.Scalar", F, 0.3) for n in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
    case("remainder.Scalar", WHOLE, 3),
    case("mul.Tensor", WHOLE, 0.5),
    case("div.Tensor", WHOLE, NATURAL),
    case("add.Tensor", F, G, alpha=2),
    case("sub.Scalar", F, 0.5, alpha=3),
    case("add.Scalar", WHOLE, 2, alpha=2),
    case("sub.Tensor", F, G, alpha=0.5),
    *(case(f"{n}.Tensor", BOOLS, ~BOOLS) for n in ("bitwise_and", "bitwise_or")),
    *(case(f"{n}.Scalar", WHOLE, 6) for n in ("bitwise_and", "bitwise_or")),
    *(case(f"{n}.default", BOOLS, BOOLS.flip(0)) for n in ("logical_and", "logical_or")),
    *(case(f"{n}.default", F, G) for n in ("maximum", "minimum")),
    case("pow.Tensor_Scalar", F, 2),
    case("pow.Tensor_Scalar", POSITIVE, 0.5),
    case("pow.Tensor_Tensor", POSITIVE, G),
    case("pow.Scalar", 2.0, F),
    *(case("div.Tensor_mode", WHOLE, NATURAL, rounding_mode=mode) for mode in ("floor", "trunc", None)),
    *(case("div.Scalar_mode", F, 0.3, rounding_mode=mode) for mode in ("floor", "trunc")),
    case("sym_size.int", F, 1),
    *(case(f"{n}.default", F) for n in ("clone", "alias", "detach", "lift_fresh_copy", "contiguous")),
    case("dropout.default", F, 0.1, False),
    *(case(f"{n}.default", F, [2, -1, 3]) for n in ("view", "_unsafe_view", "reshape")),
    case("permute.default", F, [2, 0, -2]),
    case("repeat.default", F, [2, 1, 3, 1]),
    case("unsqueeze.default", F, -1),
    case("unsqueeze.default", F, 1),
    case("squeeze.dim", F[:1], 0),
    case("squeeze.dim", F, 0),
    case("squeeze.dims", F[:1, :, :1], [0, 1, 2]),
    case("flip.default", F, [0, 2]),
    case("cat.default", [F, torch.zeros(0), G], 1),
    case("stack.default", [F, G], -1),
    case("roll.default", F, [1, -2], [0, 2]),
    case("embedding.default", torch.randn(6, 3), torch.tensor([[0, 5], [2, 2]]), 0),
    case("where.self", F > 0, F, G),
    case("cumsum.default", F, 1),
    case("cumsum.default", BOOLS, -1),
    case("_to_copy.default", BOOLS, dtype=F32),
    case("_to_copy.default", F, dtype=torch.int64),
    case("_to_copy.default", F),
    case("mm.default", F[0], F[0].T),
    case("bmm.default", F, G.transpose(1, 2)),
    case("addmm.default", CHANNELS, F[0], G[0].T),
    case("addmm.default", CHANNELS, F[0], G[0].T, beta=0.5, alpha=2),
    case("baddbmm.default", torch.randn(3, 4, 4), F, G.transpose(1, 2), beta=2, alpha=0.5),
    case("_softmax.default", F, -1, False),
    case("_log_softmax.default", F, 1, False),
    case("gelu.default", F),
    case("gelu.default", F, approximate="tanh"),
    case("hardtanh.default", 2 * F),
    case("hardtanh.default", 9 * F, 0.0, 6.0),
    case("leaky_relu.default", F, 0.2),
    case("clamp.default", F, -0.5, 0.5),
    case("clamp.default", F, None, 0.5),
    case("clamp_min.default", F, 0.1),
    case("clamp_max.default", F, 0.1),
    case("scalar_tensor.default", 2.5),
    case("scalar_tensor.default", 7, dtype=torch.int64),
    case("full.default", [2, 3], 1.5),
    case("full.default", [2, 3], True, dtype=torch.bool),
    case("full_like.default", F, -math.inf),
    case("zeros_like.default", WHOLE, dtype=F32),
    case("ones_like.default", WHOLE),
    case("any.default", BOOLS),
    case("any.dim", BOOLS, -1, True),
    case("any.dims", BOOLS, [0, 1]),
    case("argmax.default", F),
    case("argmax.default", F, 1, True),
    case("max.dim", F, 1),
    case("max.dim", F, -1, True),
    case("mean.dim", F, [-1], True),
    case("mean.dim", F, None),
    case("mean.dim", WHOLE, [0], dtype=F32),
    case("sum.dim_IntList", F, [0, 2]),
    case("sum.dim_IntList", WHOLE, []),
    case("amax.default", F, [1]),
    case("amin.default", F, [0, -1], True),
    case("var.correction", F, [1], correction=0),
    case("var.correction", F, [-1], correction=1, keepdim=True),
    case("arange.default", 7),
    case("arange.start", 2, 9),
    case("arange.start_step", 0, 1, 0.25),
    case("arange.start_step", 9, 0, -2),
    case("expand.default", F[:1], [2, 3, -1, 5]),
    case("slice.Tensor", F, 1, 1, 9223372036854775807),
    case("slice.Tensor", F, -1, -4, -1, 2),
    case("select.int", F, -1, -2),
    case("split_with_sizes.default", F, [1, 3], 1),
    case("index.Tensor", F, [None, torch.tensor([[0, 3], [1, 1]])]),
    case("index.Tensor", F, [torch.tensor([0, 2]), torch.tensor([3, 1])]),
    case("gather.default", F, 1, torch.tensor([[[0, 3], [1, 2]]])),
    case("index_select.default", F, 2, torch.tensor([4, 0, 0])),
    case("constant_pad_nd.default", F, [1, 2, -1, 1], 0.5),
    convolution(IMAGE, torch.randn(6, 4, 3, 2), torch.randn(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
    convolution(IMAGE, torch.randn(8, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    convolution(F, torch.randn(2, 4, 3), None, [1], [1], [1], False, [0], 1),
    convolution(IMAGE, torch.randn(4, 3, 3, 2), torch.randn(3), [2, 3], [1, 0], [1, 2], True, [1, 1], 1),
    convolution(IMAGE, torch.randn(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [0, 1], 2),
    case("avg_pool1d.default", F, [2], [1], [1]),
    case("avg_pool2d.default", IMAGE, [3, 2], [], [1, 1], False, False),
    case("avg_pool2d.default", IMAGE, [2, 2], [2, 1], [0, 0], False, True, 3),
    case("scaled_dot_product_attention.default", QUERY, KEY, VALUE),
    case("scaled_dot_product_attention.default", QUERY, KEY, VALUE, MASK),
    case("scaled_dot_product_attention.default", QUERY, KEY, VALUE, torch.randn(6, 7), scale=0.3),
    case("scaled_dot_product_attention.default", QUERY, QUERY, QUERY, None, 0.0, True),
    case("scaled_dot_product_attention.default", QUERY, KEY[:, :2], VALUE[:, :2], enable_gqa=True),
]
FIRST_RESULT_ONLY: list[Case] = [
    case("max_pool2d_with_indices.default", IMAGE, [3, 3], [2, 2], [1, 1]),
    case("max_pool2d_with_indices.default", IMAGE, [2, 2], [], [0, 0], [2, 1]),
    case("native_layer_norm.default", F, [4, 5], torch.randn(4, 5), torch.randn(4, 5), 1e-5),
    case("native_layer_norm.default", F, [5], None, None, 1e-5),
    case("native_group_norm.default", IMAGE, CHANNELS, -CHANNELS, 2, 4, 72, 2, 1e-5),
    case("native_group_norm.default", IMAGE, None, None, 2, 4, 72, 4, 1e-5),
    case("_native_batch_norm_legit_no_training.default", IMAGE, CHANNELS, -CHANNELS, CHANNELS, CHANNELS, 0.1, 1e-5),
    case("_native_batch_norm_legit_no_training.default", IMAGE, None, None, CHANNELS, CHANNELS, 0.1, 1e-5),
]


def in_torch(name: str, args: Any, kwargs: Any) -> Any:
    packet, overload = name.rsplit(".", 1)
    return getattr(getattr(torch.ops.aten, packet), overload)(*args, **kwargs)


def to_jax(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return jnp.asarray(value.numpy(), DTYPES[str(value.dtype).removeprefix("torch.")])
    if isinstance(value, torch.dtype):
        return DTYPES[str(value).removeprefix("torch.")]
    if isinstance(value, list | tuple):
        return [to_jax(item) for item in value]
    return value


def in_jax(name: str, args: Any, kwargs: Any) -> Any:
    return OPERATORS[f"aten.{name}"](*to_jax(args), **{key: to_jax(value) for key, value in kwargs.items()})


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            same(our, their)
    elif isinstance(theirs, torch.Tensor):
        expected = theirs.numpy()
        assert ours.shape == expected.shape
        assert jnp.asarray(ours).dtype.kind == expected.dtype.kind
        np.testing.assert_allclose(np.asarray(ours), expected, rtol=2e-5, atol=2e-6)
    else:
        assert ours == theirs


def label(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=label)
def test_it_gives_what_torch_gives(name: str, args: Any, kwargs: Any) -> None:
    same(in_jax(name, args, kwargs), in_torch(name, args, kwargs))


@pytest.mark.parametrize(("name", "args", "kwargs"), FIRST_RESULT_ONLY, ids=label)
def test_the_first_of_several_results_is_that_of_torch(name: str, args: Any, kwargs: Any) -> None:
    same(in_jax(name, args, kwargs)[0], in_torch(name, args, kwargs)[0])


def test_no_operator_is_left_untested() -> None:
    tested = {f"aten.{name}" for name, _, _ in (*CASES, *FIRST_RESULT_ONLY)}
    sizes = {name for name in OPERATORS if name.startswith("operator.")}
    assert set(OPERATORS) - tested == sizes
    assert all(OPERATORS[name] is getattr(operator, name.partition(".")[2]) for name in sizes)


def test_pooling_with_ceil_mode_is_refused() -> None:
    with pytest.raises(Exception, match="ceil_mode"):
        in_jax("avg_pool2d.default", (IMAGE, [2, 2], [2, 2], [0, 0], True), {})


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    transposed=st.booleans(),
)
def test_convolutions_of_any_geometry(
    kernel: int, stride: int, padding: int, dilation: int, groups: int, transposed: bool
) -> None:
    generator = torch.Generator().manual_seed(kernel)
    x = torch.randn(2, 4, 11, generator=generator)
    weight = torch.randn(4, 4 // groups, kernel, generator=generator)
    args = (x, weight, None, [stride], [padding], [dilation], transposed, [0], groups)
    same(in_jax("convolution.default", args, {}), in_torch("convolution.default", args, {}))


@settings(deadline=None, max_examples=50)
@given(start=st.integers(-7, 7), end=st.integers(-7, 7), step=st.integers(1, 3), dim=st.integers(-3, 2))
def test_slices_of_any_kind(start: int, end: int, step: int, dim: int) -> None:
    args = (F, dim, start, end, step)
    same(in_jax("slice.Tensor", args, {}), in_torch("slice.Tensor", args, {}))


def test_sixty_four_bits_are_off() -> None:
    assert not jax.config.jax_enable_x64
