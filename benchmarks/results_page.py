"""`GET /results` over 1,000,000 results against plain DuckDB: one file, one table with the same rows, the same page.

Both sides take turns, page by page: the first, one in the middle, a filtered one. The service answers over HTTP with
JSON; DuckDB hands its rows to Python. Beside it, what a whole export costs in time and memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import duckdb
import httpx

from accel_platform.settings import Settings
from accel_platform.warehouse.layers import require_current
from accel_platform.warehouse.publish import refresh
from figures import tell
from predictor.schemas.rows import Result
from service import Served, accel, serving
from synthetic import write_log

LIMIT = 100
_COLUMNS = ", ".join(Result.model_fields)


def plain_table(settings: Settings, path: Path) -> duckdb.DuckDBPyConnection:
    """Copy the results into one table of a DuckDB file of its own."""
    con = duckdb.connect(str(path))
    con.execute("SET TimeZone = 'UTC'")
    with require_current(settings).open() as served:
        results = served.execute(f"SELECT {_COLUMNS} FROM results").to_arrow_table()
    con.execute("CREATE TABLE results AS SELECT * REPLACE (result_id::UUID AS result_id) FROM results")
    del results
    con.execute("CHECKPOINT")
    return con


def spent_ms(ask: Callable[[], object]) -> float:
    started = time.perf_counter()
    ask()
    return (time.perf_counter() - started) * 1e3


def pages(served: Served, con: duckdb.DuckDBPyConnection, rounds: int) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", timeout=60) as http:
        middle = con.execute("SELECT result_id FROM results ORDER BY result_id LIMIT 1 OFFSET 500000").fetchall()[0][0]
        assert isinstance(middle, UUID)
        for name, url, condition in (
            ("first page", "/results?", "true"),
            ("a page in the middle", f"/results?cursor={_cursor(middle)}&", f"result_id < '{middle}'"),
            ("first page of a model on a device", "/results?model=model-7&hardware=cpu&",
             "model_id = 'model-7' AND hardware = 'cpu'"),
        ):  # fmt: skip
            sql = f"SELECT {_COLUMNS} FROM results WHERE {condition} ORDER BY result_id DESC LIMIT {LIMIT}"
            address = f"{url}limit={LIMIT}"
            theirs = [str(row[0]) for row in con.execute(sql).fetchall()]
            ours = [row["result_id"] for row in http.get(address).raise_for_status().json()["results"]]
            assert ours == theirs, f"{name}: not the same rows"
            service, plain = [], []
            for _ in range(rounds):
                plain.append(spent_ms(lambda: con.execute(sql).fetchall()))  # noqa: B023
                service.append(spent_ms(lambda: http.get(address)))  # noqa: B023
            p50, base = statistics.median(service), statistics.median(plain)
            detail = f"{p50:.1f} ms against {base:.1f} ms, medians of {rounds} each, {LIMIT} rows"
            figures.append(
                {"what": f"{name}, times plain DuckDB", "got": round(p50 / base, 2), "reach": "<= 3", "detail": detail}
            )
    return figures


def export(served: Served, form: str) -> dict[str, object]:
    """Stream all results, and measure by how much the service's memory grows."""
    before = served.process.memory_info().rss
    most, size, started = before, 0, time.perf_counter()
    with httpx.stream("GET", f"http://127.0.0.1:{served.port}/results.{form}", timeout=600) as response:
        for number, piece in enumerate(response.iter_bytes(1 << 20)):
            size += len(piece)
            if number % 20 == 0:
                most = max(most, served.process.memory_info().rss)
    detail = f"{size / 2**20:.0f} MiB, {(most - before) / 2**20:.0f} MiB more memory at most"
    return {"what": f"export as {form}", "got": f"{time.perf_counter() - started:.1f} s", "reach": "", "detail": detail}


def _cursor(place: UUID) -> str:
    import base64

    return base64.urlsafe_b64encode(f'["{place}"]'.encode()).decode().rstrip("=")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--home", type=Path, help="a home with as many synthetic results (default: a temporary one)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        home = arguments.home or Path(directory) / "home"
        if not arguments.home:
            write_log(home, arguments.results)
        settings = Settings(home=home)
        refresh(settings)
        with plain_table(settings, Path(directory) / "plain.duckdb") as con, serving(accel(settings)) as served:
            figures = pages(served, con, arguments.rounds)
            figures += [export(served, form) for form in ("arrow", "csv", "ndjson")]
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
