"""Servers that speak Spark Connect, in processes of their own: Sail, and Spark on a JVM. No test lives here."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from processes import free_port, running, wait_for


@dataclass(frozen=True)
class Server:
    """A running server and its address."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def sail_server(log: Path) -> Iterator[Server]:
    """Sail, until the block ends; its output is in `log`."""
    port = free_port()
    sail = [sys.executable, "-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", str(port)]
    with _listening(sail, port, log) as server:
        yield server


def why_no_jvm() -> str | None:
    """Why Spark itself cannot run here; None if it can."""
    if shutil.which("java") is None:
        return "there is no Java"
    if not os.environ.get("SPARK_HOME"):
        return "SPARK_HOME names no Spark (a folder with bin/spark-submit)"
    return None


@contextmanager
def jvm_server(log: Path) -> Iterator[Server]:
    """Spark at SPARK_HOME with two threads, until the block ends; its output is in `log`."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": log.parent / "spark-warehouse",
    }
    chosen = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit")
    connect = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with _listening(
        [submit, "--master", "local[2]", *chosen, "--class", connect, "spark-internal"], port, log
    ) as server:
        yield server


@contextmanager
def _listening(command: Sequence[str], port: int, log: Path) -> Iterator[Server]:
    with running(command, log, RUST_LOG="error") as process:
        wait_for("the server listens", 120, lambda: _listens(port), log)
        yield Server(f"sc://127.0.0.1:{port}", process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
