"""Time that the service takes for each kind of dashboard page over 1,000,000 results.

`accel serve` answers over a synthetic log. One client in its own process asks for pages one after the other, no address
twice, so that only caches of a whole snapshot help. Times are the client's, from the request to the last byte.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.reader import Reader
from figures import Figure, tell
from service import accel, serving
from synthetic import write_log

_DRAWN = random.Random(0)  # noqa: S311
_HARDWARE = ("cpu", "openvino", "onnxruntime", "cuda", "rocm")


def make_home(home: Path, results: int) -> Settings:
    settings = Settings(home=home)
    if not (home / "warehouse" / "CURRENT").exists():
        write_log(home, results)
        publish.publish(settings, publish.stage(settings))
    return settings


def pages(settings: Settings) -> dict[str, Callable[[], str]]:
    """Return a function for each kind of page that gives a new address at each call."""
    reader = Reader(settings)
    ids = [row["result_id"] for row in reader.rows("SELECT result_id FROM results USING SAMPLE 2000")]
    results, days = iter(ids), iter(range(1, 10**6))

    def model() -> str:
        return f"model-{_DRAWN.randrange(200)}"

    def hardware() -> str:
        return _DRAWN.choice(_HARDWARE)

    def once() -> str:
        """Return a new filter that keeps nearly all results."""
        return f"since=2020-01-01T00:00:{next(days) % 60:02}.{_DRAWN.randrange(10**6):06}"

    return {
        "overview": lambda: "",
        "models": lambda: f"/models?q={_DRAWN.randrange(100)}&sort=-newest_at",
        "one model": lambda: f"/models/{model()}?{once()}",
        "one model, filtered": lambda: f"/models/{model()}?hardware={hardware()}&batch_size=4&{once()}",
        "hardware": lambda: f"/hardware?q={_DRAWN.choice('abcdefgh')}",
        "one device": lambda: f"/hardware/{hardware()}?device=device-{_DRAWN.randrange(7)}",
        "matrix": lambda: f"/matrix?q={_DRAWN.randrange(100)}",
        "matrix, 100 rows": lambda: f"/matrix?page={_DRAWN.randint(1, 2)}",
        "one cell": lambda: f"/matrix/cell?model={model()}&hardware={hardware()}",
        "history of a cell": lambda: f"/matrix/history?model={model()}&hardware={hardware()}&mode=inference",
        "compare": lambda: f"/compare?model={model()}&{once()}",
        "compare models": lambda: f"/compare?by=model&model={model()}&model={model()}&hardware={hardware()}&{once()}",
        "regressions": lambda: f"/regressions?model={model()}",
        "recommend": lambda: f"/recommend?model={model()}&batch_size={_DRAWN.randint(1, 64)}",
        "history audit": lambda: f"/history?rule=r{_DRAWN.randrange(10**6)}",
        "results": lambda: f"/results?{once()}",
        "results, filtered": lambda: f"/results?model={model()}&hardware={hardware()}&{once()}",
        "one result": lambda: f"/results/{next(results)}",
        "runs": lambda: f"/runs?page={_DRAWN.randint(1, 20)}",
        "one run": lambda: f"/runs/run-{_DRAWN.randrange(1000)}",
        "events": lambda: f"/events?{once()}Z",
        "events, filtered": lambda: f"/events?type=ResultRecorded&host_id=host-{_DRAWN.randrange(7)}&{once()}Z",
        "one event": lambda: f"/events/{next(results)}",
    }


def measure(settings: Settings, rounds: int) -> Iterator[Figure]:
    kinds = pages(settings)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    sizes: dict[str, int] = {}
    with (
        serving(accel(settings)) as served,
        httpx.Client(base_url=f"http://127.0.0.1:{served.port}/dashboard") as client,
    ):
        first = _ask(client, "")[0]
        for _ in range(rounds):
            for name, address in kinds.items():
                seconds, sizes[name] = _ask(client, address())
                times[name].append(seconds)
    everything = [seconds for some in times.values() for seconds in some]
    yield _figure("first page of a service that nobody asked yet", "<= 1 s", [first])
    yield _figure("all pages, p95", "<= 300 ms", everything)
    for name, some in times.items():
        yield _figure(f"{name}, p95", "<= 300 ms", some) | {"bytes": sizes[name]}


def _ask(client: httpx.Client, address: str) -> tuple[float, int]:
    started = time.perf_counter()
    response = client.get(address)
    seconds = time.perf_counter() - started
    assert response.status_code in (200, 404), (address, response.status_code)
    return seconds, len(response.content)


def _figure(what: str, reach: str, times: list[float]) -> Figure:
    p95 = statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    detail = f"p50 {1e3 * statistics.median(times):.0f} ms, slowest {1e3 * max(times):.0f} ms, {len(times)} pages"
    return {"what": what, "reach": reach, "got": f"{1e3 * p95:.0f} ms", "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30, help="pages of each kind")
    parser.add_argument("--home", type=Path, help="an installation to keep and use again (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        settings = make_home(arguments.home or Path(directory), arguments.results)
        tell(list(measure(settings, arguments.rounds)), for_machines=arguments.json)


if __name__ == "__main__":
    main()
