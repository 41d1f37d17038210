"""Data flow between a model's operators: the numbers they move one by one, and when a compiler fuses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from accel_platform.workloads.repetition import passes


@dataclass
class DataFlow:
    """Operators in order of execution, with the storages that each reads and writes.

    A compiler fuses operators that only move numbers, such as a norm and an activation, with those that made their
    inputs. Numbers that stay inside such a group are not moved. Products, such as a convolution, end a group.
    """

    _moves: list[bool] = field(default_factory=list)
    _reads: list[list[tuple[int, int]]] = field(default_factory=list)
    """Storage and numbers of each input, per operator."""
    _writes: list[list[tuple[int, int]]] = field(default_factory=list)
    _group: list[int] = field(default_factory=list)
    """An earlier operator of the same group, or the operator itself."""
    _made_by: dict[int, int] = field(default_factory=dict)
    _alive: list[Any] = field(default_factory=list)
    """Tensors that were met: a storage that is gone would give its id to another."""

    def add(self, inputs: Sequence[Any], outputs: Sequence[Any], *, moves: bool) -> None:
        """Add an operator; `moves` says that it only moves numbers."""
        place = len(self._group)
        self._alive += [*inputs, *outputs]
        self._moves.append(moves)
        self._group.append(place)
        self._reads.append([(_storage(tensor), passes() * held_numbers(tensor)) for tensor in inputs])
        self._writes.append([(_storage(tensor), passes() * tensor.numel()) for tensor in outputs])
        for storage, _ in self._reads[place] if moves else ():
            maker = self._made_by.get(storage)
            if maker is not None and self._moves[maker]:
                self._group[self._first(place)] = self._first(maker)
        self._made_by.update((storage, place) for storage, _ in self._writes[place])

    def fused_share(self) -> float:
        """Return the share of the moved numbers that is moved when groups are fused; 1 where nothing is moved."""
        alone = sum(n for i, moves in enumerate(self._moves) if moves for _, n in self._reads[i] + self._writes[i])
        read: dict[tuple[int, int], int] = {}
        written: dict[tuple[int, int], int] = {}
        made: dict[int, tuple[int, int, bool]] = {}
        for place, moves in enumerate(self._moves):
            group = self._first(place)
            for storage, numbers in self._reads[place]:
                maker, held, fusible = made.get(storage, (-1, 0, False))
                if maker == group:
                    continue
                if moves:
                    read[group, storage] = max(numbers, read.get((group, storage), 0))
                if fusible:
                    written[maker, storage] = held
            made.update((storage, (group, numbers, moves)) for storage, numbers in self._writes[place])
        return (sum(read.values()) + sum(written.values())) / alone if alone else 1.0

    def _first(self, place: int) -> int:
        while self._group[place] != place:
            place = self._group[place]
        return place


def held_numbers(tensor: Any) -> int:
    """Return how many different numbers a tensor has: an expanded dimension has one."""
    numbers = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= size if stride else 1
    return numbers


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Return the tensors in nested arguments or outputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
