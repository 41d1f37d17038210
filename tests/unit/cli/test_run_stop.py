"""The end of `accel run`: everything that it started is gone before it is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from accel_platform.cli.service.run import _only_one, _relay
from accel_platform.errors import Conflict, StorageUnavailable
from faults import no_room

PARENT = """
import os, signal, sys, time
from pathlib import Path
from accel_platform.cli.service.run import _interrupt_on_signals, _started
_interrupt_on_signals()
try:
    with _started({"Child": [sys.executable, "-c", sys.argv[1]]}, Path.cwd(), dict(os.environ), stop_s=1):
        time.sleep(60)
except KeyboardInterrupt:
    pass
"""
CHILD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN if {stubborn} else signal.default_int_handler)
worker = "import time; print('writing', flush=True); time.sleep(60)"
grandchild = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to who asks for them")
@pytest.mark.parametrize("stubborn", [False, True])
def test_what_it_started_is_gone_before_it_ends(tmp_path: Path, stubborn: bool) -> None:
    """Also workers in sessions of their own, a child that ignores the interrupt, and a signal that comes twice."""
    command = [sys.executable, "-c", PARENT, CHILD.format(stubborn=stubborn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) == 2
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=10)
        left = [child for child in started if child.is_running()]
        for child in left:
            child.kill()
    assert left == []
    assert code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to who asks for them")
def test_a_second_ctrl_c_ends_it_at_once() -> None:
    command = [sys.executable, "-c", PARENT.replace("stop_s=1", "stop_s=60"), CHILD.format(stubborn=True)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert not any(child.is_running() for child in started)
    assert (process.returncode, said) == (130, "Ended at once.\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to who asks for them")
def test_orphans_that_ended_are_forgotten_and_a_child_keeps_its_exit_code() -> None:
    code = """
import subprocess, sys, time
import psutil
from accel_platform.signals import adopt_orphans, reap_orphans
adopt_orphans()
child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '']); sys.exit(7)"
processes = [subprocess.Popen([sys.executable, "-c", child]) for _ in range(2)]
[waited_for, forgotten] = processes
while len(psutil.Process().children()) < 4 or any(p.status() != "zombie" for p in psutil.Process().children()):
    time.sleep(0.02)
reap_orphans([waited_for.pid])
print(waited_for.wait())
reap_orphans([])
print(len(psutil.Process().children()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["7", "0"]


def test_runs_are_stopped_before_the_processes_and_an_error_keeps_none_of_them() -> None:
    code = PARENT.replace("stop_s=1", "stop_s=1, before_stop=stop_runs").replace("KeyboardInterrupt:", "OSError:")
    code = f"def stop_runs():\n    print('stopping runs', flush=True)\n    raise OSError\n{code}"
    child = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (print('stopped', flush=True), sys.exit()))\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, child], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        [started] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
    assert said.splitlines() == ["stopping runs", "stopped"]
    assert not started.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's end")
def test_what_it_started_is_interrupted_where_it_is_killed() -> None:
    child = "import time; print('begun', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        [started] = psutil.Process(process.pid).children()
        process.kill()
        gone, left = psutil.wait_procs([started], timeout=20)
        for each in left:
            each.kill()
    assert gone == [started]


def test_a_run_of_assets_is_named_so_in_the_terminal(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    line = "dagster - INFO - __ASSET_JOB - 0edf54b4 - raw_events - 45,559 events"
    with subprocess.Popen([sys.executable, "-c", f"print({line!r})"], stdout=subprocess.PIPE) as process:
        _relay(process, set(), tmp_path / "ending.log")
    assert capfdbinary.readouterr().err == b"dagster - INFO - assets - 0edf54b4 - raw_events - 45,559 events\n"


def test_a_second_ui_of_one_home_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    for number in range(2):
        with (
            _only_one(tmp_path, f"http://127.0.0.1:300{number}"),
            pytest.raises(Conflict, match=f"open http://127.0.0.1:300{number}, stop it"),
            _only_one(tmp_path, "http://127.0.0.1:4000"),
        ):
            pass


def test_a_ui_that_finds_no_room_names_the_place(tmp_path: Path) -> None:
    with no_room(), pytest.raises(StorageUnavailable, match=str(tmp_path)), _only_one(tmp_path, "http://127.0.0.1:1"):
        pass
