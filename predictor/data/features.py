"""What a network is built of, told by its published name: kinds of block (`blocks.toml`) and stems of its size."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files

_STEMS = (
    "vit", "patch", "res", "next", "efficient", "mobile", "swin", "mix", "se", "eca", "nf", "dpn", "dense", "reg", "hr",
    "cs", "pool", "ghost", "dw", "deit", "conv", "nest", "former", "incep", "max", "ea", "bn", "gc", "lamb", "nas",
    "tiny", "small", "base", "large", "rep", "vgg", "dla", "gn", "relpos", "abswin", "hiera", "mlp", "hybrid", "bot",
    "cross", "cait", "sk", "blur", "aa", "edge", "clip", "window", "so", "eva", "mvit", "coat", "vov", "rex", "focal",
    "tnt", "twins", "pvt",
)  # fmt: skip
"""Parts of names that recur in several families."""
_CACHE_SIZE = 16_384
"""Names remembered: more than any table of results has, and strangers' never end."""
_PUBLISHER_PREFIX = re.compile(r"^(timm_)?(tf|tv|gluon|ssl|swsl|ig|jx|test)_")
"""Who trained the weights, which changes nothing about the network."""
_DIGEST_SUFFIX = re.compile(r"_[0-9a-f]{8}$")
"""What tells one stranger's config from another's; that it may hold an `aa` says nothing of blocks."""


@lru_cache(maxsize=_CACHE_SIZE)
def architecture_features(name: str) -> tuple[float, ...]:
    """1 for every kind of block that the name stands for, then 1 for every stem in it; else 0."""
    plain = _DIGEST_SUFFIX.sub("", _normalize_name(name))
    found = [pattern.search(plain) is not None for pattern in _patterns()]
    return tuple(map(float, [*found, *(stem in plain for stem in _STEMS)]))


@lru_cache(maxsize=_CACHE_SIZE)
def family_from_name(name: str) -> str:
    """The letters that the name begins with, without the maker of its weights: `resnet` of `tv_resnet50.in1k`.

    Versions of one design (`swin`, `swinv2`) and sizes of one model are one family or close to it.
    """
    plain = _normalize_name(name)
    found = re.match(r"[a-z]+", plain)
    return found.group() if found else plain


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    text = files(__package__).joinpath("blocks.toml").read_text(encoding="utf-8")
    return tuple(re.compile("|".join(stems)) for stems in tomllib.loads(text).values())


def _normalize_name(name: str) -> str:
    return _PUBLISHER_PREFIX.sub("", re.sub(r"[^a-z0-9]+", "_", name.lower().rpartition("/")[2]))
