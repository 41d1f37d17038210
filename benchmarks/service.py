"""Requests per second and p99 of the service over those of a constant route, and failures while swapping under load.

`accel serve` over a home with the reference campaign is compared with a FastAPI app of one route. That validates the
same body with the same model, and returns constant bytes of the size of an answer, under the same server settings.
They take turns. Client and service are one process each, so two cores are needed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from accel_platform.events import Event, EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from figures import Figure, tell
from predictor.advisor.advisor import Advisor
from predictor.schemas.requests import RecommendQuery
from predictor.training.train import train
from service_load import Load, load

REFERENCE = Path(__file__).parent.parent / "accel_platform" / "knowledge" / "reference"
CANDIDATES = (
    "cpu", "openvino", "onnxruntime", "jax", "wasm", "NVIDIA A100 SXM4 80GB", "NVIDIA H100 SXM5 80GB", "NVIDIA L4",
    "NVIDIA T4", "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X", "Apple M2 Max",
)  # fmt: skip
CONNECTIONS = 8
MODELS = ("bert-base", "vit-base", "t5-small", "whisper-base", "distilbert", "gpt2", "roberta-base", "bert-large")
"""Four models that the campaign measured, and four like them."""
PROBE = RecommendQuery(model="bert-base", batch_size=3, hardware=list(CANDIDATES))
"""Query asked while snapshots and predictors change; each change changes the answer."""


def make_home(home: Path) -> Settings:
    """Import the reference campaign into a home, build its tables, train on them, and return its settings."""
    settings = Settings(home=home)
    log = EventLog.open(settings)
    for path in sorted(REFERENCE.glob("*.parquet")):
        log.adopt(path)
    refresh(settings)
    train(settings, log)
    return settings


def repeated() -> Iterator[bytes]:
    return itertools.repeat(PROBE.model_dump_json(exclude_unset=True).encode())


def distinct() -> Iterator[bytes]:
    """Yield bodies that were never sent before: any model, batch and objective, the candidates in any order."""
    drawn = random.Random(0)  # noqa: S311
    sent = set()
    while True:
        query = RecommendQuery(
            model=drawn.choice(MODELS),
            batch_size=drawn.randint(1, 16),
            objective=drawn.choice(("latency", "throughput", "memory", "cost", "energy")),
            hardware=drawn.sample(CANDIDATES, len(CANDIDATES)),
        )
        body = query.model_dump_json(exclude_unset=True).encode()
        if body not in sent:
            sent.add(body)
            yield body


def first_time(batch_sizes: range) -> list[bytes]:
    """Return bodies with every model at each of these batch sizes, once."""
    asked = [
        RecommendQuery(model=name, batch_size=batch_size, hardware=list(CANDIDATES))
        for name in MODELS
        for batch_size in batch_sizes
    ]
    random.Random(0).shuffle(asked)  # noqa: S311
    return [query.model_dump_json(exclude_unset=True).encode() for query in asked]


@dataclass(frozen=True)
class Served:
    """A service that runs."""

    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def settle(self) -> None:
        """Wait until it computes nothing: it imports beside the first requests what it may need later."""
        before, now = -1.0, self.cpu_s()
        while now - before > 0.05:
            time.sleep(1)
            before, now = now, self.cpu_s()


@contextmanager
def serving(command: list[str]) -> Iterator[Served]:
    """Start a service that prints its address on its first line, and yield it."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
            assert found, said + process.stderr.read()
            served = Served(int(found[1]), psutil.Process(process.pid))
            served.settle()
            yield served
        finally:
            process.terminate()


def accel_command(*words: str) -> list[str]:
    """Return a command of `accel` by this interpreter."""
    return [sys.executable, "-m", "accel_platform", *words]


def accel(settings: Settings) -> list[str]:
    """Return the command that serves a home on a free port."""
    return accel_command("serve", "--port", "0", "--home", str(settings.home))


def serve_constant(size: int) -> None:
    """Serve the route to compare with: it validates bodies and returns a constant."""
    from fastapi import FastAPI, Response

    from predictor.service.server import listen, run

    content = b'"' + b"x" * (size - 2) + b'"'
    app = FastAPI()

    @app.post("/recommend")
    async def constant(query: RecommendQuery) -> Response:  # noqa: ARG001
        return Response(content, media_type="application/json")

    with listen("127.0.0.1", 0) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
        run(app, listening)


def against_constant(settings: Settings, *, rounds: int, seconds: float) -> list[Figure]:
    """Measure throughput and p99 of both services in turns, for one repeated body and for new bodies."""
    size = len(Advisor(settings).answer(PROBE))
    bodies = {"repeated": repeated(), "distinct": distinct()}
    spells: dict[tuple[str, str], list[Load]] = {}
    with serving(accel(settings)) as ours, serving([sys.executable, __file__, "--constant", str(size)]) as constant:
        services = {"ours": ours, "constant": constant}
        for service in services.values():
            _spell(service, iter(first_time(range(100, 101))), 60.0)  # what a model costs is found out once
        cold = {name: _spell(service, iter(first_time(range(1, 17))), 60.0) for name, service in services.items()}
        for kind, name in itertools.product(bodies, services):
            load(services[name].port, bodies[kind], connections=CONNECTIONS, seconds=seconds / 2)
        for _ in range(rounds):
            for kind, name in itertools.product(bodies, services):
                spells.setdefault((kind, name), []).append(_spell(services[name], bodies[kind], seconds))
    return [
        *_figures("repeated", ">= 0.5", spells["repeated", "ours"], spells["repeated", "constant"], size),
        *_figures("distinct", ">= 0.25", spells["distinct", "ours"], spells["distinct", "constant"], size),
        *_figures("distinct, each cell for the first time", ">= 0.25", [cold["ours"]], [cold["constant"]], size),
    ]


def _spell(service: Served, bodies: Iterator[bytes], seconds: float) -> Load:
    before = service.cpu_s()
    spell = load(service.port, bodies, connections=CONNECTIONS, seconds=seconds)
    spell.service_cpu_s = service.cpu_s() - before
    assert not spell.failures, spell.failures[0]
    return spell


def _figures(kind: str, reach: str, ours: list[Load], constant: list[Load], size: int) -> list[Figure]:
    rates = [(a.per_second, b.per_second) for a, b in zip(ours, constant, strict=True)]
    tails = [(a.percentile_ms(99), b.percentile_ms(99)) for a, b in zip(ours, constant, strict=True)]
    mine, its = (statistics.median(values) for values in zip(*rates, strict=True))
    tail, its_tail = (statistics.median(values) for values in zip(*tails, strict=True))
    cpu_us = [1e6 * sum(s.service_cpu_s for s in of) / sum(len(s.latencies_s) for s in of) for of in (ours, constant)]
    busy = max(spell.busy for spell in (*ours, *constant))
    return [
        {"what": f"requests/s, {kind}, {len(CANDIDATES)} candidates, against a constant route", "reach": reach,
         "got": round(statistics.median(a / b for a, b in rates), 2),
         "detail": f"{mine:,.0f}/s against {its:,.0f}/s; {cpu_us[0]:.0f} us of CPU against {cpu_us[1]:.0f} us; "
                   f"{size:,} bytes; client busy {busy:.0%} at most"},
        {"what": f"p99 at {CONNECTIONS} connections, {kind}, against the same", "reach": "<= 4",
         "got": round(statistics.median(a / b for a, b in tails), 2),
         "detail": f"{tail:.2f} ms against {its_tail:.2f} ms"},
    ]  # fmt: skip


def swapping(settings: Settings, *, swaps: int) -> list[Figure]:
    """Count failures, and answers of no single pair, while snapshots and predictors are replaced under load.

    Another process publishes them, and prints the answer that each pair of snapshot and predictor must give.
    """
    answers: dict[str, set[str]] = {}
    bodies = itertools.chain.from_iterable(zip(repeated(), distinct(), strict=False))
    probe = next(repeated())

    def seen(body: bytes, answer: bytes) -> None:
        if body == probe:
            parsed = json.loads(answer)
            answers.setdefault(f"{parsed['snapshot_id']} {parsed['predictor_id']}", set()).add(_digest(answer))

    spells = []
    with (
        serving(accel(settings)) as service,
        subprocess.Popen(
            [sys.executable, __file__, "--publish", str(swaps), "--home", str(settings.home)],
            stdout=subprocess.PIPE,
            text=True,
        ) as publisher,
    ):
        while publisher.poll() is None:
            spells.append(load(service.port, bodies, connections=CONNECTIONS, seconds=1, seen=seen))
        spells.append(load(service.port, bodies, connections=CONNECTIONS, seconds=1, seen=seen))
        assert publisher.stdout is not None
        expected = json.load(publisher.stdout)
    failures = sum(len(spell.failures) for spell in spells)
    mixed = sum(digests != {expected.get(pair)} for pair, digests in answers.items())
    requests = sum(len(spell.latencies_s) for spell in spells)
    slowest = max(max(spell.latencies_s) for spell in spells)
    return [
        {"what": "swap under load: failed requests", "reach": "0", "got": failures,
         "detail": f"{requests:,} answered while {swaps} of each came; slowest {slowest * 1e3:.0f} ms"},
        {"what": "swap under load: answers of no one snapshot and predictor", "reach": "0", "got": mixed,
         "detail": f"{len(answers)} of the {len(expected)} pairs published were seen"},
    ]  # fmt: skip


def publish(settings: Settings, swaps: int) -> None:
    """Append, project and train so many times; then say, on stdout, the digest of the probe's answer for each pair."""
    log = EventLog.open(settings)
    advisor = Advisor(settings)
    expected = {}

    def note() -> None:
        state = advisor.state()
        predictor = state.predictor
        pair = f"{state.evidence.snapshot_id} {predictor.predictor_id if predictor else None}"
        expected[pair] = _digest(advisor.answer(PROBE))

    note()
    for number in range(swaps):
        log.append([Event.of(_imported(number), source="import", host_id="benchmark", run_id=f"benchmark-{number}")])
        refresh(settings)
        note()
        train(settings, log)
        note()
    json.dump(expected, sys.stdout)


def _imported(number: int) -> ResultRecorded:
    """Return an invented figure, as somebody could import it, for a home that is deleted."""
    return ResultRecorded(
        model_id=PROBE.model, model_family="bert", hardware="cuda", backend="pytorch", status="ok",
        provenance="imported", precision="float32", batch_size=PROBE.batch_size, sequence_length=128,
        device_id="benchmark-0", device_name="NVIDIA T4", latency_mean_ms=1.0 + number / 10,
    )  # fmt: skip


def _digest(answer: bytes) -> str:
    return hashlib.sha256(answer).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one spell of load")
    parser.add_argument("--swaps", type=int, default=5)
    parser.add_argument("--home", type=Path, help="a home that is there already (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--constant", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    parser.add_argument("--publish", type=int, metavar="SWAPS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.constant:
        serve_constant(arguments.constant)
        return
    if arguments.publish:
        publish(Settings(home=arguments.home), arguments.publish)
        return
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        settings = Settings(home=arguments.home) if arguments.home else make_home(Path(directory))
        figures = against_constant(settings, rounds=arguments.rounds, seconds=arguments.seconds)
        if not arguments.home:
            figures += swapping(settings, swaps=arguments.swaps)
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
