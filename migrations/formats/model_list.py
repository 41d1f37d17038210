"""Tables about models without a figure of any run: their pre-training, their accuracy on a data set."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "a table about models, without times of any run"

_ABOUT = {"pretrain", "pretrained", "dataset", "params", "param_count", "img_size", "crop_pct", "interpolation"}
_ACCURACY = {"top1", "top5", "top1_err", "top5_err", "top1_diff", "top5_diff", "rank_diff"}
_KNOWN = _ABOUT | _ACCURACY | {"model"}


def detect(document: Document) -> float:
    """Return high confidence where a model's row holds nothing beyond what it is and how often it is right."""
    columns = set(document.columns)
    return 0.85 if "model" in columns and len(columns) > 1 and columns <= _KNOWN else 0.0
