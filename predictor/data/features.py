"""Architecture features from model names: kinds of block (`blocks.toml`) and recurring stems.

Add a kind of block in `blocks.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

_STEMS = (
    "vit", "patch", "res", "next", "efficient", "mobile", "swin", "mix", "se", "eca", "nf", "dpn", "dense", "reg", "hr",
    "cs", "pool", "ghost", "dw", "deit", "conv", "nest", "former", "incep", "max", "ea", "bn", "gc", "lamb", "nas",
    "tiny", "small", "base", "large", "rep", "vgg", "dla", "gn", "relpos", "abswin", "hiera", "mlp", "hybrid", "bot",
    "cross", "cait", "sk", "blur", "aa", "edge", "clip", "window", "so", "eva", "mvit", "coat", "vov", "rex", "focal",
    "tnt", "twins", "pvt",
)  # fmt: skip
"""Parts of names that recur in several families."""
_CACHE_SIZE = 16_384
"""Cached names: more than any table of results has, and bounded, because queries bring new ones."""
_PUBLISHER_PREFIX = re.compile(r"^(timm_)?(tf|tv|gluon|ssl|swsl|ig|jx|test)_")
"""Prefix for the publisher of the weights, which does not change the network."""
_DIGEST_SUFFIX = re.compile(r"_[0-9a-f]{8}$")
"""Suffix that tells queried configs apart; stems in it mean nothing."""


@lru_cache(maxsize=_CACHE_SIZE)
def architecture_features(name: str) -> tuple[float, ...]:
    """Return 1 or 0 for each kind of block that the name stands for, then for each stem in it."""
    plain = _DIGEST_SUFFIX.sub("", _normalize_name(name))
    blocks = [pattern.search(plain) is not None for pattern in _patterns()]
    return tuple(map(float, [*blocks, *(stem in plain for stem in _STEMS)]))


def architecture_table(names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the architecture features of each name, a row per name; many rows share few names."""
    rows = {name: row for row, name in enumerate(dict.fromkeys(names))}
    return np.array([_architecture_row(name) for name in rows])[[rows[name] for name in names]]


@lru_cache(maxsize=_CACHE_SIZE)
def _architecture_row(name: str) -> npt.NDArray[np.float64]:
    """Return `architecture_features` as an array, which numpy stacks faster than it reads the numbers of a tuple."""
    return np.array(architecture_features(name))


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    text = files(__package__).joinpath("blocks.toml").read_text(encoding="utf-8")
    return tuple(re.compile("|".join(stems)) for stems in tomllib.loads(text).values())


def _normalize_name(name: str) -> str:
    return _PUBLISHER_PREFIX.sub("", re.sub(r"[^a-z0-9]+", "_", name.lower().rpartition("/")[2]))
