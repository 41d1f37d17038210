"""int8 quantization of exported ONNX graphs by ONNX Runtime.

Only weights are quantized; attention's products of two activations stay in float32, as in runtimes.
`Backend.precision_share` returns how much of a graph ran in int8.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel_platform.workloads.model_catalog import ModelSpec

CALIBRATION_SEEDS = (101, 102)
"""Seeds of calibration inputs, which no measurement and no verification uses."""
_QUANTIZED_OPS = ["MatMul", "Gemm", "Conv"]


def quantize_dynamic_ranges(graph: Path, folder: Path) -> None:
    """Quantize weights to int8, activations at run time (DynamicQuantizeLinear, MatMulInteger, ConvInteger)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        graph,
        folder / "model.onnx",
        op_types_to_quantize=_QUANTIZED_OPS,
        weight_type=QuantType.QInt8,
        use_external_data_format=True,
    )


def quantize_static_ranges(graph: Path, spec: ModelSpec, length: int | None, folder: Path) -> None:
    """Quantize weights to int8 per channel, activations to uint8 over example inputs' ranges (QuantizeLinear pairs)."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    from accel_platform.workloads.inputs import make_inputs

    class Examples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[dict[str, Any]] = (
                make_inputs(spec, batch_size=1, sequence_length=length, seed=seed) for seed in CALIBRATION_SEEDS
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    quantize_static(
        graph,
        folder / "model.onnx",
        Examples(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=_QUANTIZED_OPS,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        use_external_data_format=True,
        extra_options={"MatMulConstBOnly": True},
    )
