"""The precision that ran, read from dispatched operators, compiled programs and operator names."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import pytest

from accel_platform.backends.profiling import integer_share
from accel_platform.backends.pytorch import precision_share


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_torch_operators_are_counted_by_the_dtype_of_their_operands(precision: str) -> None:
    import torch

    weight = torch.ones(4, 4, dtype=getattr(torch, precision))
    wide = torch.ones(4, 4, dtype=torch.float64)
    assert precision_share(lambda: weight @ weight, precision) == 1.0
    assert precision_share(lambda: (weight @ weight, wide @ wide, wide @ wide), precision) == pytest.approx(1 / 3)
    assert precision_share(lambda: weight + weight, precision) is None


def test_quantized_layers_are_int8_and_what_stays_float_is_not() -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        quantized = torch.ao.quantization.quantize_dynamic(layers, {torch.nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
    x = torch.ones(2, 8)
    assert precision_share(lambda: quantized(x), "int8") == 1.0
    assert precision_share(lambda: (quantized(x), x @ x.T), "int8") == pytest.approx(2 / 3)
    assert precision_share(lambda: quantized(x), "float32") == 0.0
    convolution = torch.nn.Conv2d(1, 1, 1)
    assert precision_share(lambda: convolution(torch.ones(1, 1, 2, 2)), "int8") == 0.0


def test_onnx_names_integer_products_apart() -> None:
    nodes = ["MatMulInteger", "ConvInteger", "MatMul", "Add", "Softmax", "DynamicQuantizeMatMul"]
    assert integer_share(nodes, "int8") == 0.75
    assert integer_share(nodes, "float32") == 0.25
    assert integer_share(["Add", "Softmax"], "int8") is None


@pytest.mark.skipif(find_spec("jax") is None, reason="the extra `jax` is not installed")
def test_a_compiled_program_tells_what_xla_made_of_the_products() -> None:
    from accel_platform.backends.jax import products_share

    program = """
    %a = bf16[2,4]{1,0} parameter(0)
    %wide.1 = f32[2,4]{1,0} convert(%a)
    %dot.1 = f32[2,2]{1,0} dot(%wide.1, %wide.1), lhs_contracting_dims={1}
    %dot.2 = f32[2,2]{1,0} dot(%a, %a), lhs_contracting_dims={1}
    %c = bf16[1,2]{1,0} convolution(bf16[2,4]{1,0} %a, bf16[2,4]{1,0} %a), window={size=1}
    %m = bf16[2,2]{1,0} custom-call(%a, %a), custom_call_target="__onednn$matmul"
    """
    assert products_share(program, "bf16") == 0.75
    assert products_share(program, "f32") == 0.25
    assert products_share("%a = f32[2] parameter(0)", "f32") is None
