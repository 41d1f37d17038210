"""Real child processes: what they say, how they end, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from accel_platform.bench.measure.failures import classify, classify_death
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout


@pytest.fixture
def start(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Start a child whose `handle(job, send)` has the given body."""
    started: list[Child] = []

    def start(body: str, job: dict[str, object] | None = None) -> Child:
        name = f"child_{len(started)}"
        code = "import os, signal, subprocess, sys, time\nfrom accel_platform.subprocesses.json_child import serve\n"
        code += "def handle(job, send):\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\nserve(handle)\n"
        (tmp_path / f"{name}.py").write_text(code)
        started.append(Child(name, job or {}, env={"PYTHONPATH": str(tmp_path)}))
        return started[-1]

    yield start
    for child in started:
        child.close()


def gone(pid: int, within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_messages_come_in_order_and_prints_do_not_mix_with_them(start) -> None:  # type: ignore[no-untyped-def]
    child = start(
        """
        print("a library talks")
        os.system("echo and so does its child")
        for n in range(3):
            send({"n": n, "job": job["x"] * 100_000})
        """,
        {"x": "é"},
    )
    with child:
        answers = list(child.messages(10))
    assert [answer["n"] for answer in answers] == [0, 1, 2]
    assert answers[0]["job"] == "é" * 100_000
    assert gone(child.pid)


def test_modules_of_the_users_folder_are_not_imported(  # type: ignore[no-untyped-def]
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "random.py").write_text("raise SystemExit('of the user')")
    monkeypatch.chdir(tmp_path / "work")
    with start("import random; send({'file': random.__file__})") as child:
        [answer] = child.messages(10)
    assert Path(answer["file"]).parent != tmp_path / "work"


def test_an_exception_is_a_crash_with_its_words(start) -> None:  # type: ignore[no-untyped-def]
    child = start("send({'n': 1}); raise ValueError('seven is not prime enough')")
    messages = child.messages(10)
    assert next(messages) == {"n": 1}
    with pytest.raises(ChildCrashed, match="exit code 1: ValueError: seven is not prime enough"):
        next(messages)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_child_killed_by_a_signal_is_a_crash_that_names_it(start, name: str) -> None:  # type: ignore[no-untyped-def]
    child = start(f"os.kill(os.getpid(), signal.{name})")
    with pytest.raises(ChildCrashed, match=name) as crash:
        list(child.messages(10))
    assert classify_death(str(crash.value)) == ("killed" if name == "SIGKILL" else "crash")


def test_a_silent_child_is_killed_with_all_it_started(start) -> None:  # type: ignore[no-untyped-def]
    child = start("grandchild = subprocess.Popen(['sleep', '60']); send({'pid': grandchild.pid}); time.sleep(60)")
    messages = child.messages(3)
    grandchild = next(messages)["pid"]
    before = time.monotonic()
    with child, pytest.raises(ChildTimeout, match="within 3 s"):
        next(messages)
    assert 2.9 < time.monotonic() - before < 6
    assert gone(child.pid)
    assert gone(grandchild)


def test_the_parent_sleeps_while_the_child_works(start) -> None:  # type: ignore[no-untyped-def]
    child = start("send({}); time.sleep(2); send({})")
    messages = child.messages(20)
    next(messages)
    wall, used = time.monotonic(), time.process_time()
    next(messages)
    assert (time.process_time() - used) / (time.monotonic() - wall) < 0.01


def test_leaving_the_block_kills_the_child_and_all_it_started(start) -> None:  # type: ignore[no-untyped-def]
    with start("send({'pid': subprocess.Popen(['sleep', '60']).pid}); time.sleep(60)") as child:
        grandchild = next(child.messages(10))["pid"]
    assert gone(child.pid)
    assert gone(grandchild)


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(
        "import time\nfrom accel_platform.subprocesses.json_child import serve\n"
        "def handle(job, send):\n    send({})\n    time.sleep(60)\nserve(handle)\n"
    )
    script = (
        "from accel_platform.subprocesses.json_child import Child\n"
        "child = Child('sleeper', {})\nnext(child.messages(20))\nprint(child.pid, flush=True)\ninput()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.send_signal(signal.SIGKILL)
        assert gone(pid)


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (MemoryError(), "out_of_memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
            "out_of_memory",
        ),
        (NotImplementedError("aten::fancy"), "unsupported_operator"),
        (
            RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation"),
            "unsupported_operator",
        ),
        (RuntimeError("something else"), "error"),
    ],
)
def test_failures_have_a_class_and_keep_their_words(error: Exception, failure_class: str) -> None:
    found, message = classify(error)
    assert found == failure_class
    assert str(error) in message
    assert type(error).__name__ in message
    assert len(classify(RuntimeError("x" * 9000))[1]) == 500
