"""Knowledge packs: public figures of others, adopted into the log as segments of imported results.

A pack is a folder with a card, and `results.parquet`, `kernels.parquet` or both. Shipped packs lie in `packs/`. Which
packs are used is a matter of events, so that tables follow from the log alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.errors import AccelError, Conflict, InvalidInput, NotFound, one_line
from accel_platform.events import Event, EventLog, codec
from accel_platform.events.types import KnowledgeAdded, KnowledgeRemoved, ResultRecorded
from accel_platform.knowledge.cards import Card, load_card

PACKS = Path(__file__).with_name("packs")
RESULTS = "results.parquet"
KERNELS = "kernels.parquet"
_CHOICES = "packs-chosen-"
"""Prefix of the segments that hold additions and removals of packs."""
_ADDED = "pack-"
"""Prefix of the segments that hold the results of packs."""


FITTED_FROM = (
    "aiconfigurator", "aiconfigurator-kernels", "llm-inference-bench", "llm-pilot", "neusight-kernels",
    "neusight-models",
)  # fmt: skip
"""Packs that predictors which ship fitted have learned from: removing one takes nothing out of these."""


@dataclass(frozen=True)
class Pack:
    """One pack in a folder, whose files fit its card."""

    card: Card
    folder: Path


@dataclass(frozen=True)
class Refusal:
    """A folder that is not used as a pack, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class PackState:
    """One pack that is shipped or was ever added. `reason` says why it is not used; None if it is."""

    name: str
    card: Card | None
    """None where it cannot be read."""
    shipped: bool
    used: bool
    reason: str | None = None


def read_pack(folder: Path) -> Pack:
    """Read a pack and compare its files with its card. Raises InvalidInput with the reason for a refusal."""
    card = load_card(folder)
    if card.results is None and card.kernels is None:
        raise InvalidInput(f"The pack {card.name} has neither results nor kernels: `accel knowledge build` makes them.")
    for name, table in ((RESULTS, card.results), (KERNELS, card.kernels)):
        path = folder / name
        if table is None:
            if path.exists():
                raise InvalidInput(f"The card of the pack {card.name} does not speak of {path}: add it or remove it.")
            continue
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise InvalidInput(f"Cannot read {path}: {error.strerror or error}.") from error
        if found != table.sha256:
            raise InvalidInput(
                f"{path} is damaged or of another version: its SHA-256 begins {found[:12]}, "
                f"the card says {table.sha256[:12]}. Fetch the pack again."
            )
    return Pack(card, folder)


def shipped_packs() -> Iterator[Pack | Refusal]:
    """Yield the packs that come with this package, by name; damaged ones with their reason."""
    for folder in sorted(PACKS.iterdir()) if PACKS.is_dir() else ():
        if not folder.is_dir():
            continue
        try:
            yield read_pack(folder)
        except InvalidInput as refused:
            yield Refusal(folder.name, str(refused))


def adopt_packs(log: EventLog) -> list[Refusal]:
    """Append the results of every shipped pack that nobody removed; repeating that changes nothing.

    Returns the packs that cannot be used. Raises LogUnavailable.
    """
    choices = _choices(log)
    refused = []
    for pack in shipped_packs():
        if isinstance(pack, Refusal):
            refused.append(pack)
        elif pack.card.results is not None and _is_wanted(pack.card, choices.get(pack.card.name)):
            try:
                _append(log, pack)
            except InvalidInput as error:
                refused.append(Refusal(pack.card.name, str(error)))
    return refused


def add_pack(log: EventLog, folder: Path) -> Pack:
    """Adopt a pack from a folder, after a check of each of its events.

    Raises InvalidInput for a pack that is damaged, of a newer version or not one of imported results, Conflict for the
    name of a shipped pack.
    """
    pack = read_pack(folder)
    if (PACKS / pack.card.name).exists() and folder.resolve() != (PACKS / pack.card.name).resolve():
        raise Conflict(
            f"The name {pack.card.name} is that of a shipped pack: rename the folder, and the pack in its card."
        )
    if pack.card.results is not None:
        _require_imported(pack)
    _append(log, pack)
    return pack


def shipped_results() -> list[str]:
    """Return the names of the shipped packs that hold results and can be read."""
    return [
        pack.card.name for pack in shipped_packs() if not isinstance(pack, Refusal) and pack.card.results is not None
    ]


def removed_packs(log: EventLog) -> list[str]:
    """Return the names of the packs that somebody took out of use. Raises LogUnavailable."""
    return sorted(name for name, choice in _choices(log).items() if isinstance(choice, KnowledgeRemoved))


def holds_only_packs(log: EventLog) -> bool:
    """Return whether the log is empty or holds nothing but packs that are in use. Raises LogUnavailable."""
    return all(name.startswith((_ADDED, _CHOICES)) for name in log.snapshot().segments) and not removed_packs(log)


def shipped_folder(name: str) -> Path:
    """Return the folder of a shipped pack. Raises NotFound."""
    known = [folder.name for folder in sorted(PACKS.iterdir()) if folder.is_dir()]
    if name not in known:
        raise NotFound(f"{name!r} is neither a folder nor a shipped pack. Shipped are {', '.join(known) or 'none'}.")
    return PACKS / name


def remove_pack(log: EventLog, name: str, *, by: str | None = None) -> None:
    """Take a pack out of use until it is added again; its events stay in the log. Raises NotFound."""
    state_of(pack_states(log), name)
    event = Event.of(KnowledgeRemoved(pack=name, by=by), source="knowledge")
    log.append([event], key=f"{_CHOICES}{event.event_id}")


def pack_states(log: EventLog) -> list[PackState]:
    """Return every pack that is shipped or was ever added, by name. Raises LogUnavailable."""
    choices = _choices(log)
    states = {}
    for shipped in shipped_packs():
        if isinstance(shipped, Refusal):
            states[shipped.name] = PackState(shipped.name, None, shipped=True, used=False, reason=shipped.reason)
        else:
            states[shipped.card.name] = _state(shipped.card, choices.get(shipped.card.name), shipped=True)
    cards = {
        event.payload.pack: Card.model_validate(event.payload.card)
        for event in _choice_events(log)
        if isinstance(event.payload, KnowledgeAdded)
    }
    for name, card in cards.items():
        states.setdefault(name, _state(card, choices[name], shipped=False))
    return [states[name] for name in sorted(states)]


def state_of(states: Sequence[PackState], name: str) -> PackState:
    """Return the state of one pack. Raises NotFound, which names those there are."""
    for state in states:
        if state.name == name:
            return state
    known = ", ".join(state.name for state in states)
    raise NotFound(f"No knowledge pack is called {name!r}. There are {known or 'none'}.")


def _state(card: Card, choice: KnowledgeAdded | KnowledgeRemoved | None, *, shipped: bool) -> PackState:
    if isinstance(choice, KnowledgeRemoved):
        by = f" by {choice.by}" if choice.by else ""
        reason = f"removed{by}: `accel knowledge add {card.name}` uses it again"
        return PackState(card.name, card, shipped=shipped, used=False, reason=reason)
    if card.results is not None and (choice is None or choice.version != card.results.version):
        reason = "not in this log yet: `accel knowledge add --all`"
        return PackState(card.name, card, shipped=shipped, used=False, reason=reason)
    return PackState(card.name, card, shipped=shipped, used=True)


def _is_wanted(card: Card, choice: KnowledgeAdded | KnowledgeRemoved | None) -> bool:
    assert card.results is not None
    return choice is None or (isinstance(choice, KnowledgeAdded) and choice.version != card.results.version)


def _append(log: EventLog, pack: Pack) -> None:
    """Append the pack's results, and then the event that it is used: a crash in between is made good by the next."""
    card = pack.card
    if card.results is not None:
        try:
            table = pq.read_table(pack.folder / RESULTS, partitioning=None).select(codec.SCHEMA.names)
        except (pa.ArrowInvalid, KeyError, OSError) as error:
            raise InvalidInput(f"{pack.folder / RESULTS} is no file of events: {error}") from error
        log.append_table(table, key=f"{_ADDED}{card.name}-{card.results.version}")
    version = card.results.version if card.results else None
    event = Event.of(KnowledgeAdded(pack=card.name, version=version, card=card.as_dict()), source="knowledge")
    log.append([event], key=f"{_CHOICES}{event.event_id}")


def _require_imported(pack: Pack) -> None:
    """Raise InvalidInput unless every event is one that a pack may hold, and readable by this program."""
    path = pack.folder / RESULTS
    try:
        events = list(codec.from_arrow(pq.read_table(path, partitioning=None).to_batches()))
    except (pa.ArrowInvalid, KeyError, ValueError, AccelError) as error:
        raise InvalidInput(f"{path} cannot be used: {one_line(error)}") from error
    for event in events:
        if event.source != pack.card.source:
            raise InvalidInput(f"{path} holds an event of {event.source!r}, not of {pack.card.source!r}.")
        if not isinstance(event.payload, ResultRecorded):
            raise InvalidInput(f"{path} holds an event of type {event.type}; a pack holds results only.")
        if event.payload.provenance != "imported":
            raise InvalidInput(f"{path} holds a result that is {event.payload.provenance}, not imported.")
    assert pack.card.results is not None
    if len(events) != pack.card.results.rows:
        raise InvalidInput(f"{path} holds {len(events)} results, the card says {pack.card.results.rows}.")


def _choices(log: EventLog) -> dict[str, KnowledgeAdded | KnowledgeRemoved]:
    """Return the last choice made about each pack."""
    found: dict[str, KnowledgeAdded | KnowledgeRemoved] = {}
    for event in _choice_events(log):
        assert isinstance(event.payload, KnowledgeAdded | KnowledgeRemoved)
        found[event.payload.pack] = event.payload
    return found


def _choice_events(log: EventLog) -> list[Event]:
    events = log.read(log.snapshot().beginning(_CHOICES))
    return sorted(events, key=lambda event: (event.recorded_at, event.event_id))
