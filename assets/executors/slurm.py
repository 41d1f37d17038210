"""Benchmarks as jobs of Slurm: submitted by `sbatch`, watched by `squeue`, and ended by `scancel`.

The job writes its progress to a file that this host reads, so both see `ACCEL_HOME`; its results go to the log.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.pipes.client import PipesClientCompletedInvocation
from dagster._core.pipes.context import PipesSession
from dagster._core.pipes.utils import open_pipes_session

from accel_platform.atomic_write import make_directory
from accel_platform.bench.requests.lifecycle import Request
from accel_platform.settings import Settings

POLL_S = 3.0
"""Time between two questions to Slurm's controller."""
_SPARE_MINUTES = 5
"""Minutes that Slurm grants a job beyond its request's limit, which the job keeps itself."""
_UNKNOWN_JOB = "Invalid job id"
_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)
"""States that a job does not leave."""


class SlurmClient(dg.PipesClient):
    """Dagster Pipes client that runs a command as a Slurm job, in a folder that login and compute nodes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(  # type: ignore[override]
        self,
        *,
        context: dg.OpExecutionContext,
        command: Sequence[str],
        name: str,
        options: Sequence[str] = (),
        extras: Mapping[str, Any] | None = None,
    ) -> PipesClientCompletedInvocation:
        """Run a command as the only Slurm job of this name, and wait for its end.

        Jobs of the same name that an earlier run left are cancelled first; this one is when the run is interrupted.
        Raises dagster.Failure with Slurm's reason when the job does not complete.
        """
        make_directory(self._folder)
        script, output = self._folder / "job.sh", self._folder / "job.log"
        lines = [f"--job-name={name}", f"--output={output}", f"--chdir={self._folder}", "--no-requeue", *options]
        head = "".join(f"#SBATCH {option}\n" for option in lines)
        script.write_text(f"#!/bin/sh\n{head}exec {shlex.join(command)}\n")
        _slurm("scancel", f"--name={name}")
        with open_pipes_session(
            context=context,
            extras=dict(extras or {}),
            context_injector=dg.PipesEnvContextInjector(),
            message_reader=dg.PipesFileMessageReader(str(self._folder / "messages.jsonl")),
        ) as session:
            environment = {**os.environ, **session.get_bootstrap_env_vars()}
            job = _submit(script, environment)
            context.log.info(f"Slurm job {job} is submitted: {shlex.join(options)}")
            with _cancelled_unless_ended(job, context):
                ended = _wait(job, context, session)
        if ended != "COMPLETED":
            raise dg.Failure(f"Slurm job {job} ended as {ended}{_last_words(output)}", allow_retries=False)
        return PipesClientCompletedInvocation(session, metadata={"slurm_job": job})


def measure_in_slurm(
    context: dg.OpExecutionContext, request: Request, options: Sequence[str], settings: Settings
) -> None:
    """Measure the newest attempt at a request as a Slurm job, which closes it. Raises dagster.Failure."""
    limit_s = request.payload.max_runtime_s
    limit = [] if limit_s is None else [f"--time={math.ceil(limit_s / 60) + _SPARE_MINUTES}"]
    SlurmClient(settings.home.resolve() / "slurm" / context.run_id).run(
        context=context,
        command=[sys.executable, "-m", "assets.executors.slurm_job"],
        name=f"accel-{request.id}",
        options=[*options, *limit],
        extras={"request_id": str(request.id), "attempt": request.attempts},
    )


def _submit(script: Path, environment: Mapping[str, str]) -> str:
    done = _slurm("sbatch", "--parsable", "--export=ALL", str(script), environment=environment)
    if done.returncode:
        raise dg.Failure(f"sbatch refused the job: {_one_line(done.stderr)}", allow_retries=False)
    return done.stdout.strip().partition(";")[0]


def _wait(job: str, context: dg.OpExecutionContext, session: PipesSession) -> str:
    """Wait for a job and return its last state, in Slurm's words; write each change of state to the run's log."""
    before = ""
    while True:
        asked = _slurm("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T|%r|%N")
        state, reason, nodes = (*asked.stdout.strip().split("|"), "", "", "")[:3]
        if not state and (not asked.returncode or _UNKNOWN_JOB in asked.stderr):
            # It forgets jobs some minutes after their end.
            done = session.message_handler.received_closed_message
            return "COMPLETED" if done else "lost: Slurm no longer knows it"
        now = f"{state} {nodes or reason}".strip() if state else f"out of sight: {_one_line(asked.stderr)}"
        if now != before:
            context.log.info(f"Slurm job {job} is {now}")
        before = now
        if state == "COMPLETED":
            return state
        if state in _ENDED:
            why = f" ({reason})" if reason not in ("", "None") else ""
            return f"{state}{why}" + (f" on {nodes}" if nodes else "")
        time.sleep(POLL_S)


@contextmanager
def _cancelled_unless_ended(job: str, context: dg.OpExecutionContext) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if (done := _slurm("scancel", job)).returncode:
            context.log.warning(f"Slurm job {job} could not be cancelled: {_one_line(done.stderr)}")
        raise


def _slurm(
    program: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs. Raises dagster.Failure where it is not installed or does not answer."""
    command = [program, *arguments]
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError as error:
        raise dg.Failure(f"There is no {program} on PATH: serve this host where jobs are submitted.") from error
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 1, "", f"{program} did not answer within {error.timeout:g} s")


def _last_words(output: Path) -> str:
    try:
        lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f": {lines[-1].strip()[:300]}" if lines else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
