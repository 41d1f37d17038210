"""Performance tables in the documentation of three repositories of NVIDIA, as rows of a plain table.

Figures of one GPU are taken, of models that are known elsewhere by the same name. Usage, each with checkouts or files
of the commits that the card of the pack names:

    python -m migrations.tools.nvidia_readmes examples CHECKOUT > results.jsonl
    python -m migrations.tools.nvidia_readmes faster-transformer CHECKOUT > results.jsonl
    python -m migrations.tools.nvidia_readmes bert-demo README.md... > results.jsonl

The files of the last are versions of one page, the newest first: a GPU's figures come from the newest with that GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_HEADING = re.compile(r"\s*(#+)\s*(.*?)\s*#*$")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BAR_MIN = 3
"""Vertical bars in a line of a table, at least; prose has fewer."""

Row = dict[str, Any]
_ALIKE = ("model", "device", "precision", "sequence_length")
"""Columns of which rows that differ by their batch size alone are equal."""


@dataclass(frozen=True)
class MarkdownTable:
    """A table of a Markdown file, with where it stands."""

    headings: tuple[str, ...]
    """The headings above it, the outermost first."""
    line: int
    rows: tuple[tuple[str, ...], ...]
    """Cells without the line of dashes; the first row is the head."""

    @property
    def heading(self) -> str:
        """The heading right above it; empty without one."""
        return self.headings[-1] if self.headings else ""

    @property
    def section(self) -> str:
        """The heading above that; empty without one."""
        return self.headings[-2] if len(self.headings) > 1 else ""


def tables_in(text: str) -> Iterator[MarkdownTable]:
    """Yield the tables of a Markdown file in their order."""
    headings: list[tuple[int, str]] = []
    rows: list[tuple[str, ...]] = []
    line = 0
    for number, content in enumerate([*text.splitlines(), ""], start=1):
        if content.count("|") >= _BAR_MIN:
            cells = tuple(cell.strip(" *") for cell in content.strip().strip("|").split("|"))
            if not all(set(cell) <= set("-: ") and cell for cell in cells):
                line = line or number
                rows.append(cells)
            continue
        if rows:
            yield MarkdownTable(tuple(heading for _, heading in headings), line, tuple(rows))
            rows, line = [], 0
        if found := _HEADING.fullmatch(content):
            depth = len(found[1])
            headings = [*(above for above in headings if above[0] < depth), (depth, found[2])]


_EXAMPLES = "PyTorch/Classification/ConvNets"
_VERSIONS = {"21.03": "1.9", "21.11": "1.11"}
"""PyTorch in NVIDIA's containers, by the container's version (the release notes of both)."""
_IMAGE_MODELS = {
    "resnet50v1.5": ("resnet50", 224),
    "resnext101-32x4d": ("resnext101_32x4d", 224),
    "se-resnext101-32x4d": ("seresnext101_32x4d", 224),
    "efficientnet-b0": ("efficientnet_b0", 224),
    "efficientnet-b4": ("efficientnet_b4", 380),
}
"""Names as timm has them, and edges of images, by the names in the examples."""
_PLATFORMS = {"DGX A100": "DGXA100", "A100 (8x": "DGXA100", "V100 16GB": "DGX1V-16G", "V100 32GB": "DGX1V-32G"}
"""Platforms of the file of batch sizes, by words of a heading."""
_BERT = "PyTorch/LanguageModeling/BERT/README.md"
_SQUAD_LENGTH = 384
"""Tokens of a question with its text: the default of `run_squad.sh`."""


def rows_of_examples(checkout: Path) -> Iterator[Row]:
    """Yield the single-GPU rows of PyTorch's image classifiers and BERT in NVIDIA/DeepLearningExamples."""
    batch_sizes = yaml.safe_load((checkout / _EXAMPLES / "configs.yml").read_text(encoding="utf-8"))["models"]
    for folder in ("resnet50v1.5", "resnext101-32x4d", "se-resnext101-32x4d", "efficientnet"):
        path = f"{_EXAMPLES}/{folder}/README.md"
        for table in tables_in((checkout / path).read_text(encoding="utf-8")):
            rows = _inference_rows(table, folder)
            if table.heading.startswith("Training performance:"):
                rows = _training_rows(table, folder, batch_sizes)
            yield from (_placed(row, path, table, _VERSIONS["21.03"]) for row in rows)
    for table in tables_in((checkout / _BERT).read_text(encoding="utf-8")):
        yield from (_placed(row, _BERT, table, _VERSIONS["21.11"]) for row in _bert_rows(table))


def _placed(row: Row, path: str, table: MarkdownTable, version: str | None = None) -> Row:
    """Return a row with its runtime's version, and the place that it comes from."""
    return {**row, **({"runtime_version": version} if version else {}), "where": f"{path}#L{table.line}"}


def _inference_rows(table: MarkdownTable, folder: str) -> Iterator[Row]:
    """Yield rows of a table of latencies by batch size; the model is a column where a folder holds several."""
    latency = re.fullmatch(r"(.+) Inference Latency", table.heading)
    if latency is None or "Latency 95%" not in table.rows[0]:
        return
    for cells in table.rows[1:]:
        row = dict(zip(table.rows[0], cells, strict=True))
        model = _IMAGE_MODELS.get(row.get("Model", folder))
        if model is not None:
            yield {
                **_on_gpu(model[0], _gpu_in(table.section), _precision(latency[1])),
                "image_size": model[1],
                "batch_size": int(row["Batch Size"]),
                # The mean of the latencies holds the first runs, and is up to half above the 99th percentile.
                "latency_p95_ms": _number(row["Latency 95%"]),
                "latency_p99_ms": _number(row["Latency 99%"]),
                "throughput": _number(row["Throughput Avg"]),
            }


def _training_rows(table: MarkdownTable, folder: str, batch_sizes: Mapping[str, Any]) -> Iterator[Row]:
    """Yield rows of a table of training throughput by number of GPUs, at the batch sizes of the configuration."""
    head = table.rows[0]
    rates = {
        precision: head.index(column)
        for column in head
        if (precision := re.sub(r"^Throughput - ", "", column)) in ("FP32", "TF32", "mixed precision")
    }
    lines: dict[tuple[str, str], tuple[str, ...]] = {}
    for cells in table.rows[1:]:
        row = dict(zip(head, cells, strict=True))
        lines[row.get("Model", folder), row["GPUs"]] = cells
    platform = next(key for word, key in _PLATFORMS.items() if word in table.heading)
    for (name, gpus), cells in lines.items():
        if gpus != "1" or name not in _IMAGE_MODELS:
            continue
        of_eight = lines.get((name, "8"))
        for precision, column in rates.items():
            rate = _number(cells[column])
            if of_eight and _number(of_eight[column]) > 8 * rate:
                continue  # 8 GPUs cannot be more than 8 times as fast, so one of the two figures is wrong
            model, image_size = _IMAGE_MODELS[name]
            key = "AMP" if precision == "mixed precision" else precision
            yield {
                **_on_gpu(model, _gpu_in(table.heading), _precision(precision)),
                "mode": "training",
                "image_size": image_size,
                "batch_size": batch_sizes[name.removesuffix("v1.5")][platform][key]["batch_size"],
                "throughput": rate,
            }


def _bert_rows(table: MarkdownTable) -> Iterator[Row]:
    """Yield single-GPU rows of BERT large: fine-tuning, and its inference. Sequences of pre-training vary in length."""
    what = table.heading
    head = [column.replace("\\", "").split("(")[0].strip() for column in table.rows[0]]
    if not what.startswith("Fine-tuning") or "GPUs" not in head or not any(map(_is_rate, head)):
        return
    inference = what.startswith("Fine-tuning inference")
    rates = list(filter(_is_rate, head))
    gpu = _gpu_in(what if "A100" in what else table.section)
    for cells in table.rows[1:]:
        row = dict(zip(head, cells, strict=True))
        if row["GPUs"] != "1":
            continue
        sizes = _NUMBER.findall(row["Batch Size" if inference else "Batch size / GPU"])
        for size, rate in zip(sizes, rates, strict=True):
            yield {
                **_on_gpu("bert-large-uncased", gpu, _precision(rate.removeprefix("Throughput - "))),
                **({} if inference else {"mode": "training"}),
                "sequence_length": int(row.get("Sequence Length", _SQUAD_LENGTH)),
                "batch_size": int(size),
                "throughput": _number(row[rate]),
            }


def _is_rate(column: str) -> bool:
    return column.startswith("Throughput - ")


_GUIDES: dict[str, dict[str, tuple[str, int | None]]] = {
    "docs/bert_guide.md": {"": ("bert-base-uncased", None)},
    "docs/vit_guide.md": {"": ("vit_base_patch16_384", 384)},
    "docs/swin_guide.md": {
        "Swin-V1": ("swin_tiny_patch4_window7_224", 224),
        "Swin-V2": ("swinv2_tiny_window8_256", 256),
    },
}
"""Models with the edges of their images, by guide of FasterTransformer and first word of a table's heading."""
_PYTORCH_COLUMN = re.compile(r"(TorchScript|torch|torch\.jit\.trace)(?: <br/> .*)?")


def rows_of_faster_transformer(checkout: Path) -> Iterator[Row]:
    """Yield the rows of plain PyTorch, which NVIDIA/FasterTransformer compares itself with."""
    for guide, models in _GUIDES.items():
        text = (checkout / guide).read_text(encoding="utf-8")
        clocks_mhz = dict(re.findall(r"^\* (\w+) \(with mclk (\d+)", text, re.MULTILINE))
        for table in tables_in(text):
            headings = f"{table.section} {table.heading}"
            gpu = re.search(r"[Pp]erformance on (\w+)(?! and TensorFlow)\b", headings)
            column = next(filter(_PYTORCH_COLUMN.fullmatch, table.rows[0]), None)
            if gpu is None or column is None:
                continue
            model, image_size = models[next(word for word in models if table.heading.startswith(word))]
            if image_size and table.heading.endswith("FP16"):
                # Attention over 577 and 49 tokens was not aligned for matrix units, and takes two to three times as
                # long as others measured it.
                continue
            device = f"{gpu[1]} (memory {clocks_mhz[gpu[1]]} MHz)" if gpu[1] in clocks_mhz else gpu[1]
            for cells in table.rows[1:]:
                row = dict(zip(table.rows[0], cells, strict=True))
                if row[column]:
                    precision = row.get("Precision", table.heading.split()[-1])
                    figures = {
                        **_on_gpu(model, device, _precision(precision)),
                        **({"image_size": image_size} if image_size else {"sequence_length": int(row["Seq_len"])}),
                        "batch_size": int(row["Batch_size"]),
                        "latency_ms": _number(row[column]),
                        "compiled_by": None if column.startswith("torch <br") else "TorchScript",
                    }
                    yield _placed(figures, guide, table)


def rows_of_bert_demo(readmes: Sequence[Path]) -> Iterator[Row]:
    """Yield the rows of BERT with TensorRT in versions of NVIDIA/TensorRT's `demo/BERT/README.md`, the newest first.

    A GPU whose figures an older version has under another GPU's name is passed over, because the name is wrong. The
    page of release 10.9 calls the figures of the L4 those of an A30.
    """
    first_named: dict[tuple[float, ...], str] = {}
    newest: dict[str, list[Row]] = {}
    for readme in reversed(readmes):
        text = readme.read_text(encoding="utf-8")
        version = re.search(r"\|\s*TensorRT\s*\|\s*([\d.]+)", text)
        of_page: dict[str, list[Row]] = defaultdict(list)
        for table in tables_in(text):
            gpu = re.search(r"Inference performance:? NVIDIA (.+)", table.section, re.IGNORECASE)
            model = re.fullmatch(r"BERT (base|large)", table.heading, re.IGNORECASE)
            if gpu is not None and model is not None:
                rows = _demo_rows(table, f"bert-{model[1].lower()}-uncased", gpu[1])
                of_page[gpu[1]] += [_placed(row, readme.name, table, version and version[1]) for row in rows]
        for gpu_name, rows_of_gpu in of_page.items():
            figures = tuple(row["latency_ms"] for row in rows_of_gpu)
            if first_named.setdefault(figures, gpu_name) == gpu_name:
                newest[gpu_name] = rows_of_gpu
    for rows_of_gpu in newest.values():
        yield from rows_of_gpu


def without_host_bound(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows whose time follows their batch size, in their order; others say how fast the host issues work.

    A row is passed over if the next batch size adds less than half the time that its further items take in proportion.
    The last row is passed over with the one before it. Rows of training steps are kept.
    """
    alike: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        alike[tuple(row.get(key) for key in (*_ALIKE, "mode"))].append(row)
    for of_one in alike.values():
        follows = [
            _milliseconds(larger) >= _milliseconds(row) * (1 + larger["batch_size"] / row["batch_size"]) / 2
            for row, larger in itertools.pairwise(of_one)
        ]
        for row, is_kept in zip(of_one, [*follows, follows[-1]] if follows else [True], strict=True):
            if is_kept:
                yield row


def _milliseconds(row: Row) -> float:
    return float(row["latency_ms"] if "latency_ms" in row else 1e3 * row["batch_size"] / row["throughput"])


def _demo_rows(table: MarkdownTable, model: str, device: str) -> Iterator[Row]:
    """Yield a row per precision and line of a table whose head has two rows: precisions, and statistics of each."""
    precisions = [(column, name) for column, name in enumerate(table.rows[0]) if name.endswith("Latency (ms)")]
    for cells in table.rows[2:]:
        for column, name in precisions:
            p95, p99, mean = (_number(cell) for cell in cells[column : column + 3])
            yield {
                **_on_gpu(model, device, _precision(name.split()[0])),
                "runtime": "tensorrt",
                "sequence_length": int(cells[0]),
                "batch_size": int(cells[1]),
                "latency_ms": mean,
                "latency_p95_ms": p95,
                "latency_p99_ms": p99,
            }


def _on_gpu(model: str, device: str, precision: str) -> Row:
    return {"model": model, "device": device, "hardware": "cuda", "runtime": "pytorch", "precision": precision}


def _gpu_in(heading: str) -> str:
    """Return the GPU of a heading: `V100 16GB` of `NVIDIA DGX-1 (1x V100 16GB)`."""
    inside = re.search(r"\((?:\d+x )?(.+?)\)", heading)
    name = inside[1] if inside else heading.rpartition("NVIDIA ")[2]
    return re.sub(r"(\d\d)G$", r"\1GB", name)


def _precision(words: str) -> str:
    return {"mixed precision": "amp"}.get(words.strip().lower(), words.strip().lower())


def _number(cell: str) -> float:
    found = _NUMBER.search(cell)
    if found is None:
        raise ValueError(f"a number was expected, not {cell!r}")
    return float(found[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows of one repository as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m migrations.tools.nvidia_readmes", description=__doc__)
    parser.add_argument("repository", choices=("examples", "faster-transformer", "bert-demo"))
    parser.add_argument("paths", nargs="+", type=Path, help="a checkout, or pages of the demo, the newest first")
    parsed = parser.parse_args(arguments)
    if parsed.repository == "bert-demo":
        rows = rows_of_bert_demo(parsed.paths)
    else:
        read = rows_of_examples if parsed.repository == "examples" else rows_of_faster_transformer
        rows = without_host_bound(read(parsed.paths[0]))
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
