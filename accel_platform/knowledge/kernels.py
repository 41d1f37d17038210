"""Kernel measurements of other hosts, shipped for the operator predictor: one table per source, one of them our own.

Columns: `device` (a name of the catalogue), `precision`, `operator`, `framework`, dimensions that are null where an
operator has none, and `latency_ms`. Products are (m x k) by (k x n), b of them. Attention has b items, h heads, kv
key-value heads, queries of length m, keys of length n, and heads of width k. Element-wise operators, norms and softmax
have b rows of width h. Convolutions of our own tables may be in `groups`, and over `edges` dimensions besides channels:
1 of sound, 2 of images. Those of others are over images, in one group.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.errors import InvalidInput

PACKS = Path(__file__).with_name("packs")
MEASURED = Path(__file__).with_name("measured_kernels")
"""Tables that this platform measured."""
_ROWS_OF_EACH = 4_000
"""Rows taken of each operator and device of aiconfigurator, the same ones each time; more changed no prediction."""

_NEUSIGHT = """
SELECT device::VARCHAR AS device, 'float32' AS precision,
  CASE op WHEN 'bmm' THEN 'batched_matmul' WHEN 'conv' THEN 'convolution' WHEN 'ln' THEN 'layer_norm'
    ELSE regexp_replace(op::VARCHAR, '^(add|mul|div|pow)u$', '\\1_scalar') END AS operator,
  'pytorch ' || torch::VARCHAR AS framework, b, m, n, k, h, NULL::INTEGER AS kv,
  input_channel, output_channel, kernel_size, input_size, stride, padding, latency_ms
FROM read_parquet($path) ORDER BY ALL
"""
_AICONFIGURATOR = """
WITH product AS (
  SELECT device, 'linear' AS operator, framework || ' ' || version AS framework, version, 1 AS b, m, n, k,
    NULL AS h, NULL AS kv, latency
  FROM read_parquet($gemm, union_by_name=true) WHERE gemm_dtype = 'bfloat16'
), context AS (
  SELECT device, 'context_attention' AS operator, framework || ' ' || version AS framework, version,
    batch_size AS b, isl AS m, isl AS n, head_dim AS k, num_heads AS h, num_key_value_heads AS kv, latency
  FROM read_parquet($context, union_by_name=true)
  WHERE attn_dtype = 'bfloat16' AND kv_cache_dtype = 'bfloat16' AND coalesce(window_size, 0) = 0
), encoder AS (
  SELECT device, 'attention' AS operator, framework || ' ' || version AS framework, version,
    batch_size AS b, isl AS m, isl AS n, head_dim AS k, num_heads AS h, num_heads AS kv, latency
  FROM read_parquet($encoder, union_by_name=true) WHERE attn_dtype = 'bfloat16'
), measured AS (
  SELECT * FROM product UNION ALL SELECT * FROM context UNION ALL SELECT * FROM encoder
), newest AS (
  SELECT * FROM measured WHERE latency > 0
  QUALIFY rank() OVER (PARTITION BY device, operator ORDER BY version DESC) = 1
), numbered AS (
  SELECT *, row_number() OVER (
    PARTITION BY device, operator ORDER BY md5(concat_ws(' ', b, m, n, k, h, kv)), latency
  ) AS place
  FROM newest
)
SELECT device, 'bfloat16' AS precision, operator, framework, b::INTEGER AS b, m::INTEGER AS m, n::INTEGER AS n,
  k::INTEGER AS k, h::INTEGER AS h, kv::INTEGER AS kv,
  NULL::INTEGER AS input_channel, NULL::INTEGER AS output_channel, NULL::INTEGER AS kernel_size,
  NULL::INTEGER AS input_size, NULL::INTEGER AS stride, NULL::INTEGER AS padding, latency::FLOAT AS latency_ms
FROM numbered WHERE place <= $rows ORDER BY ALL
"""


def kernel_tables() -> list[Path]:
    """Return the shipped kernel tables."""
    return [*sorted(PACKS.glob("*/kernels.parquet")), *sorted(MEASURED.glob("*.parquet"))]


def convert_neusight(kernels: Path) -> pa.Table:
    """Return NeuSight's float32 kernel times, from the table of its `collect` folders."""
    return _query(_NEUSIGHT, path=str(kernels))


def convert_aiconfigurator(systems: Path) -> pa.Table:
    """Return a part of the bfloat16 kernel times under `systems/data` of aiconfigurator-core, as vLLM runs them.

    Other engines' tables are left out, because their kernels are not those of PyTorch. Raises InvalidInput for a
    folder without such tables.
    """
    files = {
        "gemm": "*/gemm/vllm/*/gemm_perf.parquet",
        "context": "*/attention/vllm/*/context_attention_perf.parquet",
        "encoder": "*/encoder_attention/vllm/*/encoder_attention_perf.parquet",
    }
    for pattern in files.values():
        if not any(systems.glob(f"data/{pattern}")):
            raise InvalidInput(f"{systems} holds no data/{pattern}: give the folder `systems` of aiconfigurator-core.")
    return _query(
        _AICONFIGURATOR, rows=_ROWS_OF_EACH, **{name: f"{systems}/data/{glob}" for name, glob in files.items()}
    )


CONVERSIONS: dict[str, Callable[[Path], pa.Table]] = {
    "neusight-kernels": convert_neusight,
    "aiconfigurator-kernels": convert_aiconfigurator,
}
"""Function that makes the table of each pack from the file or folder that its card names."""


def write_kernels(table: pa.Table, path: Path) -> None:
    """Write a kernel table; equal tables give equal bytes with the same pyarrow."""
    pq.write_table(table, path, compression="zstd", compression_level=19, use_byte_stream_split=["latency_ms"])


def _query(sql: str, **parameters: str | int) -> pa.Table:
    with duckdb.connect() as connection:
        table = connection.sql(sql, params=parameters).to_arrow_table()
    for name in ("device", "precision", "operator", "framework"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].dictionary_encode())
    return table.combine_chunks()
