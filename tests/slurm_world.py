"""Slurm for tests: a stand-in whose jobs are real processes, and a private cluster of Slurm itself. No test lives here.

The stand-in is this file, run as `sbatch`, `squeue` or `scancel`. A job of it is a folder: `pid`, and `state` as
`squeue --format=%T|%r|%N` prints it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

FOLDER = "STAND_IN_SLURM"
PATH = str(Path(sys.executable).parent)
"""Nothing here is measured in a browser, and looking for one takes seconds of each attempt."""
PROGRAMS = ("sbatch", "squeue", "scancel")
DAEMONS = ("munged", "slurmctld", "slurmd")
SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=20
ReturnToService=2
SlurmdTimeout=10
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


class StandIn:
    """The stand-in, on PATH while the test lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        for name in PROGRAMS:
            command = shlex.join([sys.executable, __file__, name])
            (self.programs / name).write_text(f'#!/bin/sh\n{FOLDER}={folder} exec {command} "$@"\n')
            (self.programs / name).chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}:{PATH}"}

    def lose_node(self, job: str) -> None:
        """Say what Slurm says of a job whose node is gone, with its processes."""
        self.end(job, "NODE_FAIL|None|node1")

    def end(self, job: str, state: str) -> None:
        (self.folder / job / "state").write_text(state)
        _kill(self.folder / job, signal.SIGKILL)


class Slurm:
    """Slurm itself, one node with one `gpu`, which is /dev/null."""

    def __init__(self, folder: Path, ports: tuple[int, int]) -> None:
        self.folder = folder
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir(parents=True)
        for name in PROGRAMS:
            (folder / "bin" / name).symlink_to(shutil.which(name) or name)
        host = socket.gethostname().partition(".")[0]
        text = SLURM_CONF.format(host=host, ports=ports, folder=folder, cores=os.cpu_count())
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        (folder / "cgroup.conf").touch()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{self.folder / 'bin'}:{PATH}"}

    @contextmanager
    def running(self) -> Iterator[None]:
        key, folder = "munge.key", self.folder
        files = {
            "socket": "munge.sock",
            "key-file": key,
            "pid-file": "munged.pid",
            "log-file": "m.log",
            "seed-file": "s",
        }
        self._start("munged", "--force", *(f"--{name}={folder / file}" for name, file in files.items()))
        try:
            self._start("slurmctld", "-c")
            self.start_node()
            self._wait_idle()
            yield
        finally:
            for name in reversed(DAEMONS):
                self._stop(name)

    def start_node(self) -> None:
        self._start("slurmd")

    def lose_node(self, job: str) -> None:
        """Kill the node's daemon and what runs there; the controller misses it after SlurmdTimeout."""
        self._stop("slurmd", signal.SIGKILL)
        for process in psutil.process_iter(["environ", "cmdline"]):
            mine = (process.info["environ"] or {}).get("SLURM_JOB_ID") == job
            if mine or f"slurmstepd: [{job}.batch]" in " ".join(process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def _start(self, name: str, *options: str) -> None:
        environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        environment["PATH"] = f"/usr/sbin:/usr/bin:/bin:{os.environ['PATH']}"
        subprocess.run([name, *options], env=environment, check=True, capture_output=True, timeout=30)

    def _stop(self, name: str, how: int = signal.SIGTERM) -> None:
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int((self.folder / f"{name}.pid").read_text()), how)

    def _wait_idle(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            command = ["/usr/bin/sinfo", "--noheader", "--format=%T"]
            environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.stdout.strip() == "idle":
                return
            time.sleep(0.2)
        raise TimeoutError((self.folder / "slurmctld.log").read_text()[-2000:])


def slurm_is_installed() -> bool:
    """Whether a private Slurm can run: its daemons are there, and this is root."""
    return os.getuid() == 0 and all(shutil.which(name) or Path(f"/usr/sbin/{name}").exists() for name in DAEMONS)


def _sbatch(folder: Path, arguments: list[str]) -> int:
    script = Path(arguments[-1])
    options = [line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    if "--gres=gpu:9" in options:
        print(
            "sbatch: error: Batch job submission failed: Requested node configuration is not available", file=sys.stderr
        )
        return 1
    named = dict(option.partition("=")[::2] for option in options)
    number = str(1 + sum(path.is_dir() and path.name.isdigit() for path in folder.iterdir()))
    job = folder / number
    job.mkdir()
    shutil.copy(script, job / "script")
    (job / "name").write_text(named["--job-name"])
    (job / "state").write_text("RUNNING|None|node1")
    with Path(named["--output"]).open("w") as output:
        command = f"/bin/sh {job / 'script'}; echo $? > {job / 'rc'}"
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=named["--chdir"],
            start_new_session=True,
        )
    (job / "pid").write_text(str(process.pid))
    print(f"{number};test")
    return 0


def _squeue(folder: Path, arguments: list[str]) -> int:
    [number] = [word.partition("=")[2] for word in arguments if word.startswith("--jobs=")]
    job = folder / number
    if (folder / "away").exists():
        print("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    if not job.exists():
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    state = (job / "state").read_text()
    if state.startswith("RUNNING") and (job / "rc").exists():
        code = int((job / "rc").read_text())
        state = "COMPLETED|None|node1" if code == 0 else "FAILED|NonZeroExitCode|node1"
        (job / "state").write_text(state)
    print(state)
    return 0


def _scancel(folder: Path, arguments: list[str]) -> int:
    [wanted] = arguments
    name = wanted.removeprefix("--name=")
    for job in (path for path in folder.iterdir() if path.name.isdigit()):
        named = wanted.startswith("--name=") and (job / "name").read_text() == name
        if (named or job.name == wanted) and (job / "state").read_text().startswith("RUNNING"):
            (job / "state").write_text("CANCELLED|None|node1")
            _kill(job, signal.SIGTERM)
    return 0


def _kill(job: Path, how: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(int((job / "pid").read_text()), how)


if __name__ == "__main__":
    program = {"sbatch": _sbatch, "squeue": _squeue, "scancel": _scancel}[sys.argv[1]]
    sys.exit(program(Path(os.environ[FOLDER]), sys.argv[2:]))
