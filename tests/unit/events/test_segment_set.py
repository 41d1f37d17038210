"""Ids of snapshots: a function of the set of names, computed from what differs."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.events import segment_set
from accel_platform.events.catalog import Catalog, Entry, Pack
from accel_platform.events.segment_set import Snapshot

_names = st.frozensets(st.text("abc-01", min_size=1, max_size=6), max_size=12)


class TestSetHash:
    @given(_names, _names)
    def test_adding_and_removing_lead_to_the_same_hash(self, some: frozenset[str], others: frozenset[str]) -> None:
        both = segment_set.multiply(segment_set.multiply(segment_set.EMPTY, some), others - some)
        assert both == segment_set.multiply(segment_set.EMPTY, sorted(some | others, reverse=True))
        assert segment_set.divide(both, some - others) == segment_set.multiply(segment_set.EMPTY, others)

    def test_the_prime_is_one(self) -> None:
        """By Fermat's test with several bases; Bitcoin Core states the same number."""
        prime = 2**3072 - 1_103_717
        assert all(pow(base, prime - 1, prime) == 1 for base in (2, 3, 5, 7, 11))

    def test_the_fold_is_the_remainder(self) -> None:
        number = int.from_bytes(hashlib.shake_256(b"a").digest(384), "little")
        other = int.from_bytes(hashlib.shake_256(b"b").digest(384), "little")
        assert segment_set.multiply(segment_set.EMPTY, ["a", "b"]) == number * other % (2**3072 - 1_103_717)

    def test_an_id_stays_what_it_is(self) -> None:
        """Stored ids must be found by every later version."""
        assert Snapshot(frozenset()).id == "c85525462fdcf30a2c18d6f4b9292300"
        assert Snapshot(frozenset({"a", "b"})).id == "afdd3fd72b64cb242b6189c92e431264"


class TestSnapshot:
    @given(st.lists(_names, min_size=1, max_size=5))
    def test_an_id_does_not_depend_on_the_way_to_the_set(self, history: list[frozenset[str]]) -> None:
        near: Snapshot | None = None
        for names in history:
            near = Snapshot(names, near)
            assert near.id == Snapshot(names).id
            assert near == Snapshot(names)

    @given(_names, _names)
    def test_equal_ids_mean_equal_sets(self, some: frozenset[str], others: frozenset[str]) -> None:
        assert (Snapshot(some).id == Snapshot(others).id) == (some == others)

    def test_one_name_more_hashes_one_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hashed: list[str] = []
        real = segment_set.multiply

        def noted(product: int, names: frozenset[str]) -> int:
            hashed.extend(names)
            return real(product, names)

        many = Snapshot(frozenset(f"segment-{n}" for n in range(500)))
        assert many.id
        monkeypatch.setattr(segment_set, "multiply", noted)
        more = Snapshot(many.segments | {"new"}, many)
        assert more.id != many.id
        assert hashed == ["new"]

    def test_the_former_id_is_known(self) -> None:
        snapshot = Snapshot(frozenset({"b", "a"}))
        assert snapshot.has_id(hashlib.sha256(b"a\nb").hexdigest()[:32])
        assert snapshot.has_id(snapshot.id)
        assert not snapshot.has_id(Snapshot(frozenset({"a"})).id)


class TestCatalog:
    @given(st.lists(_names, max_size=6), st.lists(_names.filter(bool), max_size=4))
    def test_comes_back_as_it_was(self, snapshots: list[frozenset[str]], packs: list[frozenset[str]]) -> None:
        entries, before = [], frozenset[str]()
        for number, names in enumerate(snapshots):
            entries.append(Entry(f"{number:032x}", sorted(names - before), sorted(before - names)))
            before = names
        catalog = Catalog.of(entries, {Snapshot(names).id: Pack(names, n) for n, names in enumerate(packs)}, None)
        again = Catalog.decode(catalog.encode())
        assert [(e.id, sorted(e.added), sorted(e.removed)) for e in again.entries] == [
            (e.id, e.added, e.removed) for e in entries
        ]
        assert again.packs == catalog.packs
        assert again.packed == catalog.packed
        assert again.packed.is_hashed
        assert again.packed.id == Snapshot(catalog.packed.segments).id
