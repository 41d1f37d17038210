"""Building of knowledge packs from their source files, with the formats of the importer.

The same files and card give the same bytes: ids and times follow from the content and the card, not from the clock.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import InvalidInput
from accel_platform.events import Event, EventLog, codec
from accel_platform.events.types import ResultRecorded
from accel_platform.hardware.device_names import without_count
from accel_platform.knowledge.cards import (
    CARD,
    Card,
    KernelsTable,
    ResultsTable,
    SourceFile,
    card_text,
    load_card,
    source_of,
)
from accel_platform.knowledge.kernels import CONVERSIONS, write_kernels
from accel_platform.knowledge.packs import KERNELS, RESULTS
from accel_platform.settings import Settings
from migrations.pipeline.cross_document_rules import find_cross_document_suspicions
from migrations.pipeline.document_reader import Reading, read_document
from migrations.pipeline.ledger import numbered_id
from migrations.sources.documents import Content, Document, load, parse
from migrations.suspicion.claims import NO_CLAIMS

_VERSION_DIGITS = 12


@dataclass(frozen=True)
class BuiltPack:
    """Card and size of a pack that one build wrote, and the rows of the source that it left out."""

    card: Card
    size_bytes: int
    changed: bool
    """True if the results differ from those of the build before."""
    left_out: dict[str, int]
    """Number of rows left out, by reason."""


def build_pack(card_folder: Path, source_dir: Path, out: Path) -> BuiltPack:
    """Convert a pack's source files, and write its card and results into the folder `out`.

    Raises InvalidInput for a file that is missing or that no reader knows.
    """
    card = load_card(card_folder)
    if not card.files:
        raise InvalidInput(f"The card of {card.name} names no [files] to convert: write them, or leave the pack out.")
    readings = [_read(card, source_dir, path, file) for path, file in sorted(card.files.items())]
    results, left_out = _usable_results(readings, card)
    if not results:
        raise InvalidInput(f"The files of {card.name} hold no results that a pack may hold: {left_out}.")
    version = _version(results)
    data = codec.to_parquet(codec.to_arrow(_pack_events(results, card, version)), f"{card.name}/{RESULTS}")
    payloads = [result for _, result in results]
    table = ResultsTable(
        version=version,
        rows=len(payloads),
        models=len({result.model_id for result in payloads}),
        devices=tuple(sorted({result.device_name or result.hardware for result in payloads})),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    files = {
        path: SourceFile(path=file.path, sha256=reading.entry.content_sha256)
        for (path, file), reading in zip(sorted(card.files.items()), readings, strict=True)
    }
    changed = card.results is None or card.results.sha256 != table.sha256
    built = card.model_copy(update={"files": files, "results": table})
    make_directory(out)
    write_durably(out / RESULTS, data)
    write_durably(out / CARD, card_text(built))
    return BuiltPack(built, len(data), changed, left_out)


def _usable_results(readings: list[Reading], card: Card) -> tuple[list[tuple[Event, ResultRecorded]], dict[str, int]]:
    """Return the results that a pack may hold, each with its event, and the number of rows left out by reason."""
    suspected = _find_suspected(readings)
    usable: list[tuple[Event, ResultRecorded]] = []
    left_out: Counter[str] = Counter()
    for reading in readings:
        for event in codec.from_arrow(codec.rows_to_arrow(reading.rows).to_batches()):
            payload = event.payload
            if not isinstance(payload, ResultRecorded):
                left_out["could not be read"] += 1
            elif payload.status != "ok":
                left_out["without a figure"] += 1
            elif payload.device_name is None:
                left_out["without a device"] += 1
            elif payload.provenance != "imported" or event.event_id in suspected:
                left_out["suspected by the rules of the importer"] += 1
            else:
                result = _complete(payload, card)
                usable.append((event.model_copy(update={"payload": result}), result))
    return usable, dict(left_out)


def _pack_events(results: list[tuple[Event, ResultRecorded]], card: Card, version: str) -> list[Event]:
    """Return the events with ids, times and source that follow from the card and the version alone."""
    return [
        event.model_copy(
            update={
                "event_id": numbered_id(f"pack {card.name} {version}", number),
                "recorded_at": card.recorded_at,
                "source": source_of(card.name, version),
                "causation_id": None,
            }
        )
        for number, (event, _) in enumerate(results)
    ]


def build_kernels(folder: Path, source: Path) -> BuiltPack:
    """Convert a pack's `kernels.parquet` where its source is at hand, and write rows, devices and hash into its card.

    Raises InvalidInput for a table that cannot be read or names no devices.
    """
    card, path = load_card(folder), folder / KERNELS
    files = dict(card.files)
    for place, file in card.files.items():
        if card.name in CONVERSIONS and (source / place).exists():
            write_kernels(CONVERSIONS[card.name](source / place), path)
            files[place] = SourceFile(path=file.path, sha256=_digest(source / place))
    try:
        data = path.read_bytes()
        devices = pq.read_table(pa.BufferReader(data), columns=["device"])["device"]
        names = tuple(sorted(devices.cast(pa.string()).unique().to_pylist()))
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise InvalidInput(f"{path} is no table of kernels with a column `device`: {error}") from error
    table = KernelsTable(rows=len(devices), devices=names, sha256=hashlib.sha256(data).hexdigest())
    sealed = card.model_copy(update={"files": files, "kernels": table})
    write_durably(folder / CARD, card_text(sealed))
    return BuiltPack(sealed, len(data), card.kernels != table, {})


def _read(card: Card, source_dir: Path, path: str, file: SourceFile) -> Reading:
    """Read one file under its name in the repository, which formats without such columns take hints from."""
    content = load(source_dir / path)
    if content.problem is not None:
        raise InvalidInput(f"The file {source_dir / path} of the pack {card.name} {content.problem}.")
    named = Content(f"{card.repository}/{file.path}", content.sha256, content.raw)
    document: Document = parse(named)
    reading = read_document(document, NO_CLAIMS)
    if reading.entry.outcome != "imported":
        raise InvalidInput(f"{source_dir / path} of the pack {card.name} cannot be converted: {reading.entry.reason}.")
    return reading


def _complete(result: ResultRecorded, card: Card) -> ResultRecorded:
    """Return the result, completed from the card: the batch size, a device's full name."""
    known: dict[str, Any] = {}
    if card.batch_size is not None and result.batch_size is None and result.mode == "inference":
        known["batch_size"] = card.batch_size
    name = result.device_name or ""
    short = without_count(name)
    if short in card.device_names:
        known["device_name"] = name.removesuffix(short) + card.device_names[short]
    return result.model_copy(update=known)


def _find_suspected(readings: list[Reading]) -> set[object]:
    """Return the ids of results that the comparison of all files with each other suspects."""
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog.open(Settings(home=Path(folder)))
        for reading in readings:
            log.append_rows(
                [*codec.to_rows([reading.event]), *reading.rows], key=f"import-{reading.entry.content_sha256[:32]}"
            )
        return {getattr(event.payload, "result_id", None) for event in find_cross_document_suspicions(log)}


def _version(results: list[tuple[Event, ResultRecorded]]) -> str:
    """Return the version of a pack: a hash of its results."""
    digest = hashlib.sha256()
    for event, payload in results:
        digest.update(f"{event.occurred_at} {event.host_id} ".encode())
        digest.update(payload.model_dump_json(exclude_none=True).encode())
    return digest.hexdigest()[:_VERSION_DIGITS]


def _digest(source: Path) -> str:
    """Return the hash of a file, or of the names and hashes of the tables in a folder."""
    if source.is_file():
        return hashlib.sha256(source.read_bytes()).hexdigest()
    total = hashlib.sha256()
    for path in sorted(source.rglob("*.parquet")):
        total.update(f"{path.relative_to(source)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
