"""Schemathesis over the service's whole OpenAPI document: all checks, all phases, on a real service.

`schemathesis.toml` says what no schema can say. Exits 1 where a check failed or a response was 500 or more.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import tell
from service import accel, make_home, serving

ROOT = Path(__file__).parent.parent


def fuzz(url: str, *, examples: int, seed: int) -> tuple[list[dict[str, object]], str]:
    """Return the figures of one run, and the output of schemathesis."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.ndjson"
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(ROOT / "schemathesis.toml"),
            "run", f"{url}/openapi.json", "--checks", "all", "--phases", "examples,coverage,fuzzing,stateful",
            "--max-examples", str(examples), "--seed", str(seed), "--no-shrink", "--continue-on-failure",
            "--report-ndjson-path", str(report),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        answered = Counter(status for line in report.open() for status in _statuses(json.loads(line)))
    cases = int(_number(r"([\d,]+) generated", done.stdout) or 0)
    failures = _number(r"([\d,]+) unique failures?", done.stdout) or 0
    tested = re.search(r"Tested: (\d+)", done.stdout)
    errors = sum(count for status, count in answered.items() if status >= 500)
    by_class = ", ".join(f"{answered[status]} x {status}" for status in sorted(answered))
    detail = f"{tested[1] if tested else '?'} operations, seed {seed}; {by_class}"
    failed = failures if done.returncode in (0, 1) and cases else f"schemathesis ended with {done.returncode}"
    return [
        {"what": "cases", "got": cases, "reach": ">= 2,000", "detail": detail},
        {"what": "failures of checks", "got": failed, "reach": "0", "detail": "all checks"},
        {"what": "responses of 500 or more", "got": errors, "reach": "0", "detail": f"of {answered.total()}"},
    ], done.stdout


def _statuses(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        if isinstance(value.get("status_code"), int):
            yield value["status_code"]
        for member in value.values():
            yield from _statuses(member)
    elif isinstance(value, list):
        for member in value:
            yield from _statuses(member)


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1].replace(",", "")) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=30, help="of the fuzzing phase, per operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="accel-bench-") as directory,
        serving(accel(make_home(Path(directory)))) as served,
    ):
        figures, said = fuzz(f"http://127.0.0.1:{served.port}", examples=arguments.examples, seed=arguments.seed)
    tell(figures, for_machines=arguments.json)
    if figures[1]["got"] or figures[2]["got"]:
        print(said, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
