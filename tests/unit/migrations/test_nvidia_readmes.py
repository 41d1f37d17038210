"""Rows of NVIDIA's documentation: which tables and cells are taken, on small pages of their form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from migrations.tools.nvidia_readmes import (
    main,
    rows_of_bert_demo,
    rows_of_examples,
    rows_of_faster_transformer,
    tables_in,
    without_host_bound,
)

CLASSIFIER = """# ResNet
##### Training performance: NVIDIA DGX-1 (8x V100 16GB)
| **GPUs** | **Throughput - FP32** | **Throughput - mixed precision** | **Speedup** |
|:--:|:--:|:--:|:--:|
| 1 | 100 img/s | 40 img/s | 0.4 x |
| 8 | 800 img/s | 900 img/s | 1.1 x |

##### Inference performance: NVIDIA DGX-1 (1x V100 16GB)
###### Mixed Precision Inference Latency
| **Batch Size** | **Throughput Avg** | **Latency Avg** | **Latency 95%** | **Latency 99%** |
|:--:|:--:|:--:|:--:|:--:|
| 2 | 154 img/s | 13.0 ms | 13.7 ms | 15.2 ms |
"""
SEVERAL = """##### Inference performance: NVIDIA T4
###### FP32 Inference Latency
| **Model** | **Batch Size** | **Throughput Avg** | **Latency Avg** | **Latency 95%** | **Latency 99%** |
|:--:|:--:|:--:|:--:|:--:|:--:|
| efficientnet-b4 | 1 | 50 img/s | 20 ms | 21 ms | 22 ms |
| efficientnet-widese-b4 | 1 | 50 img/s | 20 ms | 21 ms | 22 ms |
"""
BERT = """##### Training performance: NVIDIA DGX-1 (8x V100 32G)
###### Fine-tuning NVIDIA DGX-1 With 32G
| GPUs | Batch size / GPU (FP32 and FP16) | Throughput - FP32(seq/s) | Throughput - mixed precision(seq/s) |
|---|---|---|---|
| 1 | 8 and 16 | 12 | 52 |
| 8 | 8 and 16 | 85.5 | 382 |
"""
GUIDE = """Hardware settings:
* A100 (with mclk 1593MHz, pclk 1410MHz) with a CPU
#### BERT performance on A100 and PyTorch
| Batch_size | Seq_len | Precision | TorchScript <br/> Latency (ms) | FT <br/> Latency (ms) |
|:--:|:--:|:--:|:--:|:--:|
| 8 | 128 | FP16 | 4.35 | 1.81 |
#### BERT performance on A100 and TensorFlow
| Batch_size | Seq_len | Precision | TF <br/> Latency (ms) | FT <br/> Latency (ms) |
|:--:|:--:|:--:|:--:|:--:|
| 8 | 128 | FP16 | 3.3 | 1.81 |
"""
VIT = """### ViT Performance on T4
#### FP32
| Batch_size | torch <br/> latency(ms) | cpp <br/> latency(ms) | speedup |
|:--:|:--:|:--:|:--:|
| 8 | 295.5 | 260 | 1.13 |
#### FP16
| Batch_size | torch <br/> latency(ms) | cpp <br/> latency(ms) | speedup |
|:--:|:--:|:--:|:--:|
| 8 | 161.7 | 65.6 | 2.46 |
"""
DEMO = """|TensorRT|{version}|
#### Inference performance: NVIDIA {gpu}
##### BERT large
| Sequence Length | Batch Size | INT8 Latency (ms) | | | FP16 Latency (ms) | | |
|---|---|---|---|---|---|---|---|
| | | 95th Percentile | 99th Percentile | Average | 95th Percentile | 99th Percentile | Average |
| 384 | 4 | 3.1 | 3.2 | 3.0 | 6.1 | 6.2 | {mean} |
##### Megatron Large with Sparsity
| Sequence Length | Batch Size | INT8 QAT Latency (ms) | | |
|---|---|---|---|---|
| | | 95th Percentile | 99th Percentile | Average |
| 384 | 4 | 2.1 | 2.2 | 2.0 |
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_table_knows_its_headings_and_line() -> None:
    (table,) = tables_in("# a\n## b\ntext\n| x | y |\n|---|---|\n| 1 | **2** |\n# c\n")
    assert (table.headings, table.section, table.heading, table.line) == (("a", "b"), "a", "b", 4)
    assert table.rows == (("x", "y"), ("1", "2"))


def test_examples_give_rows_of_one_gpu(tmp_path: Path) -> None:
    configs = {"models": {"resnet50": {"DGX1V-16G": {"FP32": {"batch_size": 112}, "AMP": {"batch_size": 256}}}}}
    folder = "PyTorch/Classification/ConvNets"
    files = {f"{folder}/{name}/README.md": "" for name in ("resnext101-32x4d", "se-resnext101-32x4d")}
    files |= {f"{folder}/resnet50v1.5/README.md": CLASSIFIER, f"{folder}/efficientnet/README.md": SEVERAL}
    files |= {f"{folder}/configs.yml": json.dumps(configs), "PyTorch/LanguageModeling/BERT/README.md": BERT}
    step, small_batch, several, *bert = rows_of_examples(write(tmp_path, files))
    # Of mixed precision eight GPUs are said to be 22 times as fast as one.
    assert (step["precision"], step["mode"], step["batch_size"], step["throughput"]) == ("fp32", "training", 112, 100)
    assert (small_batch["device"], small_batch["precision"], small_batch["latency_p99_ms"]) == (
        "V100 16GB",
        "amp",
        15.2,
    )
    assert (several["model"], several["image_size"], several["device"]) == ("efficientnet_b4", 380, "T4")
    assert [(row["device"], row["batch_size"], row["throughput"]) for row in bert] == [
        ("V100 32GB", 8, 12.0),
        ("V100 32GB", 16, 52.0),
    ]
    assert {row["sequence_length"] for row in bert} == {384}


def test_guides_give_rows_of_plain_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"docs/bert_guide.md": GUIDE, "docs/vit_guide.md": VIT, "docs/swin_guide.md": ""}
    row, image = rows_of_faster_transformer(write(tmp_path, files))
    assert (row["device"], row["precision"], row["sequence_length"], row["batch_size"], row["latency_ms"]) == (
        "A100 (memory 1593 MHz)", "fp16", 128, 8, 4.35
    )  # fmt: skip
    assert (image["model"], image["image_size"], image["precision"]) == ("vit_base_patch16_384", 384, "fp32")
    main(["faster-transformer", str(tmp_path)])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [row, image]


def test_rows_that_wait_for_the_host_are_passed_over() -> None:
    sizes = {1: 10.0, 2: 10.1, 4: 14.0, 8: 26.0, 16: 50.0}
    rows = [{"model": "x", "device": "T4", "batch_size": size, "latency_ms": ms} for size, ms in sizes.items()]
    assert [row["batch_size"] for row in without_host_bound(rows)] == [4, 8, 16]
    waiting = [{"model": "y", "device": "T4", "batch_size": size, "latency_ms": 10.0} for size in (1, 8)]
    step = {"model": "y", "device": "T4", "mode": "training", "batch_size": 8, "throughput": 3.0}
    assert list(without_host_bound([*waiting, step])) == [step]


def test_each_gpu_of_the_demo_comes_from_the_newest_page_that_names_it_rightly(tmp_path: Path) -> None:
    old = DEMO.format(version="8.4.3", gpu="T4 (16GB)", mean=6.0) + DEMO.format(version="8.4.3", gpu="A30", mean=5.0)
    newer = DEMO.format(version="10.7", gpu="L4", mean=4.0)
    newest = DEMO.format(version="10.9", gpu="A30", mean=4.0) + DEMO.format(version="10.9", gpu="T4 (16GB)", mean=5.5)
    pages = write(tmp_path, {"newest.md": newest, "newer.md": newer, "old.md": old})
    rows = rows_of_bert_demo([pages / name for name in ("newest.md", "newer.md", "old.md")])
    found = {row["device"]: (row["latency_ms"], row["runtime_version"]) for row in rows if row["precision"] == "fp16"}
    assert found == {"T4 (16GB)": (5.5, "10.9"), "A30": (5.0, "8.4.3"), "L4": (4.0, "10.7")}
    assert "bert-large-uncased" in {row["model"] for row in rows_of_bert_demo([pages / "old.md"])}
